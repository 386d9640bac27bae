"""Figures of all subsets at once, and GPUs that stand for each other, against the plain definitions."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations
from math import comb, prod

from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.machine import Gpu
from dracaena.api.topology import Topology
from dracaena.controller.allocation.score.box import (
    canonical_mask,
    equals,
    interchangeable,
    mask_of,
    ordinals_of,
    refined,
    representatives,
)
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.score.subsets import (
    best_pairing_of_subsets,
    least_degree_of_subsets,
    least_pair_of_subsets,
    total_of_subsets,
    with_ring,
)
from support.allocation import blocks
from support.machines import topologies

Matrix = list[list[int]]


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    size = draw(st.integers(0, 7))
    numbers = st.sampled_from([0, 1, 2, 50, 255, 256, 40_000, 2**40])
    rows = [[0] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        rows[a][b] = rows[b][a] = draw(numbers)
    return rows


def members(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)


@given(matrices())
def test_the_least_pair_of_every_subset(rows: Matrix) -> None:
    found = least_pair_of_subsets(rows)
    assert list(found) == [
        min((rows[a][b] for a, b in combinations(members(mask), 2)), default=0) for mask in range(1 << len(rows))
    ]


@given(matrices())
def test_the_least_degree_of_every_subset(rows: Matrix) -> None:
    found = least_degree_of_subsets(rows)
    assert list(found) == [
        min((sum(rows[a][b] for b in members(mask)) for a in members(mask)), default=0)
        for mask in range(1 << len(rows))
    ]


def best_pairing(rows: Matrix, mask: int) -> int:
    found = 0
    for a, b in combinations(members(mask), 2):
        found = max(found, rows[a][b] + best_pairing(rows, mask & ~(1 << a | 1 << b)))
    return found


@given(matrices())
def test_the_best_pairing_of_every_subset(rows: Matrix) -> None:
    assert list(best_pairing_of_subsets(rows)) == [best_pairing(rows, mask) for mask in range(1 << len(rows))]


@given(matrices())
def test_the_total_of_every_subset(rows: Matrix) -> None:
    size = range(len(rows))
    assert list(total_of_subsets(rows)) == [
        sum(rows[a][b] for a, b in combinations([o for o in size if mask >> o & 1], 2))
        for mask in range(1 << len(rows))
    ]


def has_ring(rows: Matrix, gpus: tuple[int, ...]) -> bool:
    first, *others = gpus
    circles = ((first, *order, first) for order in permutations(others))
    return any(all(rows[a][b] for a, b in pairwise(circle)) for circle in circles)


@given(matrices())
def test_which_subsets_can_stand_in_a_circle(rows: Matrix) -> None:
    near = [mask_of(b for b, value in enumerate(row) if value) for row in rows]
    found = with_ring(near)
    for mask in range(1 << len(rows)):
        expected = mask & (mask - 1) != 0 and has_ring(rows, members(mask))
        assert found[mask >> 3] >> (mask & 7) & 1 == expected, f"{mask:b}"


def swapped(mask: int, a: int, b: int) -> int:
    bits = (mask >> a ^ mask >> b) & 1
    return mask ^ (bits << a | bits << b)


@given(topologies(6))
def test_gpus_of_one_kind_can_change_places_in_any_set(topology: Topology) -> None:
    made = make_box(topology, {o: Gpu(f"{o}", o) for o in range(topology.gpu_count)})
    kinds = interchangeable(made)
    assert sum(kinds) == (1 << topology.gpu_count) - 1
    table = ClassTable(made)
    everything = (1 << topology.gpu_count) - 1
    for kind in kinds:
        for a, b in combinations(ordinals_of(kind), 2):
            for mask in range(1, everything + 1):
                assert table.score(everything, mask) == table.score(everything, swapped(mask, a, b))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=7), st.data())
def test_representatives_stand_for_every_set_once(kind_of: list[int], data: st.DataObject) -> None:
    size = len(kind_of)
    kinds = tuple(mask_of(o for o in range(size) if kind_of[o] == kind) for kind in sorted(set(kind_of)))
    free = data.draw(st.integers(0, (1 << size) - 1))
    total = 0
    for count in range(size + 1):
        found = list(representatives(kinds, free, count))
        total += len(found)
        stood_for = [mask_of(chosen) for mask in found for chosen in equals(kinds, free, mask)]
        everything = [mask_of(chosen) for chosen in combinations(ordinals_of(free), count)]
        assert sorted(stood_for) == sorted(everything)
        for mask in found:
            expected = [
                chosen for chosen in combinations(ordinals_of(free), count) if same(kinds, mask_of(chosen), mask)
            ]
            assert list(equals(kinds, free, mask)) == expected
            assert mask_of(expected[0]) == mask
            assert canonical_mask(kinds, mask).bit_count() == count
    assert total == prod((kind & free).bit_count() + 1 for kind in kinds)


def same(kinds: tuple[int, ...], one: int, other: int) -> bool:
    return all((kind & one).bit_count() == (kind & other).bit_count() for kind in kinds)


def test_masks_that_requests_tell_apart_split_kinds() -> None:
    assert refined((0b1111, 0b110000), (0b10011,)) == (0b0011, 0b1100, 0b010000, 0b100000)


def test_a_tree_of_32_gpus_is_compared_whole_and_32_unlike_ones_are_not() -> None:
    tree = make_box(blocks(8, 8, 8, 8, inside="PIX", outside="SYS"), {})
    table = ClassTable(tree)
    assert table.comparable
    assert table.free_worth((1 << 32) - 1, 8) == 4 * table.worth(0xFF)
    assert prod(twins.bit_count() + 1 for twins in table.twins) == 9**4
    assert comb(32, 8) > 10_000_000
