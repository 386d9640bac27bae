from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Sized
from itertools import combinations, islice

import pytest

from dracaena.api.config.v1alpha1 import (
    LinkBandwidth,
    NicAlignment,
    NumaAlignment,
    Objective,
    Requirement,
    TopologyPolicy,
)
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.score import choices as module
from dracaena.controller.allocation.score import class_table
from dracaena.controller.allocation.score.box import Box, make_rule, ordinals_of, rule_words
from dracaena.controller.allocation.score.choices import BestTwo, Demand, Engine, link_bandwidth_of
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.score.order import Prices
from support.allocation import blocks, matrix
from support.recorded import recorded_machines

MACHINES = {machine.name: machine for machine in recorded_machines()}
# Two NVLink pairs, 0-2 and 1-3, across two sockets.
BRIDGED = "X SYS NV4 SYS\nSYS X SYS NV4\nNV4 SYS X SYS\nSYS NV4 SYS X"


def box(topology: Topology) -> Box:
    return make_box(topology, {o: Gpu(f"GPU-{o}", o) for o in range(topology.gpu_count)})


def recorded(name: str) -> Box:
    machine = MACHINES[name]
    return make_box(machine.topology, dict(enumerate(machine.gpus)))


def best(made: Box, free: int, *demands: Demand, held: int = 0) -> tuple[int, ...] | None:
    answer = Engine().best_two(made, free, demands, held)
    return None if answer.best is None else ordinals_of(answer.best.mask)


def parts(answer: BestTwo) -> tuple[tuple[int, ...], ...]:
    assert answer.best is not None
    return tuple(map(ordinals_of, answer.best.parts))


def test_single_gpus_finish_broken_pairs_first() -> None:
    made = box(matrix(BRIDGED))
    assert best(made, 0b1111, Demand(1)) == (0,)
    assert best(made, 0b1110, Demand(1)) == (2,)
    assert best(made, 0b1010, Demand(1)) == (1,)


def test_what_is_left_keeps_its_pair() -> None:
    """GPU 6 is in use: of the sets of five that cross the sockets anyway, one that leaves a pair whole is taken."""
    topology = box(blocks(2, 2, 2, 2, inside="PIX", outside="SYS"))
    found = best(topology, 0b10111111, Demand(5))
    assert found is not None
    left = set(range(8)) - {6} - set(found)
    assert left in ({0, 1}, {2, 3}, {4, 5})


def test_levels_of_equal_bandwidth_are_distinguished_when_a_single_gpu_is_taken() -> None:
    """PIX and PXB measure alike, but 0 and 1 are the better pair to leave."""
    assert best(recorded("a5000-pix-pxb"), 0b0111, Demand(1)) == (2,)


def test_of_equal_bandwidth_and_damage_the_nearer_pair_is_taken_before_the_one_that_leaves_it() -> None:
    """0-1 share a switch, 4-6 only a host bridge's switches: both measure alike, and both leave one such pair."""
    assert best(recorded("a5000-pix-pxb"), 0b1010111, Demand(2)) == (0, 1)


def test_on_a_dgx_1v_the_first_pair_leaves_a_quad_and_three_double_links() -> None:
    answer = Engine().best_two(recorded("dgx-1v"), 0xFF, (Demand(2),))
    assert answer.best is not None
    assert answer.best.score.bandwidth_gb_s == 50
    assert answer.best.score.damage_gb_s == (150, 100, 50)


def test_sums_are_added_before_they_are_rounded() -> None:
    """Six pairs of 56.25 GB/s are 337 GB/s; rounded one by one they would be 336."""
    meshed = "X NV4 NV4 NV4\nNV4 X NV4 NV4\nNV4 NV4 X NV4\nNV4 NV4 NV4 X"
    gpus = {o: Gpu(f"GPU-{o}", o, product_name="NVIDIA A40", nvlink_count=12) for o in range(4)}
    answer = Engine().best_two(make_box(matrix(meshed), gpus), 0b1111, (Demand(4),))
    assert answer.best is not None
    score = answer.best.score
    assert (score.bandwidth_gb_s, score.pair_sum_gb_s, score.worst_pair_gb_s) == (168, 337, 56)
    assert score.damage_gb_s == (0, 168, 112)


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (0b00011011, 3, (0, 1, 3)),  # not 0, 3, 4: NV2, NV2 and back across sockets
        (0b01011101, 4, (0, 2, 4, 6)),  # not 0, 2, 3, 4
        (0b00111111, 4, (0, 1, 2, 3)),
    ],
)
def test_of_equal_bandwidth_a_ring_of_nvlinks_comes_before_a_chain(
    free: int, count: int, expected: tuple[int, ...]
) -> None:
    assert best(recorded("dgx-1v"), free, Demand(count)) == expected


