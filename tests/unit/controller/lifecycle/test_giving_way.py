"""Two claims have one device: exactly one gives way, if any may."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from dracaena.controller.lifecycle.giving_way import Party, gives_way

PARTIES = st.builds(
    Party,
    uid=st.sampled_from(["a", "b", "c"]),
    allocated_at=st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"]),
    is_ours=st.booleans(),
    is_used=st.booleans(),
)


def may(party: Party) -> bool:
    return party.is_ours and not party.is_used


@given(PARTIES, PARTIES)
def test_of_two_exactly_one_gives_way_unless_none_may(one: Party, other: Party) -> None:
    assume(one.uid != other.uid)
    giving = [party for party, rival in ((one, other), (other, one)) if gives_way(party, rival)]
    assert len(giving) == (1 if may(one) or may(other) else 0)
    assert all(map(may, giving))


def party(uid: str, at: str = "1", *, ours: bool = True, used: bool = False) -> Party:
    return Party(uid, at, is_ours=ours, is_used=used)


def test_the_later_of_two_that_may_gives_way_and_of_equal_times_the_one_with_the_greater_uid() -> None:
    assert gives_way(party("a", "2"), party("b", "1"))
    assert not gives_way(party("a", "1"), party("b", "2"))
    assert gives_way(party("b"), party("a"))


def test_the_earlier_gives_way_to_a_later_one_that_is_used_or_not_ours() -> None:
    assert gives_way(party("a", "1"), party("b", "2", used=True))
    assert gives_way(party("a", "1"), party("b", "2", ours=False))
    assert not gives_way(party("a", "2", used=True), party("b", "1"))
    assert not gives_way(party("a", "2", ours=False), party("b", "1"))
