"""The garbage collector stops no decision once everything was seen."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dracaena.controller.garbage import YOUNG_OBJECTS, YOUNG_PASSES, freeze_what_stays


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


def test_what_is_there_is_looked_at_no_more_and_what_comes_seldom(collections: list[int]) -> None:
    freeze_what_stays()
    assert gc.get_freeze_count() > 0
    collections.clear()
    made: list[list[int]] = [[number] for number in range(YOUNG_OBJECTS // 2)]
    assert collections == []
    made += [[number] for number in range(2 * YOUNG_OBJECTS)]
    assert collections, "it is not switched off: errors make cycles"


def test_no_look_is_at_more_than_a_few_young_generations(collections: list[int]) -> None:
    """A pause is as long as what it looks at: with ten passes between two, one in ten looked at ten times as much."""
    freeze_what_stays()
    collections.clear()
    made = [[number] for number in range(13 * YOUNG_OBJECTS)]
    assert len(made) == 13 * YOUNG_OBJECTS
    assert len(collections) > 4
    assert set(collections) == {0, 1}, "nothing looks at all that came since the start"
    runs = "".join(map(str, collections)).split("1")
    assert max(map(len, runs)) <= YOUNG_PASSES + 1
