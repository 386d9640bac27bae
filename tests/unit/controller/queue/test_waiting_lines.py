from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.walk.pod_demand import Turn
from dracaena.controller.queue.waiting_lines import HOLD_BACK, LACKS_ROOM_TOO, SLACK, TOO_LONG, WaitingLines


def place(key: str, priority: int = 0) -> Turn:
    return -priority, False, "", key


class SlowLines:
    """The same by looking at everybody each time."""

    def __init__(self) -> None:
        self.waiting: dict[str, tuple[bytes, Turn]] = {}
        self.answers: dict[bytes, str] = {}

    def line(self, shape: bytes) -> list[str]:
        return sorted((key for key, (of, _) in self.waiting.items() if of == shape), key=lambda k: self.waiting[k][1])

    def is_behind(self, shape: bytes, turn: Turn) -> bool:
        return self.answers.get(shape) in HOLD_BACK and any(self.waiting[key][1] < turn for key in self.line(shape))

    def put(self, key: str, shape: bytes, turn: Turn, answer: str) -> Sequence[str]:
        woken = self.leave(key) if self.waiting.get(key, (shape, turn)) != (shape, turn) else []
        self.waiting[key] = shape, turn
        line = self.line(shape)
        before = self.answers.setdefault(shape, answer)
        if line[0] == key and before != answer:
            self.answers[shape] = answer
            if not {before, answer} <= set(HOLD_BACK):
                woken = [*woken, *line[1:]]
        return woken

    def leave(self, key: str) -> Sequence[str]:
        if key not in self.waiting:
            return []
        shape, _ = self.waiting[key]
        line = self.line(shape)
        del self.waiting[key]
        if len(line) == 1:
            del self.answers[shape]
        return line[1:2] if line[0] == key else []

    def firsts(self) -> list[str]:
        return sorted((self.line(shape)[0] for shape in self.answers), key=lambda key: self.waiting[key][1])


KEYS = st.sampled_from("abcdefgh")
STEPS = st.one_of(
    st.tuples(
        st.just("put"),
        KEYS,
        st.sampled_from([b"small", b"large"]),
        st.sampled_from([0, 1]),
        st.sampled_from(["", "x", TOO_LONG, "quota", LACKS_ROOM_TOO]),
    ),
    st.tuples(st.just("leave"), KEYS),
)


@settings(derandomize=True)
@given(st.lists(STEPS, max_size=60))
def test_lines_say_what_a_look_at_everybody_says(steps: list[tuple[Any, ...]]) -> None:
    lines, slow = WaitingLines(), SlowLines()
    refusals: dict[bytes, Refused | None] = {}
    for step in steps:
        if step[0] == "leave":
            assert list(lines.leave(step[1])) == list(slow.leave(step[1]))
        else:
            _, key, shape, priority, answer = step
            turn = place(key, priority)
            assert lines.is_behind(shape, turn) == slow.is_behind(shape, turn)
            said = Refused(RefusalKind.QUOTA, str(step), concerns_us=True) if "quota" in answer else None
            woken = lines.put(key, shape, turn, answer, refusal=said)
            assert list(woken) == list(slow.put(key, shape, turn, answer))
            if slow.line(shape)[0] == key:
                refusals[shape] = said
            assert lines.refusal(shape) == refusals[shape]
        assert list(lines.change(None, {})) == slow.firsts()
        assert len(lines.standing) == len(slow.waiting)
        assert list(lines.all()) == sorted(slow.waiting, key=lambda key: slow.waiting[key][1])
        for key in "abcdefgh":
            fits_nowhere = key in slow.waiting and slow.answers[slow.waiting[key][0]] in ("", LACKS_ROOM_TOO)
            assert lines.fits_nowhere(key) == fits_nowhere
            assert (lines.standing.get(key) is not None) == (key in slow.waiting)


def test_a_pod_that_comes_and_goes_leaves_nothing_behind() -> None:
    lines = WaitingLines()
    lines.put("first", b"s", place("first", 1), "")
    for _ in range(1_000):
        lines.put("other", b"s", place("other"), "")
        lines.leave("other")
    assert len(lines._lines[b"s"].members) <= 4 + SLACK
    lines.leave("first")
    assert not lines._lines
    assert not lines.standing


CREATED = st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"])


@settings(derandomize=True)
@given(
    st.lists(
        st.tuples(KEYS, st.sampled_from([b"small", b"large"]), st.sampled_from([0, 1]), CREATED, st.sampled_from("-x")),
        max_size=30,
    ),
    st.sets(KEYS),
    CREATED,
)
def test_the_first_of_each_line_that_waits_too_long_is_what_a_look_at_everybody_says(
    puts: list[tuple[str, bytes, int, str, str]], left: set[str], before: str
) -> None:
    lines = WaitingLines()
    for key, shape, priority, created, answer in puts:
        lines.put(key, shape, (-priority, not created, created, key), answer.strip("-"))
    for key in sorted(left):
        lines.leave(key)
    old: dict[bytes, tuple[Turn, str]] = {}
    for key in lines.all():
        standing = lines.standing.get(key)
        assert standing is not None
        _, never_created, created, _ = standing.turn
        if before and not never_created and created < before and lines.fits_nowhere(key):
            old.setdefault(standing.shape, (standing.turn, key))
    assert list(lines.first_before(before)) == [key for _, key in sorted(old.values())]


def test_where_nobody_can_starve_no_line_is_looked_through() -> None:
    lines = WaitingLines()
    lines.put("p", b"s", place("p"), "")
    lines._lines[b"s"].members = None  # type: ignore[assignment]
    assert lines.first_before("") == ()
