from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Topology
from dracaena.controller.allocation.bandwidth import collective_gb_s, minimum_cut, switched_gb_s
from dracaena.controller.allocation.box import Box, make_box, mask_of, ordinals_of
from dracaena.controller.allocation.candidates import can_enumerate, candidates_best_first
from dracaena.controller.allocation.requirement import meets
from dracaena.controller.allocation.scoring import BoxScores, Score
from dracaena.controller.allocation.splitting import Demand, split
from support.allocation import blocks, matrix
from support.machines import topologies

DGX_1V = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""


def box(topology: Topology, **traits: int) -> Box:
    gpus = {o: Gpu(uuid=f"GPU-{o}", index=o, **traits) for o in range(topology.gpu_count)}  # type: ignore[arg-type]  # ints only
    return make_box(topology, gpus)


VOLTA = box(matrix(DGX_1V), nvlink_count=6, nvlink_generation=2, pcie_generation=3, pcie_width=16)


@pytest.mark.parametrize(
    ("ordinals", "gb_s"),
    [((0,), 0), ((0, 3), 50), ((0, 1), 25), ((1, 2, 3), 75), ((0, 1, 2, 3), 100), (tuple(range(8)), 150), ((0, 5), 9)],
)
def test_bandwidth_on_a_dgx_1v_is_the_minimum_cut(ordinals: tuple[int, ...], gb_s: int) -> None:
    assert collective_gb_s(VOLTA, mask_of(ordinals)) == gb_s


def test_behind_nvswitches_the_count_of_a_pair_is_one_uplink_and_no_sum() -> None:
    hopper = box(blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, nvlink_generation=4)
    assert hopper.switched
    assert [collective_gb_s(hopper, mask_of(range(count))) for count in (2, 4, 8)] == [450, 450, 450]


def test_switches_are_recognised_without_the_count_of_a_gpu() -> None:
    assert box(blocks(8, inside="NV12", outside="NV12")).switched
    assert not box(blocks(4, inside="NV4", outside="NV4")).switched
    assert not VOLTA.switched


def test_a_mesh_of_four_counts_all_links() -> None:
    ampere = box(blocks(4, inside="NV4", outside="NV4"), nvlink_count=12, nvlink_generation=3)
    assert collective_gb_s(ampere, 0b1111) == 12 * 25


@pytest.mark.parametrize(("level", "gb_s"), [("PIX", 27), ("PXB", 27), ("PHB", 25), ("NODE", 23), ("SYS", 18)])
def test_pcie_is_worth_its_worst_level(level: str, gb_s: int) -> None:
    four = box(blocks(2, 2, inside="PIX", outside=level), pcie_generation=4, pcie_width=16)
    assert collective_gb_s(four, 0b1111) == gb_s


def test_half_the_lanes_are_worth_half() -> None:
    assert collective_gb_s(box(blocks(2, inside="PIX", outside="PIX"), pcie_generation=4, pcie_width=8), 0b11) == 13


@given(st.integers(2, 6).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n)))
def test_the_minimum_cut_is_the_least_of_all_cuts(values: list[int]) -> None:
    size = int(len(values) ** 0.5)
    weights = [[values[min(a, b) * size + max(a, b)] if a != b else 0 for b in range(size)] for a in range(size)]
    cuts = [
        sum(weights[a][b] for a in side for b in range(size) if b not in side)
        for count in range(1, size)
        for side in combinations(range(size), count)
    ]
    assert minimum_cut(weights) == min(cuts)


def slow_groups_gb_s(made: Box, free: int, size: int) -> int:
    """All ways to take disjoint groups, one after the other."""
    best = 0
    for chosen in combinations(ordinals_of(free), size):
        group = mask_of(chosen)
        best = max(best, collective_gb_s(made, group) + slow_groups_gb_s(made, free & ~group, size))
    return best


@settings(max_examples=60, deadline=None)
@given(topologies(6), st.integers(0, 63), st.sampled_from([2, 4]))
def test_the_worth_of_what_is_free_is_the_best_of_all_groupings(topology: Topology, free: int, size: int) -> None:
    scores = BoxScores(box(topology))
    free &= (1 << topology.gpu_count) - 1
    assert scores.groups_gb_s(free, size) == slow_groups_gb_s(scores.box, free, size)


