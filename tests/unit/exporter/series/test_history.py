from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dracaena.exporter.series.history import CounterState, idle_since, next_count
from dracaena.exporter.series.owners import Owner

values = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5).map(float)), max_size=8)


@given(values)
def test_a_counter_falls_only_where_it_begins_anew(told: list[tuple[int, float]]) -> None:
    state: CounterState | None = None
    previous: tuple[int, float] | None = None
    for session, value in told:
        after = next_count(state, session, value)
        if state is not None and after.session == state.session and after.shown < state.shown:
            assert previous is not None
            assert previous[1] <= value, "two values in a row below what was shown, that rise"
        assert after.shown in (value, state.shown if state else value)
        state, previous = after, (session, value)


def test_one_low_value_is_not_shown_and_a_new_session_begins_anew() -> None:
    state = next_count(next_count(None, 1, 10.0), 1, 3.0)
    assert (state.shown, state.below) == (10.0, 3.0)
    assert next_count(state, 1, 11.0) == CounterState(1, 11.0)
    assert next_count(state, 1, 4.0) == CounterState(1, 4.0)
    assert next_count(state, 1, 2.0).shown == 10.0
    assert next_count(state, 2, 1.0) == CounterState(2, 1.0)


def test_idleness_begins_when_a_device_is_first_seen_and_ends_with_use() -> None:
    key = ("GPU-0", Owner("n", "a", "c"))
    first = idle_since({}, {key: False}, 5.0)
    assert first == {key: 5.0}
    assert idle_since(first, {key: False}, 9.0) == {key: 5.0}
    assert idle_since(first, {key: True}, 9.0) == {key: 9.0}
    assert idle_since(first, {}, 9.0) == {}
