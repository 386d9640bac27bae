"""How one set is dealt out among requests that are unlike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, permutations

import pytest

from dracaena.api.config.v1alpha1 import Requirement, TopologyPolicy
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Topology
from dracaena.controller.allocation.score import shares as dealing_out
from dracaena.controller.allocation.score.box import make_rule, mask_of, ordinals_of
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.score.shares import RequestShare, Splitter

COUNTS = [(1, 2, 3), (2, 2, 3), (4, 1, 2), (3, 3, 1), (1, 2, 1, 3)]


def irregular_table(seed: int, gpu_count: int = 8) -> ClassTable:
    """GPUs that are all unlike: some NVLinks here and there, PCIe levels at random."""
    chance = random.Random(seed)
    levels = [LinkLevel.PIX, LinkLevel.PXB, LinkLevel.NODE, LinkLevel.SYS]
    pairs = tuple(
        Link(chance.choice(levels), chance.choice([0, 0, 1, 2])) for _ in range(gpu_count * (gpu_count - 1) // 2)
    )
    topology = Topology(gpu_count, pairs, (0,) * gpu_count)
    gpus = {ordinal: Gpu(f"{ordinal}", ordinal, nvlink_count=18, nvlink_generation=2) for ordinal in range(gpu_count)}
    return ClassTable(make_box(topology, gpus))


def shares_of(table: ClassTable, counts: tuple[int, ...], policy: TopologyPolicy | None = None) -> list[RequestShare]:
    rule = make_rule(table, policy or TopologyPolicy(), (1 << table.box.gpu_count) - 1)
    return [RequestShare(count, rule) for count in counts]


def ways(mask: int, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to deal a set out, in the order of the ordinals of the first part, then of the second …"""
    if not counts:
        yield ()
        return
    for chosen in combinations(ordinals_of(mask), counts[0]):
        part = mask_of(chosen)
        yield from ((part, *parts) for parts in ways(mask & ~part, counts[1:]))


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("seed", range(3))
def test_unlike_requests_get_the_first_of_the_ways_of_the_greatest_sum(seed: int, counts: tuple[int, ...]) -> None:
    table = irregular_table(seed)
    splitter = Splitter(table, shares_of(table, counts))
    for chosen in random.Random(seed).sample(list(combinations(range(8), sum(counts))), 4):
        mask = mask_of(chosen)
        every = list(ways(mask, counts))
        best = max(sum(map(table.worth, parts)) for parts in every)
        found = splitter.split(mask)
        assert found is not None
        assert sum(map(table.worth, found)) == best
        if len(set(counts)) == len(counts):
            assert found == next(parts for parts in every if sum(map(table.worth, parts)) == best)


@pytest.mark.parametrize("policy", [TopologyPolicy(), TopologyPolicy(requirement=Requirement.NVLINK)])
@pytest.mark.parametrize("counts", COUNTS)
def test_a_search_that_is_cut_short_deals_legally_always_the_same_and_only_where_there_is_a_way(
    counts: tuple[int, ...], policy: TopologyPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = [mask_of(chosen) for chosen in combinations(range(8), sum(counts))]
    table = irregular_table(5)
    shares = shares_of(table, counts, policy)
    thorough = {mask: Splitter(table, shares).split(mask) for mask in masks}
    monkeypatch.setattr(dealing_out, "MAX_PARTS", 4)
    splitter = Splitter(table, shares)
    for mask in masks:
        found = splitter.split(mask)
        assert (found is None) == (thorough[mask] is None)
        if found is not None:
            assert sum(found) == mask
            assert [part.bit_count() for part in found] == list(counts)
            assert all(share.rule.allows(part) for share, part in zip(shares, found, strict=True))
        assert found == splitter.split(mask), "the same whatever was dealt out before"


def test_dealing_out_a_whole_box_of_sixteen_looks_at_a_bounded_number_of_parts() -> None:
    table = irregular_table(7, gpu_count=16)
    splitter = Splitter(table, shares_of(table, (1, 3, 5, 7)))
    found = splitter.split(0xFFFF)
    assert found is not None
    assert sorted(part.bit_count() for part in found) == [1, 3, 5, 7]
    assert splitter._looked_at <= dealing_out.MAX_PARTS + 4


def test_requests_of_one_count_that_are_alike_cost_one_way() -> None:
    table = irregular_table(9)
    splitter = Splitter(table, shares_of(table, (1,) * 8))
    found = splitter.split(0xFF)
    assert found in list(permutations([1 << ordinal for ordinal in range(8)]))
    assert splitter._looked_at == 8