@st.composite
def switched_boxes(draw: st.DrawFn) -> Box:
    """4 to 6 GPUs that NVSwitches join, with any levels; mostly with equal uplinks, at times with a narrower one."""
    count = draw(st.integers(4, 6))
    nvlinks = draw(st.integers(1, 18))
    links = st.builds(Link, st.none() | st.sampled_from(LinkLevel), st.sampled_from([nvlinks] * 9 + [1]))
    pairs = count * (count - 1) // 2
    topology = Topology(
        gpu_count=count,
        pairs=tuple(draw(st.lists(links, min_size=pairs, max_size=pairs))),
        numa_nodes=tuple(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))),
    )
    pcie = st.tuples(st.integers(1, 6), st.sampled_from([8, 16]))
    same = draw(st.none() | pcie)
    generation, width = zip(*(same or draw(pcie) for _ in range(count)), strict=True)
    gpus = {
        o: Gpu(uuid=f"GPU-{o}", index=o, nvlink_count=nvlinks, pcie_generation=generation[o], pcie_width=width[o])
        for o in range(count)
    }
    return make_box(topology, gpus)


@settings(max_examples=150, deadline=None)
@given(switched_boxes(), st.integers(0, 63))
def test_behind_nvswitches_bandwidths_and_groupings_are_exact_whatever_the_levels(made: Box, free: int) -> None:
    assert made.switched
    scores = BoxScores(made)
    free &= (1 << made.topology.gpu_count) - 1
    assert scores.bandwidth_gb_s(free) == collective_gb_s(made, free)
    for size in (2, 4):
        assert scores.groups_gb_s(free, size) == slow_groups_gb_s(made, free, size)


def test_behind_equal_nvswitches_the_levels_cost_no_search() -> None:
    two_boards = [Gpu(uuid=f"GPU-{o}", index=o, nvlink_count=6, nvlink_generation=2) for o in range(16)]
    links = matrix(
        "\n".join(" ".join("X" if a == b else "NV6" for b in range(16)) for a in range(16)), [0] * 8 + [1] * 8
    )
    made = make_box(links, dict(enumerate(two_boards)))
    assert len({made.topology.level_or_assumed(0, peer) for peer in range(1, 16)}) == 2
    assert switched_gb_s(made) == 150
    assert BoxScores(made).groups_gb_s(0xFFFF, 4) == 4 * 150


def test_a_pair_that_is_better_over_pcie_makes_a_box_of_nvswitches_one_of_many_figures() -> None:
    slow = box(blocks(2, 2, inside="NV1", outside="NV1"), nvlink_count=1, nvlink_generation=1, pcie_generation=5)
    assert slow.switched
    assert switched_gb_s(slow) is None


def test_breaking_a_pair_is_damage_and_taking_a_single_gpu_is_none() -> None:
    scores = BoxScores(box(blocks(2, 1, inside="NV4", outside="SYS")))
    assert scores.score(0b111, 0b100).damage_gb_s == (0, 0, 0)
    assert scores.score(0b111, 0b001).damage_gb_s == (0, 0, 100 - 9)


def test_the_parts_count_in_their_order() -> None:
    best = Score(100, (0, 0, 0), 10, 1, 100)
    worse = [
        Score(99, (0, 0, 0), 0, 0, 900),
        Score(100, (1, 0, 0), 0, 0, 900),
        Score(100, (0, 0, 1), 0, 0, 900),
        Score(100, (0, 0, 0), 20, 0, 900),
        Score(100, (0, 0, 0), 10, 2, 900),
        Score(100, (0, 0, 0), 10, 1, 99),
    ]
    assert all(best > other for other in worse)
    assert worse == sorted(worse)
    names = [best.first_difference(other) for other in worse]
    assert names == [
        "bandwidth_gb_s", "damage_8_gb_s", "damage_2_gb_s", "worst_level", "numa_nodes", "pair_sum_gb_s",
    ]  # fmt: skip
    assert best.first_difference(best) is None


@given(topologies(7), st.integers(0, 127), st.integers(1, 4))
def test_candidates_come_best_first_each_once_and_ties_by_ordinals(topology: Topology, free: int, count: int) -> None:
    scores = BoxScores(box(topology))
    free &= (1 << topology.gpu_count) - 1
    found = list(candidates_best_first(scores, free, count))
    everything = [mask_of(chosen) for chosen in combinations(ordinals_of(free), count)]
    assert sorted(everything) == sorted(candidate.mask for candidate in found)
    by_hand = sorted(everything, key=lambda mask: (scores.score(free, mask).rank(), ordinals_of(mask)))
    assert [candidate.mask for candidate in found] == by_hand


def test_sixteen_gpus_can_be_compared_whatever_the_count() -> None:
    assert all(can_enumerate(0xFFFF, count) for count in range(17))
    assert not can_enumerate(0x1FFFF, 8)
    assert can_enumerate(0x1FFFF, 2)


