"""The garbage collector stops no decision once everything was seen."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dracaena.controller import garbage
from dracaena.controller.garbage import (
    UNASKED_OBJECTS,
    YOUNG_OBJECTS,
    YOUNG_PASSES,
    collect_between_decisions,
    freeze_what_stays,
)


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Note the generation of each collection, and leave the collector as it was."""
    thresholds, frozen, seen = gc.get_threshold(), gc.get_freeze_count(), list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    if frozen:
        gc.freeze()  # conftest.py has frozen the tests themselves


class Ring:
    """Refers to itself: only the garbage collector finds it."""

    def __init__(self, gone: list[int], number: int) -> None:
        self.itself, self._gone, self._number = self, gone, number

    def __del__(self) -> None:
        self._gone.append(self._number)


def test_what_is_there_is_looked_at_no_more_and_what_comes_seldom(collections: list[int]) -> None:
    freeze_what_stays()
    assert gc.get_freeze_count() > 0
    collections.clear()
    made: list[list[int]] = [[number] for number in range(UNASKED_OBJECTS // 2)]
    assert collections == []
    made += [[number] for number in range(UNASKED_OBJECTS)]
    assert collections == [0], "it is not switched off: errors make cycles"


def test_it_looks_between_decisions_and_never_in_one(collections: list[int]) -> None:
    freeze_what_stays()
    kept: list[list[int]] = []
    inside = between = 0
    for _ in range(60):
        collections.clear()
        collect_between_decisions()
        between += len(collections)
        collections.clear()
        peak = [[number] for number in range(YOUNG_OBJECTS)]  # what a decision makes and lets go
        kept += peak[: YOUNG_OBJECTS // 6]
        del peak
        inside += len(collections)
    assert inside == 0
    assert 5 <= between <= 10
    assert len(kept) == 60 * (YOUNG_OBJECTS // 6)


def test_it_looks_only_where_enough_came(collections: list[int]) -> None:
    freeze_what_stays()
    collections.clear()
    made: list[list[int]] = [[number] for number in range(YOUNG_OBJECTS // 2)]
    collect_between_decisions()
    assert collections == []
    made += [[number] for number in range(YOUNG_OBJECTS)]
    collect_between_decisions()
    collect_between_decisions()
    assert collections == [1], "what it leaves is not looked at again"


def test_garbage_that_got_old_before_it_was_garbage_goes_too(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "YOUNG_OBJECTS", 0)  # each call is worth a look
    freeze_what_stays()
    gone: list[int] = []
    ring: Ring | None = Ring(gone, 7)
    collect_between_decisions()
    ring = None
    collections.clear()
    for _ in range(garbage.OLD_PASSES):
        collect_between_decisions()
    assert gone == [7]
    assert collections == [1] * (garbage.OLD_PASSES - 1) + [2]
    assert ring is None


def test_no_look_of_its_own_is_at_more_than_a_few_young_generations(
    collections: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause is as long as what it looks at: with ten passes between two, one in ten looked at ten times as much."""
    monkeypatch.setattr(garbage, "UNASKED_OBJECTS", 1_000)
    freeze_what_stays()
    collections.clear()
    made = [[number] for number in range(13_000)]
    assert len(made) == 13_000
    assert len(collections) > 4
    assert set(collections) == {0, 1}, "nothing looks at all that came since the start"
    runs = "".join(map(str, collections)).split("1")
    assert max(map(len, runs)) <= YOUNG_PASSES + 1