def test_what_stays_is_harmed_less_when_its_group_keeps_a_ring() -> None:
    """Without GPU 0 a ring of 4 stays, without GPU 4 a chain of the same B."""
    rows = ["X NV2 SYS SYS SYS", "NV2 X NV2 SYS NV1", "SYS NV2 X NV2 SYS", "SYS SYS NV2 X NV1", "SYS NV1 SYS NV1 X"]
    made = box(matrix("\n".join(rows)))
    ring, chain = Engine().score(made, 0b11111, 0b00001), Engine().score(made, 0b11111, 0b10000)
    assert (ring.damage_gb_s[1], chain.damage_gb_s[1]) == (0, 0)
    assert (ring.damage_ring_gb_s, chain.damage_ring_gb_s) == (0, 25 - 9)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (TopologyPolicy(), (0, 2)),
        (TopologyPolicy(requirement=Requirement.NVLINK), (0, 2)),
        (TopologyPolicy(requirement=Requirement.PIX), (0, 2)),
        (TopologyPolicy(min_bandwidth_gb_s=100), (0, 2)),
        (TopologyPolicy(min_bandwidth_gb_s=100.1), None),
        (TopologyPolicy(min_bandwidth_gb_s=100.1, link_bandwidth=LinkBandwidth(nvlink=30)), (0, 2)),
        (TopologyPolicy(link_bandwidth=LinkBandwidth(nvlink=0), min_bandwidth_gb_s=20), None),
    ],
)
def test_what_a_policy_demands_of_two_gpus(policy: TopologyPolicy, expected: tuple[int, ...] | None) -> None:
    assert best(box(matrix(BRIDGED)), 0b1111, Demand(2, policy)) == expected


def test_numa_alignment_forbids_the_fastest_pair_only_when_it_is_required() -> None:
    made = box(matrix("X SYS NV4 SYS\nSYS X SYS SYS\nNV4 SYS X NODE\nSYS SYS NODE X", [0, 0, 1, 1]))
    assert best(made, 0b1111, Demand(2)) == (0, 2)
    required = TopologyPolicy(numa_alignment=NumaAlignment.REQUIRED)
    assert best(made, 0b1111, Demand(2, required)) == (2, 3)
    assert best(made, 0b1111, Demand(3, required)) is None
    assert best(made, 0b0001, Demand(1, required)) == (0,)
    unknown = box(matrix("X PIX\nPIX X"))
    assert best(unknown, 0b11, Demand(2, required)) is None
    assert best(unknown, 0b11, Demand(1, required)) == (0,)


