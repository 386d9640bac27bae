"""Ways to deal shares out over the GPUs of a node: all that there are, within a number of steps that nobody exceeds."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from dracaena.api.config.v1alpha1 import Requirement, TopologyPolicy
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.effort import LOOK_EVERY_STEPS, Effort, Work
from dracaena.controller.allocation.legal.capacity import AmountDemand
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.box import make_rule, mask_of
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.allocation.walk.shares.assignments import LOOK_STEPS, MAX_LOOKS, ShareAssignments
from dracaena.controller.allocation.walk.shares.question import share_question
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, device_name, holding, machine, node, pod, pool_slice
from support.clusters import SWITCHED
from support.seeds import in_tiers
from support.shares import holding_share, in_shares, share
from support.slow_shares import GIB, SlowGpu, SlowNode, Wanted, ways_on

REQUIREMENTS = (None, None, Requirement.NVLINK, Requirement.PIX)
PAIRS = machine("pairs", blocks(2, 1, 1, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)
FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"), pcie_generation=4)


def idle_node() -> Inventory:
    """One node with eight GPUs of 80 GiB."""
    slices = [in_shares(pool_slice("a", SWITCHED))]
    return make_inventory(DRIVER, nodes=[node("a")], slices=slices, classes=[device_class()])


UNFIT = {
    "three fours and eight almost whole": [(4, "10Gi")] * 3 + [(8, "79Gi")],
    "four fours and eight almost whole": [(4, "10Gi")] * 4 + [(8, "79Gi")],
    "a share more than there are GPUs": [(1, "50Gi")] * 9,
    "a share more than two for each GPU": [(1, "30Gi")] * 17,
    "nine unlike shares of eight GPUs": [(1, f"{size}Gi") for size in range(50, 59)],
}
"""Count and memory of each request of a pod that does not fit on eight idle GPUs of 80 GiB."""

PACKING = [(1, f"{size * 97 + 19_000}Mi") for size in range(31)]
"""Unlike shares of 19 to 22 GB, three or four to a GPU: 31 fit by any sum, and there are more packings than any
search goes through."""


def requested(asked: Sequence[tuple[int, str]]) -> ResourceClaim:
    return claim("c", *(share(f"r{place}", memory, count=count) for place, (count, memory) in enumerate(asked)))


class Looks:
    """Counts how often it is asked whether a share fits on a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, filled = 0, ShareAssignments._filled

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return filled(*arguments)

        monkeypatch.setattr(ShareAssignments, "_filled", counted)


@pytest.mark.parametrize("name", UNFIT)
def test_shares_that_do_not_fit_are_reported_within_a_thousand_steps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, allocator = Looks(monkeypatch), Allocator()
    assert isinstance(allocator.allocate(idle_node(), pod("p", "c"), [requested(UNFIT[name])]), NoFit)
    # Besides the looks there are the steps for reading 17 requests.
    assert LOOK_STEPS * looks.count <= sum(allocator.effort.spent.values()) < 3_000
    assert looks.count < 1_000


def test_a_search_without_end_is_charged_and_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, allocator = Looks(monkeypatch), Allocator()
    user, asked = pod("p", "c"), requested(PACKING)
    stopped = allocator.allocate(idle_node(), user, [asked], is_over=lambda steps: steps > 0)
    assert isinstance(stopped, Refused)
    assert stopped.kind is RefusalKind.TOO_LONG
    assert looks.count < LOOK_EVERY_STEPS
    looks.count = 0
    assert isinstance(allocator.allocate(idle_node(), user, [asked]), NoFit)
    assert looks.count < MAX_LOOKS
    spent = allocator.effort.spent[Work.SETS, ""]
    assert LOOK_STEPS * looks.count < spent < 1.1 * LOOK_STEPS * MAX_LOOKS
    assert "the search was cut off after" in str(allocator.explain(idle_node(), user, [asked]))


def test_where_the_search_was_cut_off_another_node_is_taken() -> None:
    slices = [in_shares(pool_slice("a", SWITCHED)), in_shares(pool_slice("b", SWITCHED), 800)]
    inventory = make_inventory(DRIVER, nodes=[node("a"), node("b")], slices=slices, classes=[device_class()])
    allocator = Allocator()
    found = allocator.allocate(inventory, pod("p", "c"), [requested(PACKING)])
    assert isinstance(found, Allocation)
    assert found.node == "b"