def pair(level: LinkLevel | None, nvlinks: int | None) -> Box:
    return box(Topology(gpu_count=2, pairs=(Link(level, nvlinks),), numa_nodes=(0, 0)))


@pytest.mark.parametrize(
    ("level", "nvlinks", "met"),
    [
        (LinkLevel.PSB, 0, "PIX PXB PHB NODE"),
        (LinkLevel.PIX, 0, "PIX PXB PHB NODE"),
        (LinkLevel.PXB, 0, "PXB PHB NODE"),
        (LinkLevel.PHB, 0, "PHB NODE"),
        (LinkLevel.NODE, 0, "NODE"),
        (LinkLevel.SYS, 0, ""),
        (LinkLevel.PIX, None, "PIX PXB PHB NODE"),
        (None, 0, ""),  # equal NUMA nodes let us assume NODE: no ground for a promise
        (None, None, ""),
        (None, 4, "NVLink PIX PXB PHB NODE"),
        (LinkLevel.SYS, 4, "NVLink PIX PXB PHB NODE"),
    ],
)
def test_what_a_pair_meets(level: LinkLevel | None, nvlinks: int | None, met: str) -> None:
    found = [r.value for r in Requirement if r is not Requirement.BEST_EFFORT and meets(pair(level, nvlinks), 0b11, r)]
    assert found == met.split()
    assert meets(pair(level, nvlinks), 0b11, Requirement.BEST_EFFORT)


@pytest.mark.parametrize("requirement", list(Requirement))
def test_one_gpu_alone_meets_everything(requirement: Requirement) -> None:
    assert meets(pair(None, None), 0b10, requirement)


def test_nvlink_needs_the_chosen_gpus_alone_to_be_connected() -> None:
    chain = box(matrix("X NV1 SYS\nNV1 X NV1\nSYS NV1 X"))
    assert meets(chain, 0b111, Requirement.NVLINK)
    assert not meets(chain, 0b101, Requirement.NVLINK)


def test_pairs_are_not_torn_apart_when_a_set_is_split() -> None:
    bridged = BoxScores(box(matrix("X SYS NV4 SYS\nSYS X SYS NV4\nNV4 SYS X SYS\nSYS NV4 SYS X")))
    assert split(bridged, 0b1111, [Demand(2), Demand(2)]) == (0b0101, 0b1010)
    assert split(bridged, 0b1111, [Demand(1), Demand(2), Demand(1)]) == (0b0001, 0b1010, 0b0100)


def test_a_set_that_cannot_be_split_as_required_is_none() -> None:
    bridged = BoxScores(box(matrix("X SYS NV4 SYS\nSYS X SYS NV4\nNV4 SYS X SYS\nSYS NV4 SYS X")))
    assert split(bridged, 0b1111, [Demand(3, Requirement.NVLINK), Demand(1)]) is None
    assert split(bridged, 0b1111, [Demand(2, Requirement.NVLINK), Demand(2)]) == (0b0101, 0b1010)


@settings(max_examples=60, deadline=None)
@given(topologies(6), st.lists(st.tuples(st.integers(1, 3), st.sampled_from(Requirement)), min_size=1, max_size=3))
def test_a_split_is_as_good_as_the_best_of_all_splits(
    topology: Topology, wanted: list[tuple[int, Requirement]]
) -> None:
    demands = [Demand(count, requirement) for count, requirement in wanted]
    total = sum(demand.count for demand in demands)
    if total > topology.gpu_count:
        demands, total = [Demand(topology.gpu_count)] if topology.gpu_count else [], topology.gpu_count
    scores = BoxScores(box(topology))
    found = split(scores, mask_of(range(total)), demands)
    totals = all_split_totals(scores, mask_of(range(total)), demands)
    if found is None:
        assert not totals
    else:
        assert [part.bit_count() for part in found] == [demand.count for demand in demands]
        assert mask_of(o for part in found for o in ordinals_of(part)) == mask_of(range(total))
        assert sum(map(scores.bandwidth_gb_s, found)) == max(totals)


def all_split_totals(scores: BoxScores, left: int, demands: list[Demand]) -> list[int]:
    if not demands:
        return [0]
    parts = [mask_of(chosen) for chosen in combinations(ordinals_of(left), demands[0].count)]
    return [
        scores.bandwidth_gb_s(part) + rest
        for part in parts
        if meets(scores.box, part, demands[0].requirement)
        for rest in all_split_totals(scores, left & ~part, demands[1:])
    ]
