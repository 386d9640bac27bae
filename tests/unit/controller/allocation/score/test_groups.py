"""The best disjoint groups in many sets at once, against a look at every family of groups."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.score.groups import Groups, collection_of, members, supersets_within


def masks_of(within: int, size: int) -> list[int]:
    return [sum(chosen) for chosen in combinations([1 << ordinal for ordinal in ordinals_of(within)], size)]


def best_total(worths: dict[int, int], within: int, count: int) -> int:
    """The greatest total of `count` disjoint groups, by looking at all of them."""
    if count == 0:
        return 0
    return max(
        worth + best_total(worths, within & ~group, count - 1)
        for group, worth in worths.items()
        if not group & ~within and (within & ~group).bit_count() >= (count - 1) * group.bit_count()
    )


@st.composite
def tasks(draw: st.DrawFn) -> tuple[int, dict[int, int], dict[int, int], list[int], int]:
    """Size of a group, exact worth and upper bound of each, sets of one count of GPUs, and how many groups."""
    gpu_count, size = draw(st.sampled_from([(4, 1), (5, 2), (6, 2), (7, 2), (6, 3), (7, 3), (8, 4), (9, 4)]))
    everything = (1 << gpu_count) - 1
    groups = masks_of(everything, size)
    chance = random.Random(draw(st.integers(0, 10**6)))
    most, above = draw(st.sampled_from([0, 1, 3, 20])), draw(st.sampled_from([0, 0, 2]))
    worths = {group: chance.randint(0, most) for group in groups}
    bounds = {group: worth + chance.randint(0, above) for group, worth in worths.items()}
    count = draw(st.integers(1, gpu_count // size))
    free = draw(st.integers(count * size, gpu_count))
    sets = masks_of(everything, free)
    chance.shuffle(sets)
    return size, worths, bounds, sets[: draw(st.integers(1, len(sets)))], count


@given(tasks())
def test_every_set_comes_once_with_the_greatest_total_of_its_disjoint_groups(
    task: tuple[int, dict[int, int], dict[int, int], list[int], int],
) -> None:
    _, worths, bounds, sets, count = task
    groups = Groups(((most, mask) for mask, most in bounds.items()), worths.__getitem__)
    found = list(groups.totals(sets, count))
    totals = [total for total, _ in found]
    assert totals == sorted(set(totals), reverse=True)
    expected = {each: best_total(worths, each, count) for each in sets}
    assert {each: total for total, those in found for each in those} == expected
    for total, those in found:
        assert those == [each for each in sets if expected[each] == total], "in the order in which they were given"


@given(tasks(), st.integers(0, 511))
def test_the_best_group_inside_a_set(
    task: tuple[int, dict[int, int], dict[int, int], list[int], int], free: int
) -> None:
    _, worths, bounds, _, _ = task
    groups = Groups(((most, mask) for mask, most in bounds.items()), worths.__getitem__)
    assert groups.best_inside(free) == max((worths[mask] for mask in worths if not mask & ~free), default=0)


def test_exact_worths_are_only_asked_where_bounds_call_for_them() -> None:
    asked: list[int] = []

    def worth(mask: int) -> int:
        asked.append(mask)
        return 5

    groups = Groups([(9, 0b0011), (5, 0b0101), (4, 0b1100), (3, 0b1010)], worth)
    assert next(groups.totals([0b0111], 1)) == (5, [0b0111])
    assert groups.best_inside(0b1111) == 5
    assert set(asked) == {0b0011, 0b0101}


@given(st.sets(st.integers(0, 63)), st.integers(0, 63))
def test_collections_hold_their_sets_and_supersets(masks: set[int], within: int) -> None:
    def listed(collection: int) -> set[int]:
        has = members(collection)
        return {mask for mask in range(64) if has[mask >> 3] >> (mask & 7) & 1}

    assert listed(collection_of(masks)) == masks
    inside = {mask for mask in masks if not mask & ~within}
    assert listed(supersets_within(collection_of(inside), within)) == {
        mask for mask in range(64) if not mask & ~within and any(not each & ~mask for each in inside)
    }


@pytest.mark.parametrize("count", [1, 2])
def test_sixteen_gpus_have_as_many_sets_of_each_total_as_a_look_at_all_families_says(count: int) -> None:
    chance = random.Random(count)
    fours = masks_of(0xFFFF, 4)
    worths = {mask: chance.choice([1, 4, 9]) for mask in fours}
    sets = chance.sample(masks_of(0xFFFF, 4 * count + 1), 3)
    found = Groups(((worth, mask) for mask, worth in worths.items()), worths.__getitem__).totals(sets, count)
    assert {each: total for total, those in found for each in those} == {
        each: best_total({mask: worth for mask, worth in worths.items() if not mask & ~each}, each, count)
        for each in sets
    }
