"""Which seeds are drawn by which of `make test`, `make test-search` and `make test-long`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from _pytest.mark.structures import ParameterSet

from support.seeds import in_tiers, in_turn, sampled


def by_tier(given: list[ParameterSet]) -> dict[str, list[Any]]:
    """Return what each tier draws; a parameter that were in two would be listed in both."""
    found = defaultdict(list)
    for one in given:
        for name in [mark.name for mark in one.marks] or ["test"]:
            found[name].append(one.values[0] if len(one.values) == 1 else one.values)
    return dict(found)


def test_each_seed_is_in_one_tier() -> None:
    assert by_tier(sampled(range(6), 2, 3)) == {"test": [0, 1], "search": [2], "long": [3, 4, 5]}
    assert by_tier(sampled(range(3), 1, 3)) == {"test": [0], "search": [1, 2]}
    assert by_tier(sampled(range(3), 2)) == {"test": [0, 1], "long": [2]}


def test_a_tier_draws_what_it_is_given() -> None:
    assert by_tier(in_tiers(1, 2, 3)) == {"test": [1], "search": [2], "long": [3]}
    assert by_tier(in_tiers(1, long=3)) == {"test": [1], "long": [3]}


def test_variants_take_turns_and_the_largest_tier_has_the_others() -> None:
    assert by_tier(in_turn(range(4), 1, 2, "ab")) == {
        "test": [(0, "a")],
        "search": [(1, "b")],
        "long": [(0, "b"), (1, "a"), (2, "a"), (2, "b"), (3, "a"), (3, "b")],
    }