def with_nics(*rows: Sequence[LinkLevel | None]) -> Box:
    count = len(rows[0])
    pairs = (Link(LinkLevel.SYS, 0),) * (count * (count - 1) // 2)
    nics = tuple(Nic(f"nic{place}", tuple(row)) for place, row in enumerate(rows))
    return box(Topology(count, pairs, (None,) * count, nics))


def test_gpus_near_a_nic_are_preferred_required_or_not_looked_at() -> None:
    made = with_nics((LinkLevel.SYS, None, LinkLevel.PIX, LinkLevel.PXB))
    assert best(made, 0b1111, Demand(2)) == (2, 3)
    assert best(made, 0b1111, Demand(2, TopologyPolicy(nic_alignment=NicAlignment.IGNORED))) == (0, 1)
    assert best(made, 0b1111, Demand(2, TopologyPolicy(nic_alignment=NicAlignment.PXB))) == (2, 3)
    assert best(made, 0b1111, Demand(1, TopologyPolicy(nic_alignment=NicAlignment.PIX))) == (2,)
    assert best(made, 0b1011, Demand(1, TopologyPolicy(nic_alignment=NicAlignment.PIX))) is None


def test_a_chain_of_nvlinks_is_one_group_and_its_ends_alone_are_not() -> None:
    chain = box(matrix("X NV1 SYS\nNV1 X NV1\nSYS NV1 X"))
    policy = TopologyPolicy(requirement=Requirement.NVLINK)
    assert best(chain, 0b111, Demand(3, policy)) == (0, 1, 2)
    assert best(chain, 0b101, Demand(2, policy)) is None


@pytest.mark.parametrize(
    ("level", "nvlinks", "met"),
    [
        (LinkLevel.PSB, 0, "PIX PXB PHB NODE"),
        (LinkLevel.PXB, 0, "PXB PHB NODE"),
        (LinkLevel.SYS, 0, ""),
        (LinkLevel.PIX, None, "PIX PXB PHB NODE"),
        (None, 0, ""),  # equal NUMA nodes let us assume NODE: no ground for a promise
        (None, None, ""),
        (None, 4, "NVLink PIX PXB PHB NODE"),
        (LinkLevel.SYS, 4, "NVLink PIX PXB PHB NODE"),
    ],
)
def test_what_a_pair_meets(level: LinkLevel | None, nvlinks: int | None, met: str) -> None:
    made = box(Topology(gpu_count=2, pairs=(Link(level, nvlinks),), numa_nodes=(0, 0)))
    table = Engine().table(made)
    wanted = [requirement for requirement in Requirement if requirement is not Requirement.BEST_EFFORT]
    found = [r.value for r in wanted if make_rule(table, TopologyPolicy(requirement=r), 0b11).allows(0b11)]
    assert found == met.split()
    assert all(make_rule(table, TopologyPolicy(requirement=r), 0b11).allows(0b10) for r in wanted)


def test_requests_that_may_have_different_gpus_get_a_set_that_serves_both() -> None:
    made = box(matrix(BRIDGED))
    answer = Engine().best_two(made, 0b1111, (Demand(1, eligible=0b1000), Demand(1)))
    assert parts(answer) == ((3,), (1,))
    assert best(made, 0b1111, Demand(1, eligible=0b0001), Demand(1, eligible=0b1010)) == (0, 1)


def test_a_set_is_dealt_out_without_tearing_pairs_apart() -> None:
    made = box(matrix(BRIDGED))
    assert parts(Engine().best_two(made, 0b1111, (Demand(2), Demand(2)))) == ((0, 2), (1, 3))
    assert parts(Engine().best_two(made, 0b1111, (Demand(1), Demand(2), Demand(1)))) == ((0,), (1, 3), (2,))


def test_the_other_ways_to_deal_a_set_out_come_best_first() -> None:
    made = box(matrix(BRIDGED))
    demands = (Demand(2), Demand(2))
    ways = list(Engine().splits(made, 0b1111, 0b1111, demands))
    assert len(ways) == 6
    assert {frozenset(way) for way in ways[:2]} == {frozenset({0b0101, 0b1010})}
    assert ways[0] == (0b0101, 0b1010)


def test_gpus_that_the_pod_holds_pull_the_next_ones_near() -> None:
    made = box(matrix(BRIDGED))
    assert best(made, 0b1011, Demand(1), held=0b0100) == (0,)
    answer = Engine().best_two(made, 0b1011, (Demand(1),), 0b0100)
    assert answer.best is not None
    assert (answer.best.together, answer.best.score.bandwidth_gb_s) == (0b0101, 100)


def test_every_other_set_follows_each_once() -> None:
    found = [choice.mask for choice in Engine().choices(recorded("hgx-h100"), 0xFF, (Demand(4),))]
    assert len(found) == len(set(found)) == 70
    assert [ordinals_of(mask) for mask in islice(found, 2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize(
    ("demands", "text"),
    [
        ((Demand(3),), "with fewer than 3 free GPUs"),
        ((Demand(1), Demand(2)), "with fewer than 3 free GPUs"),
        (
            (Demand(1, eligible=0b0001), Demand(1, eligible=0b0001)),
            "with 1 of 2 free GPUs that the requests accept",
        ),
        (
            (Demand(2, TopologyPolicy(requirement=Requirement.NVLINK, min_bandwidth_gb_s=7.5)),),
            "whose free GPUs do not meet requirement NVLink, minBandwidth 7.5",
        ),
    ],
)
def test_why_there_is_no_choice(demands: tuple[Demand, ...], text: str) -> None:
    answer = Engine().best_two(box(matrix(BRIDGED)), 0b0011, demands)
    assert answer.best is None
    assert answer.shortfall == text


def test_without_a_free_gpu_there_is_no_choice_and_for_no_gpus_none_is_needed() -> None:
    made = box(matrix(BRIDGED))
    answer = Engine().best_two(made, 0, (Demand(1),))
    assert answer.shortfall == "without a free GPU"
    assert list(Engine().choices(made, 0b1111, ())) == []


def test_a_policy_in_words_is_what_its_author_wrote() -> None:
    policy = TopologyPolicy(
        requirement=Requirement.PXB,
        min_bandwidth_gb_s=14.0625,
        numa_alignment=NumaAlignment.REQUIRED,
        nic_alignment=NicAlignment.PHB,
    )
    words = "requirement PXB, minBandwidth 14.0625, numaAlignment Required, nicAlignment PHB"
    assert rule_words(policy) == words
    assert rule_words(TopologyPolicy(objective=Objective.PACK)) == ""


def test_figures_of_the_first_request_that_names_them_hold_for_the_pod() -> None:
    policies = [
        TopologyPolicy(),
        TopologyPolicy(link_bandwidth=LinkBandwidth(sys=1)),
        TopologyPolicy(link_bandwidth=LinkBandwidth(sys=2, nvlink=0)),
    ]
    assert link_bandwidth_of(policies) == LinkBandwidth(sys=1, nvlink=0)


def test_what_is_remembered_stays_within_its_bounds_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb"]
    states = [(name, free, count) for name in names for free in (0xFF, 0x7E, 0xB5) for count in (1, 2, 4)]
    fresh = [Engine().best_two(recorded(name), free, (Demand(count),)) for name, free, count in states]
    monkeypatch.setattr(class_table, "MAX_ENTRIES", 8)
    monkeypatch.setattr(module, "MAX_TABLES", 2)
    monkeypatch.setattr(module, "MAX_ANSWERS", 5)
    engine = Engine()
    for _ in range(2):
        found = [engine.best_two(recorded(name), free, (Demand(count),)) for name, free, count in states]
        assert found == fresh
    engine.check()
    for name in names:
        table = engine.table(recorded(name))
        memos: tuple[Sized, ...] = (
            table._rates,
            table._worths,
            table._left_known,
            table._pair_ranks,
            *table._totals.values(),
        )
        assert all(len(memo) <= 8 for memo in memos)


def test_too_many_unlike_gpus_get_good_sets_instead_of_none() -> None:
    """24 GPUs that no two can change places: 12 pairs of different bandwidth."""
    rows = [[LinkLevel.SYS] * 24 for _ in range(24)]
    pairs = []
    for a, b in combinations(range(24), 2):
        pairs.append(Link(rows[a][b], 1 + a // 2 if a // 2 == b // 2 else 0))
    made = make_box(
        Topology(24, tuple(pairs), (None,) * 24), {o: Gpu(f"{o}", o, pcie_width=8) for o in range(0, 24, 2)}
    )
    everything = (1 << 24) - 1
    assert not Engine().table(made).comparable
    assert best(made, everything, Demand(2)) == (22, 23)
    found = Engine().best_two(made, everything, (Demand(8),))
    assert found.best is not None
    assert found.best.mask.bit_count() == 8
    assert best(made, everything, Demand(1)) is not None


def test_what_is_usual_is_the_mean_of_the_ideals_of_all_nodes() -> None:
    engine = Engine()
    assert engine.priced((16, 16, 16), Counter()) is None
    nodes = Counter({recorded("hgx-h100"): 1, recorded("h100-pcie-bridged-numa-3-5"): 3, box(matrix("X")): 0})
    assert engine.priced((1, 2, 3), nodes) == Prices((1, 2, 3), ((450 + 27) // 4, (450 + 33) // 4, (450 + 900) // 4))
    assert engine.priced((0, 0, 0), Counter({box(matrix("X")): 1})) == Prices((0, 0, 0), (1, 1, 1))


def test_only_the_most_frequent_kinds_of_nodes_make_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TABLES", 1)
    nodes = Counter({recorded("hgx-h100"): 1, recorded("h100-pcie-bridged-numa-3-5"): 2})
    assert Engine().priced((1, 2, 3), nodes) == Prices((1, 2, 3), (9, 11, 300))