class RandomNode:
    """A node of four GPUs, some in use, and up to four requests for shares, as the search and the slow version see
    them."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"ways {seed}")
        modes = ("none", "MPS") if rng.random() < 0.4 else ("none",)
        made = rng.choice((FOUR, PAIRS))
        gpus, claims = [SlowGpu(8 * GIB) for _ in made.gpus], []
        for ordinal, gpu in enumerate(gpus):
            if rng.random() < 0.1:
                gpu.is_held = True
                claims.append(holding(claim(f"whole-{ordinal}"), "a", device_name(made, ordinal)))
            elif rng.random() < 0.4:
                memory, cores, mode = rng.randint(1, 8), rng.choice([0, 50]), rng.choice(modes)
                gpu.shares.append((memory * GIB, cores, mode))
                consumed = {"memory": f"{memory}Gi", "cores": str(cores)}
                told = None if mode == "none" else mode
                claims.append(holding_share(f"h{ordinal}", "a", device_name(made, ordinal), consumed, mode=told))
        sizes = rng.sample(range(1, 9), rng.randint(1, 3))
        self.pod = [
            Wanted(rng.choice([1, 1, 2, 3]), rng.choice(sizes) * GIB, rng.choice([0, 0, 60]), rng.choice(modes))
            for _ in range(rng.randint(1, 4))
        ]
        self.masks = [rng.choice((15, 15, 5, rng.randrange(16))) for _ in self.pod]
        self.policies = [TopologyPolicy(requirement=rng.choice(REQUIREMENTS)) for _ in self.pod]
        self.slow = SlowNode("a", make_box(made.topology, dict(enumerate(made.gpus))), gpus)
        table = ClassTable(self.slow.box)
        self.rules = {place: make_rule(table, policy, 15) for place, policy in enumerate(self.policies)}
        inventory = make_inventory(
            DRIVER,
            nodes=[node("a")],
            slices=[in_shares(pool_slice("a", made), 8)],
            claims=claims,
            classes=[device_class()],
        )
        state = inventory.state("a")
        assert isinstance(state, NodeState)
        self.state = state

    def found(self) -> list[tuple[int, ...]]:
        demands = [
            AmountDemand(
                place,
                one.count,
                {"memory": parse_quantity(str(one.memory)), "cores": parse_quantity(str(one.cores))},
                one.mode,
            )
            for place, one in enumerate(self.pod)
        ]
        asked = share_question(self.state.kind, self.masks, demands, fractional=True)
        in_use = {one.ordinal: one for one in self.state.shares}
        ways = ShareAssignments(asked, demands, dict(enumerate(asked.masks)), in_use, self.rules, Effort())
        told = [tuple(mask for _, mask in way.parts) for way in ways.all(self.state.free)]
        assert not ways.cut_off
        return told

    def expected(self) -> list[tuple[int, ...]]:
        every = (tuple(map(mask_of, parts)) for parts in ways_on(self.slow, self.pod))
        return [
            parts
            for parts in every
            if all(part & mask == part for part, mask in zip(parts, self.masks, strict=True))
            and all(rule.allows(parts[place]) for place, rule in self.rules.items())
        ]


def compare_many(seeds: Iterable[int]) -> int:
    """Compare random cases; return of how many there is a way."""
    fits = 0
    for seed in seeds:
        case = RandomNode(seed)
        expected = case.expected()
        assert sorted(case.found()) == sorted(expected), f"seed {seed}: {case.pod}"
        fits += bool(expected)
    return fits


@pytest.mark.parametrize("seeds", in_tiers(range(150), range(150, 1_500), range(1_500, 10_000)))
def test_all_ways_are_found_and_no_others(seeds: range) -> None:
    fifth = len(seeds) // 5
    assert fifth < compare_many(seeds) < len(seeds) - fifth


KINDS, STATE, LEAST = ShareAssignments._gpu_kinds, ShareAssignments._state, ShareAssignments._least


def _all_alike(ways: ShareAssignments) -> dict[int, int]:
    return dict.fromkeys(KINDS(ways), 0)


def _without_amounts(ways: ShareAssignments, free: int, now: Any) -> Any:
    told: Any = STATE(ways, free, now)
    return tuple((kind, mode) for kind, mode, _ in told)


def _twice_as_large(ways: ShareAssignments, name: str, demand: AmountDemand) -> int:
    return 2 * LEAST(ways, name, demand)


@pytest.mark.parametrize(
    ("name", "planted", "found_by"),
    [
        ("_gpu_kinds", _all_alike, 1346),
        ("_state", _without_amounts, 2541),
        ("_least", _twice_as_large, 14),
        ("_links", staticmethod(lambda _rule, _ordinal: 0), 1477),
    ],
)
def test_a_planted_fault_is_found(name: str, planted: Any, found_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareAssignments, name, planted)
    with pytest.raises(AssertionError):
        compare_many([found_by, *range(3_000)])


def test_a_pod_that_fits_is_served_whatever_the_order_of_its_requests() -> None:
    for asked in ([(4, "10Gi"), (4, "10Gi"), (8, "60Gi")], [(8, "60Gi"), (4, "10Gi"), (4, "10Gi")]):
        assert isinstance(Allocator().allocate(idle_node(), pod("p", "c"), [requested(asked)]), Allocation)
