"""The choice against a slow, obvious search: on recorded machines for all states, on random ones for all policies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.config.v1alpha1 import (
    LinkBandwidth,
    NicAlignment,
    NodeStrategy,
    NumaAlignment,
    Objective,
    Requirement,
    TopologyPolicy,
)
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.class_table import ClassTable, whole_gb_s, whole_ring_gb_s, whole_steps
from dracaena.controller.allocation.score.collective import collective, make_fabric
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.score.order import Prices, Score
from support.recorded import recorded_machines
from support.seeds import in_tiers, sampled
from support.slow_choice import SlowBox

MACHINES = {machine.name: machine for machine in recorded_machines()}
SMALL = sorted(name for name, machine in MACHINES.items() if 1 <= len(machine.gpus) <= 8)
LARGE = sorted(name for name, machine in MACHINES.items() if len(machine.gpus) > 8)


@cache
def slow_box(name: str, policy: TopologyPolicy) -> SlowBox:
    machine = MACHINES[name]
    return SlowBox(machine.topology, dict(enumerate(machine.gpus)), policy)


def box_of(machine: Machine) -> Box:
    return make_box(machine.topology, dict(enumerate(machine.gpus)))


def states(gpu_count: int) -> Iterator[tuple[int, int]]:
    """Every free set with every size that it can serve."""
    for free in range(1, 1 << gpu_count):
        for count in range(1, free.bit_count() + 1):
            yield free, count


def shown(choice: Choice, parts: dict[str, int]) -> dict[str, int]:
    """The parts of a choice in the form of the slow search: less is better."""
    more_is_better = {"bandwidth_gb_s", "ring_gb_s", "pair_sum_gb_s", "worst_pair_gb_s"}
    return {name: -value if name in more_is_better else value for name, value in choice.score.parts() if name in parts}


def assert_best(name: str, policy: TopologyPolicy, engine: Engine, free: int, count: int) -> None:
    """The first two choices are those of the slow search, and so is every part of their scores."""
    slow = slow_box(name, policy)
    gpus = frozenset(ordinals_of(free))
    expected = slow.best_first(gpus, [(count, gpus)])
    found = engine.best_two(box_of(MACHINES[name]), free, (Demand(count, policy),))
    pair = [choice for choice in (found.best, found.second) if choice is not None]
    assert [choice.mask for choice in pair] == [mask_of(chosen) for _, chosen in expected[:2]]
    for choice in pair:
        parts = slow.parts(gpus, frozenset(ordinals_of(choice.mask)))
        assert shown(choice, parts) == parts
        assert choice.score.free_gpus == len(gpus)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SMALL)
def test_on_every_recorded_machine_the_choice_is_the_best_in_every_state(name: str) -> None:
    engine = Engine()
    for free, count in states(len(MACHINES[name].gpus)):
        assert_best(name, TopologyPolicy(), engine, free, count)
    engine.table(box_of(MACHINES[name])).check()


@pytest.mark.parametrize("size", in_tiers(6, 100))
@pytest.mark.parametrize("name", SMALL)
def test_on_every_recorded_machine_the_choice_is_the_best_in_a_sample_of_states(name: str, size: int) -> None:
    every = list(states(len(MACHINES[name].gpus)))
    engine = Engine()
    for free, count in random.Random(name).sample(every, min(size, len(every))):
        assert_best(name, TopologyPolicy(), engine, free, count)


def test_there_are_machines_of_each_kind() -> None:
    assert {"dgx-1v", "hgx-h100", "h100-pcie-bridged-numa-3-5", "7-gpu-box", "rtx4090-all-sys"} <= set(SMALL)
    assert LARGE == ["dgx-2"]


# Machines that hypothesis makes: contradictory, unknown and mixed links, all policies, several requests.

LEVELS_OR_UNKNOWN = st.none() | st.sampled_from(LinkLevel)
FIGURES = st.none() | st.sampled_from([0.0, 3.5, 14.0625, 30.0])


@st.composite
def policies(draw: st.DrawFn) -> TopologyPolicy:
    figures = draw(st.just(LinkBandwidth()) | st.builds(LinkBandwidth, FIGURES, FIGURES, FIGURES, FIGURES, FIGURES))
    return TopologyPolicy(
        requirement=draw(st.none() | st.sampled_from(Requirement)),
        min_bandwidth_gb_s=draw(st.none() | st.sampled_from([1.0, 9.4, 14.0625, 50.0])),
        objective=draw(st.none() | st.sampled_from(Objective)),
        node_strategy=draw(st.none() | st.sampled_from(NodeStrategy)),
        numa_alignment=draw(st.none() | st.sampled_from(NumaAlignment)),
        nic_alignment=draw(st.none() | st.sampled_from(NicAlignment)),
        link_bandwidth=figures,
    )


PRODUCTS = st.sampled_from([None, "NVIDIA A40", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090 Ti"])
GPUS = st.builds(
    Gpu,
    uuid=st.just("GPU-0"),
    index=st.just(0),
    product_name=PRODUCTS,
    architecture=st.sampled_from([None, "Volta", "Ampere", "Ada"]),
    nvlink_count=st.sampled_from([None, 0, 4, 12, 18]),
    nvlink_generation=st.sampled_from([None, 1, 2, 4, 9]),
    pcie_generation=st.sampled_from([None, 3, 4, 7]),
    pcie_width=st.sampled_from([None, 16, 8, 0]),
)
LINKS = st.builds(Link, LEVELS_OR_UNKNOWN, st.sampled_from([None, 0, 0, 0, 1, 2, 4]))


@st.composite
def mixed_machines(draw: st.DrawFn, largest: int) -> Machine:
    """1 to `largest` GPUs, alike or of all kinds; links that may contradict each other or be unknown."""
    count = draw(st.integers(1, largest))
    one = draw(st.none() | GPUS)
    link = draw(st.just(LINKS) | st.lists(LINKS, min_size=1, max_size=2).map(st.sampled_from))
    pairs = count * (count - 1) // 2
    numa = st.sampled_from([None, 0, 0, 1, 3])
    nics = [
        Nic(
            f"nic{place}",
            tuple(draw(st.lists(LEVELS_OR_UNKNOWN, min_size=count, max_size=count))),
            draw(st.sampled_from([None, 0, 1])),
        )
        for place in range(draw(st.integers(0, 2)))
    ]
    topology = Topology(
        gpu_count=count,
        pairs=tuple(draw(st.lists(link, min_size=pairs, max_size=pairs))),
        numa_nodes=tuple(draw(st.lists(numa, min_size=count, max_size=count))),
        nics=tuple(nics),
    )
    gpus = tuple(replace(one or draw(GPUS), index=place, uuid=f"GPU-{place}") for place in range(count))
    return Machine("mixed", gpus, topology)


@st.composite
def questions(draw: st.DrawFn, largest: int) -> tuple[Machine, TopologyPolicy, int, int, tuple[Demand, ...]]:
    """A machine, one policy for all requests, free GPUs, held GPUs, and one to three requests."""
    machine = draw(mixed_machines(largest))
    everything = (1 << len(machine.gpus)) - 1
    policy = draw(policies())
    free = draw(st.integers(0, everything))
    beside = draw(st.sampled_from([0, 0, everything])) & draw(st.integers(0, everything)) & ~free
    demands = tuple(
        Demand(draw(st.integers(1, 3)), policy, draw(st.sampled_from([None, None, draw(st.integers(0, everything))])))
        for _ in range(draw(st.integers(1, 3)))
    )
    return machine, policy, free, beside, demands


@given(questions(6))
def test_whatever_the_machine_the_policy_and_the_requests_every_choice_comes_in_its_place(
    question: tuple[Machine, TopologyPolicy, int, int, tuple[Demand, ...]],
) -> None:
    machine, policy, free, beside, demands = question
    slow = SlowBox(machine.topology, dict(enumerate(machine.gpus)), policy)
    gpus, held = frozenset(ordinals_of(free)), frozenset(ordinals_of(beside))
    shares = [
        (demand.count, gpus if demand.eligible is None else gpus & frozenset(ordinals_of(demand.eligible)))
        for demand in demands
    ]
    expected = slow.best_first(gpus, shares, held)
    engine = Engine()
    found = list(engine.choices(box_of(machine), free, demands, beside))
    assert [choice.mask for choice in found] == [mask_of(chosen) for _, chosen in expected]
    for choice, (_, chosen) in zip(found[:6], expected, strict=False):
        parts = slow.parts(gpus, chosen, held)
        assert shown(choice, parts) == {name: parts[name] for name, _ in choice.score.parts() if name in parts}
        dealt = tuple(frozenset(ordinals_of(part)) for part in choice.parts)
        ways = list(slow.dealings(chosen, shares))
        assert dealt in ways
        assert worth(slow, dealt) == max(worth(slow, way) for way in ways)
    answer = engine.best_two(box_of(machine), free, demands, beside)
    assert (answer.best, answer.second) == (*found[:2], None, None)[:2]
    assert (not answer.shortfall) == bool(found)
    engine.check()


@st.composite
def all_prices(draw: st.DrawFn) -> Prices:
    eights, fours, pairs = (draw(st.integers(0, 21)) for _ in range(3))
    usual = [draw(st.sampled_from([1, 9, 50, 150, 450])) for _ in range(3)]
    return Prices((eights, fours, pairs), (usual[0], usual[1], usual[2]))


@given(mixed_machines(7), st.integers(0, 127), st.integers(1, 4), all_prices())
def test_prices_choose_between_nodes_alone(machine: Machine, taken: int, count: int, prices: Prices) -> None:
    box = box_of(machine)
    free = ((1 << len(machine.gpus)) - 1) & ~taken
    demands = (Demand(count),)
    found = list(Engine(prices).choices(box, free, demands))
    assert [choice.mask for choice in found] == [choice.mask for choice in Engine().choices(box, free, demands)]
    assert_bounded(found)
    for choice in found:
        assert choice.score.net_gain_gpus == slow_net_gain_gpus(choice.score, prices)


def test_no_set_of_a_node_comes_before_its_bound_though_it_gains_more_than_the_best_one() -> None:
    """Among bridged pairs a set of equal bandwidth and a slower ring may do less damage."""
    machine = MACHINES["h100-pcie-bridged-numa-3-5"]
    engine = Engine(Prices((21, 21, 21), (9, 9, 300)))
    gaining = 0
    for free, count in states(len(machine.gpus)):
        found = list(engine.choices(box_of(machine), free, (Demand(count),)))
        assert_bounded(found)
        gaining += any(choice.score.net_gain_gpus > found[0].score.net_gain_gpus for choice in found)
    assert gaining, "the test meets what it is about"


def assert_bounded(found: Sequence[Choice]) -> None:
    ranks = [choice.score.node_rank() for choice in found]
    for place, choice in enumerate(found):
        assert choice.score.best_node_rank() <= min(ranks[place:])


def slow_net_gain_gpus(score: Score, prices: Prices) -> int:
    """The net gain as docs/design/choice-of-node.md says it, from the parts of the score."""
    loss, usual_gb_s = Fraction(), prices.usual_gb_s[0]
    for size, share, usual, damage in zip((8, 4, 2), prices.shares, prices.usual_gb_s, score.damage_gb_s, strict=True):
        places = score.free_gpus // size - (score.free_gpus - score.taken_gpus) // size
        loss += Fraction(share, 64) * size * (Fraction(1_000 * damage // usual, 1_000) + places)
        usual_gb_s = usual if score.gpus <= size else usual_gb_s
    gain = Fraction(1_000 * score.gpus * score.bandwidth_gb_s // usual_gb_s, 1_000)
    return math.floor(gain - Fraction(math.floor(1_000 * loss), 1_000) + Fraction(1, 2))


def worth(slow: SlowBox, parts: tuple[frozenset[int], ...]) -> tuple[Fraction, Fraction, int]:
    sets = [part for part in parts if len(part) > 1]
    rates = [slow.rate(part) for part in sets]
    rings = sum(map(slow.ring, sets), Fraction())
    return sum((gb_s for gb_s, _ in rates), Fraction()), rings, sum(steps for _, steps in rates)


# 16 GPUs: the fast ways for many GPUs that are alike, and for many that are not, against the plain objectives.


def sixteen(seed: int) -> Machine:
    """16 GPUs that are all unlike, alike in blocks, bridged, a mesh or behind switches."""
    chance = random.Random(seed)
    kind = ("unlike", "blocks", "bridged", "mesh", "switched")[seed % 5]
    block = chance.choice([2, 4, 8])
    tokens = ["PIX", "PXB", "PHB", "NODE", "SYS"]

    def link(a: int, b: int) -> Link:
        level = LinkLevel.PIX if a // 2 == b // 2 else LinkLevel.PXB if a // block == b // block else LinkLevel.SYS
        match kind:
            case "unlike":
                return Link(LinkLevel[chance.choice(tokens)], 0)
            case "bridged":
                return Link(level, 4 if (a ^ b) == 9 else 0)
            case "mesh":
                return Link(level, chance.choice([0, 0, 1, 2]))
            case "switched":
                return Link(None, 6)
        return Link(level, 0)

    pairs = tuple(link(a, b) for a, b in combinations(range(16), 2))
    topology = Topology(16, pairs, tuple(ordinal // 8 for ordinal in range(16)))
    count = {"switched": 6, "mesh": 36}.get(kind, 4)
    gpus = tuple(Gpu(f"GPU-{place}", place, nvlink_count=count, nvlink_generation=2) for place in range(16))
    return Machine(f"{kind}-{seed}", gpus, topology)


def assert_best_of_sixteen(seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    machine = MACHINES["dgx-2"] if seed % 6 == 5 else sixteen(seed)
    box = box_of(machine)
    slow = SlowBox(machine.topology, dict(enumerate(machine.gpus)))
    engine = Engine()
    for _ in range(rounds):
        free = mask_of(chance.sample(range(16), chance.randrange(5, 11)))
        count = chance.randrange(1, min(5, free.bit_count()) + 1)
        gpus = frozenset(ordinals_of(free))
        expected = slow.best_first(gpus, [(count, gpus)])
        answer = engine.best_two(box, free, (Demand(count),))
        found = [choice.mask for choice in (answer.best, answer.second) if choice is not None]
        assert found == [mask_of(chosen) for _, chosen in expected[:2]], machine.name
        assert answer.best is not None
        parts = slow.parts(gpus, expected[0][1])
        assert shown(answer.best, parts) == parts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", in_tiers(1, 4, 40))
@pytest.mark.parametrize("seed", range(6))
def test_sixteen_gpus_get_the_best_set_in_a_sample_of_states(seed: int, rounds: int) -> None:
    assert_best_of_sixteen(seed, rounds)


@pytest.mark.parametrize("seed", sampled(range(20), 2, 10))
def test_all_sixteen_free_gpus_are_worth_what_their_best_groups_are(seed: int) -> None:
    """Slow search over families of groups is out of reach at 16: here the plain recursion over plain rates."""
    machine = sixteen(seed)
    box = box_of(machine)
    table = Engine().table(box)
    fabric = make_fabric(box)
    rings = ClassTable(box)
    rates: dict[int, tuple[int, int, int]] = {}

    def rate(mask: int) -> tuple[int, int, int]:
        if mask not in rates:
            found = collective(fabric, mask)
            rates[mask] = found.kb_s, rings.ring_kb_s(mask), found.steps
        return rates[mask]

    chance = random.Random(seed)
    free = 0xFFFF & ~mask_of(chance.sample(range(16), 4))
    bits = [1 << ordinal for ordinal in ordinals_of(free)]
    fours = {sum(chosen): rate(sum(chosen)) for chosen in combinations(bits, 4)}

    def best_fours(left: int) -> tuple[int, int, int]:
        if left.bit_count() < 4:
            return 0, 0, 0
        lowest = left & -left
        best = best_fours(left ^ lowest) if left.bit_count() % 4 else (0, 0, 0)
        for group, (kb_s, ring_kb_s, steps) in fours.items():
            if group & lowest and not group & ~left:
                more = best_fours(left ^ group)
                best = max(best, (kb_s + more[0], ring_kb_s + more[1], steps + more[2]))
        return best

    for size, most in ((4, best_fours(free)), (8, max(rate(sum(chosen)) for chosen in combinations(bits, 8)))):
        found = table.free_worth(free, size)
        kb_s, ring_kb_s, steps = most
        told = whole_gb_s(found), whole_ring_gb_s(found), whole_steps(found)
        assert told == (kb_s // 1_000_000, ring_kb_s // 1_000_000, steps)
