"""The choice where Fabric Manager links whole partitions alone, against a slow, obvious search and in words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from dracaena.api.config.v1alpha1 import LinkBandwidth, NumaAlignment, Requirement, TopologyPolicy
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.result import links_in_words, worst_link
from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import NO_PARTITION, Choice, Demand, Engine
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.nominal_rates import make_box
from support.seeds import in_tiers, sampled
from support.slow_choice import Gpus
from support.slow_fabric_partitions import SlowClaim, SlowPartitionedBox, SlowSet

HGX_PARTITIONS = tuple(frozenset(range(first, first + size)) for size in (1, 2, 4, 8) for first in range(0, 8, size))
"""The 15 of an HGX board."""


def hgx() -> tuple[Topology, dict[int, Gpu]]:
    """Two GPUs to a switch, four to a socket, all behind NVSwitches."""

    def link(a: int, b: int) -> Link:
        level = LinkLevel.PIX if a // 2 == b // 2 else LinkLevel.NODE if a // 4 == b // 4 else LinkLevel.SYS
        return Link(level, 18)

    pairs = tuple(link(a, b) for a, b in combinations(range(8), 2))
    gpus = {place: Gpu(f"GPU-{place}", place, architecture="Hopper", pcie_generation=5) for place in range(8)}
    return Topology(8, pairs, tuple(place // 4 for place in range(8))), gpus


def hgx_box(partitions: Sequence[Gpus] = HGX_PARTITIONS) -> Box:
    return make_box(*hgx(), partitions)


def best(free: Sequence[int], *counts: int, box: Box | None = None, **policy: object) -> Choice:
    demands = tuple(Demand(count, TopologyPolicy(**policy)) for count in counts)  # type: ignore[arg-type]
    found = Engine().best_two(box or hgx_box(), mask_of(free), demands).best
    assert found is not None
    return found


def gpus_of(choice: Choice) -> tuple[int, ...]:
    return ordinals_of(choice.mask)


# What users see.


def test_four_gpus_are_a_quad_though_others_are_nearer_by_number() -> None:
    choice = best([1, 2, 3, 4, 5, 6, 7], 4)
    assert gpus_of(choice) == (4, 5, 6, 7)
    assert (choice.score.bandwidth_gb_s, choice.score.worst_level) == (450, 0)


def test_what_is_no_partition_has_no_nvlink_and_goes_by_pcie() -> None:
    choice = best(range(8), 3)
    assert choice.score.bandwidth_gb_s < 60
    assert choice.score.worst_level == LinkLevel.NODE
    assert links_in_words(hgx_box(), choice.mask) == "1 pair PIX, 2 pairs NODE, no whole partition"


def test_a_pair_comes_from_the_quad_that_is_broken_already() -> None:
    assert gpus_of(best([0, 1, 2, 3, 4, 5], 2)) == (4, 5)
    assert gpus_of(best([2, 3, 4, 5, 6, 7], 2)) == (2, 3)


def test_a_single_gpu_comes_from_the_pair_that_is_broken_already() -> None:
    assert gpus_of(best([0, 1, 2, 3, 4, 6, 7], 1)) == (4,)
    assert gpus_of(best([0, 1, 2, 3, 5, 6, 7], 1)) == (5,)


def test_three_gpus_leave_the_whole_quad_alone() -> None:
    assert gpus_of(best([0, 1, 2, 3, 4, 5, 6], 3)) == (4, 5, 6)


def test_two_requests_of_one_claim_get_one_partition_together() -> None:
    choice = best([0, 2, 3, 4, 5, 6, 7], 2, 2)
    assert gpus_of(choice) == (4, 5, 6, 7)
    assert choice.score.bandwidth_gb_s == 450


def test_two_claims_get_a_partition_each_and_no_nvlink_joins_them() -> None:
    demands = (Demand(2, claim=0), Demand(2, claim=1))
    choice = Engine().best_two(hgx_box(), mask_of([0, 2, 3, 4, 5]), demands).best
    assert choice is not None
    assert choice.claims == (0b001100, 0b110000)
    assert choice.score.bandwidth_gb_s == 450
    assert links_in_words(hgx_box(), choice.mask, choice.claims) == "2 pairs NV18, 4 pairs SYS, 2 whole partitions"
    assert worst_link(hgx_box(), choice.mask, choice.claims) == "SYS"


def test_one_of_two_claims_gets_a_partition_where_there_is_but_one() -> None:
    demands = (Demand(2, claim=0), Demand(2, claim=1))
    choice = Engine().best_two(hgx_box(), mask_of([0, 2, 4, 5]), demands).best
    assert choice is not None
    assert choice.claims == (0b000101, 0b110000)
    words = links_in_words(hgx_box(), choice.mask, choice.claims)
    assert words == "1 pair NV18, 1 pair NODE, 4 pairs SYS, 1 of 2 whole partitions"


def test_who_has_gpus_of_the_claim_already_completes_their_partition() -> None:
    base = 0b1100
    choice = Engine().best_two(hgx_box(), 0b11110011, (Demand(2, base=base),), base).best
    assert choice is not None
    assert gpus_of(choice) == (0, 1)
    assert choice.claims == (0b1111,)


def test_what_links_the_new_gpus_is_the_partition_of_all_that_the_claim_has() -> None:
    demands = (Demand(3, TopologyPolicy(requirement=Requirement.NVLINK), base=0b1),)
    choice = Engine().best_two(hgx_box(), 0b11111110, demands, 0b1).best
    assert choice is not None
    assert gpus_of(choice) == (1, 2, 3)


def test_pairs_of_one_claim_compare_as_they_are_linked_though_it_has_gpus_already() -> None:
    """NVLinks that are worth nothing: all else is equal, and one GPU makes a partition whole."""
    topology = Topology(3, (Link(LinkLevel.SYS, 2), Link(LinkLevel.SYS, 2), Link(LinkLevel.SYS, 1)), (None,) * 3)
    gpus = {place: Gpu(f"GPU-{place}", place, nvlink_generation=4, pcie_generation=5) for place in range(3)}
    box = make_box(topology, gpus, [*(frozenset({gpu}) for gpu in range(3)), frozenset({1, 2})])
    policy = TopologyPolicy(link_bandwidth=LinkBandwidth(nvlink=0.0))
    choice = Engine().best_two(box, 0b101, (Demand(1, policy, base=0b10),), 0b10).best
    assert choice is not None
    assert (gpus_of(choice), choice.score.worst_level) == ((2,), 0)


def test_of_two_claims_that_cannot_both_have_a_partition_the_larger_one_has_it() -> None:
    levels = {(a, b): LinkLevel.PIX if b < 4 else LinkLevel.SYS for a, b in combinations(range(6), 2)}
    topology = Topology(6, tuple(Link(level, 18) for level in levels.values()), (0,) * 6)
    gpus = {place: Gpu(f"GPU-{place}", place, nvlink_generation=4, pcie_generation=5) for place in range(6)}
    alone = [frozenset({gpu}) for gpu in range(6)]
    box = make_box(topology, gpus, [*alone, frozenset({2, 3, 4, 5}), frozenset({4, 5})])
    choice = Engine().best_two(box, 0b111111, (Demand(4, claim=0), Demand(2, claim=1))).best
    assert choice is not None
    assert choice.claims == (0b111100, 0b000011)


def test_many_pairs_that_are_partitions_are_worth_what_they_are_one_by_one() -> None:
    """16 GPUs that are all unlike: all pairings are worked out at once."""
    chance = random.Random(5)
    topology, gpus = random_machine(chance, 16)
    gpus = {place: replace(gpu, pcie_width=(8, 16)[place % 2], nvlink_count=1 + place) for place, gpu in gpus.items()}
    pairs = [frozenset({place, place + 8}) for place in range(8)]
    box = make_box(topology, gpus, [*(frozenset({gpu}) for gpu in range(16)), *pairs])
    table = Engine().table(box)
    assert table.many_unlike
    for free in (mask_of(chance.sample(range(16), 9)) for _ in range(20)):
        assert table.free_worth(free, 2) == slow_pairs(table, free)


def slow_pairs(table: ClassTable, free: int) -> int:
    """The greatest worth of disjoint pairs: the lowest GPU with each other one, or left out."""
    if free.bit_count() < 2:
        return 0
    lowest = free & -free
    rest = free ^ lowest
    paired = (table.worth(lowest | 1 << other) + slow_pairs(table, rest ^ 1 << other) for other in ordinals_of(rest))
    return max(slow_pairs(table, rest) if free.bit_count() % 2 else 0, *paired)


def test_nvlink_is_required_of_whole_partitions_alone() -> None:
    engine, nvlink = Engine(), TopologyPolicy(requirement=Requirement.NVLINK)
    answer = engine.best_two(hgx_box(), mask_of([1, 2, 5]), (Demand(2, nvlink),))
    assert answer.best is None
    assert answer.shortfall == "whose free GPUs do not meet requirement NVLink"
    assert gpus_of(best([1, 2, 3, 5], 2, requirement=Requirement.NVLINK)) == (2, 3)
    # Two requests of one GPU each, and of two: what is activated is the claim's set.
    assert gpus_of(best([0, 1, 2, 3, 4], 2, 2, requirement=Requirement.NVLINK)) == (0, 1, 2, 3)
    refused = engine.best_two(hgx_box(), mask_of([0, 1, 4, 5]), (Demand(2, nvlink), Demand(2, nvlink)))
    assert refused.best is None, "two pairs that are partitions, but of one claim"


def test_a_gpu_that_is_no_partition_by_itself_only_comes_with_a_whole_one() -> None:
    box = hgx_box([gpus for gpus in HGX_PARTITIONS if gpus != frozenset({0})])
    assert gpus_of(best(range(8), 1, box=box)) != (0,)
    assert gpus_of(best([0, 1, 2], 2, box=box)) == (0, 1)
    answer = Engine().best_two(box, mask_of([0, 2, 3]), (Demand(3),))
    assert (answer.best, answer.shortfall) == (None, NO_PARTITION)


def test_links_that_nobody_counted_are_all_that_the_gpus_have() -> None:
    topology, gpus = hgx()
    unknown = replace(topology, pairs=tuple(replace(link, nvlinks=None) for link in topology.pairs))
    box = make_box(unknown, gpus, HGX_PARTITIONS)
    box.check()
    assert links_in_words(box, 0b11) == "1 pair NV18, a whole partition"
    assert box == hgx_box()


def test_a_node_without_partitions_is_what_it_was() -> None:
    topology, gpus = hgx()
    box = make_box(topology, gpus)
    assert (box.partitions, box.wired, box.linked(0b11)) == ((), None, box)
    assert links_in_words(box, 0b111) == "3 pairs NV18"
    assert box != hgx_box()


# Against the slow search.


def random_partitions(chance: random.Random, count: int) -> tuple[Gpus, ...]:
    """A tree of halves as on an HGX board, or any sets; some missing, some GPUs in none."""
    match chance.randrange(4):
        case 0:
            sizes = [size for size in (1, 2, 4, 8) if size <= count]
            found = [frozenset(range(at, at + size)) for size in sizes for at in range(0, count - size + 1, size)]
            return tuple(gpus for gpus in found if chance.random() < 0.85)
        case 1:
            found = [frozenset({gpu}) for gpu in range(count)]
            found += [frozenset(range(at, min(count, at + 3))) for at in range(0, count, 3)]
            return tuple(found)
        case _:
            sizes = [size for size in (2, 2, 3, 4, 6, count) if size <= count]
            several = [frozenset(chance.sample(range(count), chance.choice(sizes))) for _ in range(count)]
            alone = [frozenset({gpu}) for gpu in range(count) if chance.random() < 0.9]
            return tuple(dict.fromkeys((*alone, *several)))


def random_machine(chance: random.Random, count: int) -> tuple[Topology, dict[int, Gpu]]:
    """PCIe trees, or links of all kinds; NVLinks alike, or not."""
    tree, alike = chance.random() < 0.6, chance.random() < 0.6
    levels = [None, *LinkLevel]

    def link(a: int, b: int) -> Link:
        near = LinkLevel.PIX if a // 2 == b // 2 else LinkLevel.NODE if a // 4 == b // 4 else LinkLevel.SYS
        return Link(near if tree else chance.choice(levels), 18 if alike else chance.choice([0, 1, 2, 4, None]))

    pairs = tuple(link(a, b) for a, b in combinations(range(count), 2))
    numa = tuple(gpu // 4 if tree else chance.choice([None, 0, 1]) for gpu in range(count))
    nics = tuple(
        Nic(f"nic{place}", tuple(chance.choice(levels) for _ in range(count)), chance.choice([None, 0, 1]))
        for place in range(chance.choice([0, 0, 1]))
    )
    counts = [18] if chance.random() < 0.6 else [18, 4]
    gpus = {
        place: Gpu(f"GPU-{place}", place, nvlink_count=chance.choice(counts), nvlink_generation=4, pcie_generation=5)
        for place in range(count)
    }
    return Topology(count, pairs, numa, nics), gpus


def random_policy(chance: random.Random) -> TopologyPolicy:
    if chance.random() < 0.5:
        return TopologyPolicy()
    return TopologyPolicy(
        requirement=chance.choice([None, *Requirement]),
        min_bandwidth_gb_s=chance.choice([None, None, 30.0, 100.0]),
        numa_alignment=chance.choice([None, *NumaAlignment]),
        link_bandwidth=chance.choice([LinkBandwidth(), LinkBandwidth(), LinkBandwidth(nvlink=0.0)]),
    )


def slow_box(
    topology: Topology, gpus: dict[int, Gpu], partitions: Sequence[Gpus], policy: TopologyPolicy
) -> SlowPartitionedBox:
    """With the NVLinks that nobody counted as make_box fills them in."""
    joined = {pair for each in partitions for pair in combinations(sorted(each), 2)}
    pairs = tuple(
        replace(link, nvlinks=(link.nvlinks or min(gpus[a].nvlink_count or 18, gpus[b].nvlink_count or 18)))
        if (a, b) in joined
        else replace(link, nvlinks=0)
        for (a, b), link in zip(combinations(range(topology.gpu_count), 2), topology.pairs, strict=True)
    )
    return SlowPartitionedBox(replace(topology, pairs=pairs), gpus, policy, partitions=frozenset(partitions))


def random_claims(chance: random.Random, free: int, held: int, policy: TopologyPolicy) -> tuple[Demand, ...]:
    """One claim of one request mostly, else several of several."""
    demands = []
    bases = held
    for claim in range(chance.choice([1, 1, 1, 2, 2, 3])):
        base = bases & chance.getrandbits(8) if chance.random() < 0.6 else 0
        bases &= ~base
        for _ in range(chance.choice([1, 1, 2])):
            eligible = free & chance.getrandbits(8) if chance.random() < 0.2 else None
            demands.append(Demand(chance.choice([1, 1, 2, 2, 3, 4]), policy, eligible, claim, base))
    return tuple(demands)


def slow_claims(free: int, demands: Sequence[Demand]) -> list[SlowClaim]:
    claims = sorted({(demand.claim, demand.base) for demand in demands})
    return [
        SlowClaim(
            [
                (demand.count, frozenset(ordinals_of(free if demand.eligible is None else free & demand.eligible)))
                for demand in demands
                if demand.claim == number
            ],
            frozenset(ordinals_of(base)),
        )
        for number, base in claims
    ]


def assert_as_slow(chance: random.Random, most: int) -> bool:
    """Every choice comes in its place, with its score; returns whether there is one."""
    count = chance.randrange(2, most + 1)
    topology, gpus = random_machine(chance, count)
    partitions, policy = random_partitions(chance, count), random_policy(chance)
    if not partitions:
        return False
    free = chance.getrandbits(count) | chance.choice([0, chance.getrandbits(count)])
    held = ~free & (1 << count) - 1 if chance.random() < 0.3 else 0
    demands = random_claims(chance, free, held, policy)
    if sum(demand.count for demand in demands) > 6:
        return False
    slow = slow_box(topology, gpus, partitions, policy)
    box, engine = make_box(topology, gpus, partitions), Engine()
    box.check()
    expected = slow.choices(frozenset(ordinals_of(free)), slow_claims(free, demands), frozenset(ordinals_of(held)))
    found = list(engine.choices(box, free, demands, held))
    assert [choice.mask for choice in found] == [mask_of(one.chosen) for one in expected]
    for choice, one in list(zip(found, expected, strict=True))[:6]:
        assert_is(choice, one)
        assert all(
            not part & ~(free if demand.eligible is None else free & demand.eligible)
            and part.bit_count() == demand.count
            for part, demand in zip(choice.parts, demands, strict=True)
        )
        assert sum(choice.parts) == choice.mask
    answer = engine.best_two(box, free, demands, held)
    assert (answer.best, answer.second) == (*found[:2], None, None)[:2]
    assert bool(answer.shortfall) == (not found)
    engine.check()
    return bool(found)


def assert_is(choice: Choice, one: SlowSet) -> None:
    more_is_better = {"bandwidth_gb_s", "ring_gb_s", "pair_sum_gb_s", "worst_pair_gb_s"}
    for name, value in choice.score.parts():
        if name in one.parts:
            assert (-value if name in more_is_better else value) == one.parts[name], name
    if choice.claims:
        sets = [frozenset(ordinals_of(gpus)) for gpus in choice.claims]
        assert sorted(map(sorted, sets)) == sorted(map(sorted, one.sets)) or len(sets) == len(one.sets)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", sampled(range(120), 3, 24))
def test_whatever_the_partitions_every_choice_comes_in_its_place(seed: int) -> None:
    chance = random.Random(seed)
    most = 7 if seed < 24 else 8
    assert sum(assert_as_slow(chance, most) for _ in range(40)), "some have a choice"


def assert_best_of_sixteen(seed: int, rounds: int) -> None:
    """A tree of partitions, pairs alone, or any; more sets than are looked at one by one (BoxTables.many_unlike)."""
    chance = random.Random(seed)
    topology, gpus = random_machine(chance, 16)
    partitions = random_partitions(chance, 16)
    if seed % 2:
        sizes = (1, 2, 4, 8, 16) if seed % 4 == 1 else (1, 2)
        partitions = tuple(frozenset(range(at, at + size)) for size in sizes for at in range(0, 16, size))
    policy = TopologyPolicy()
    slow = slow_box(topology, gpus, partitions, policy)
    box, engine = make_box(topology, gpus, partitions), Engine()
    for _ in range(rounds):
        free = mask_of(chance.sample(range(16), chance.randrange(5, 10)))
        demands = (Demand(chance.randrange(1, 4)),)
        expected = slow.choices(frozenset(ordinals_of(free)), slow_claims(free, demands))
        answer = engine.best_two(box, free, demands)
        found = [choice.mask for choice in (answer.best, answer.second) if choice is not None]
        assert found == [mask_of(one.chosen) for one in expected[:2]]
        if answer.best is not None:
            assert_is(answer.best, expected[0])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", in_tiers(1, 3, 12))
@pytest.mark.parametrize("seed", range(4))
def test_sixteen_gpus_with_partitions_get_the_best_set(seed: int, rounds: int) -> None:
    assert_best_of_sixteen(seed, rounds)
