"""Bounds of mixed nodes that keep their order from one decision to the next, beside a look at each bucket."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from dracaena.api.objects import NodeStatus
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state import node_state
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import Buckets
from dracaena.controller.allocation.walk.judgements import NodeChoice
from dracaena.controller.allocation.walk.node_rules import NodeRules
from dracaena.controller.allocation.walk.walk import Walk
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, give_back, machine, node, pod, pool_slice, request
from support.mig_nodes import mig_classes, mig_slices, part
from support.mig_tables import A100
from support.seeds import sampled

PAIRS = machine("pairs", blocks(2, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4)
ONE = machine("one", blocks(1, inside="X", outside="X"), pcie_generation=4)
STEPS = 25

FORMS: tuple[Callable[[str], ResourceClaim], ...] = (
    lambda name: claim(name, part("r", "1g.10gb")),
    lambda name: claim(name, part("r", "3g.40gb")),
    lambda name: of_one_gpu(name, part("r", "1g.10gb"), part("s", "2g.20gb")),
    lambda name: claim(name, part("r", "2g.20gb"), request("w")),
    lambda name: claim(name, request("w", 2)),
    lambda name: claim(name, request("w")),
)
PODS: tuple[dict[str, Any], ...] = (
    {},
    {"nodeSelector": {"zone": "x"}},
    {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]},
)


def of_one_gpu(name: str, *requests: dict[str, Any]) -> ResourceClaim:
    made = claim(name, *requests)
    made.spec["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/parentUUID"}]
    return made


def small_cluster() -> Inventory:
    """Nodes whose GPUs are cut on demand, and others; in two zones, some of them without much cpu."""
    machines = {f"cut-{number}": (PAIRS, ONE)[number % 2] for number in range(6)}
    nodes = [
        msgspec.structs.replace(
            node(name, labels={"zone": "xy"[place % 2]}), status=NodeStatus({"cpu": str(2 + place), "pods": "110"})
        )
        for place, name in enumerate((*machines, "whole"))
    ]
    cut = [page for name, one in machines.items() for page in mig_slices(name, one, [A100] * len(one.gpus))]
    return make_inventory(DRIVER, nodes=nodes, slices=[*cut, pool_slice("whole", ONE)], classes=mig_classes())


def told(allocator: Allocator, inventory: Inventory, number: int, asked: ResourceClaim) -> tuple[object, Any]:
    """Return all that a decision says, and the decision."""
    waiting = pod("p", asked.metadata.name, **PODS[number % len(PODS)])
    found = allocator.allocate(inventory, waiting, [asked])
    if not isinstance(found, Allocation):
        return found, found
    results = [(one.pool, one.device) for one in found.claims[0].results]
    second = found.runner_up and (found.runner_up.pool.node, found.runner_up.choice, found.runner_up.lost_by)
    return (found.node, results, found.choice, second, found.census.reasons(found.choice)), found


@pytest.mark.parametrize("spare", [0, node_state.SPARE_EMPTY])
@pytest.mark.parametrize("seed", sampled(range(200), 4))
def test_a_decision_is_that_of_who_looks_at_each_bucket_again(
    seed: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spare`: with none, empty buckets are forgotten every few changes."""
    monkeypatch.setattr(node_state, "SPARE_EMPTY", spare)
    rng, inventory, warm = random.Random(seed), small_cluster(), Allocator()
    real = Walk._best_by_rules

    def look_at_each(walk: Walk, parts: Iterable[Buckets], *, is_ranked: bool = False) -> NodeChoice | None:
        return real(walk, parts)

    held: list[Allocation] = []
    for step in range(STEPS):
        asked, number = rng.choice(FORMS)(f"c{step}"), rng.randrange(len(PODS))
        if rng.random() < 0.2:
            warm.reprice(inventory, rng.choice(((500, 300, 200), (50, 250, 700))))
        fresh = Allocator()
        fresh.engine.reprice(warm.engine.prices)
        with patch.object(Walk, "_best_by_rules", look_at_each):
            expected, _ = told(fresh, inventory, number, asked)
        seen, found = told(warm, inventory, number, asked)
        assert seen == expected, step
        if isinstance(found, Allocation):
            commit(inventory, found)
            held.append(found)
        while held and rng.random() < 0.45:
            give_back(inventory, held.pop(rng.randrange(len(held))))


def test_a_bound_is_worked_out_once_for_each_state_that_a_node_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory, allocator, seen, real = small_cluster(), Allocator(), list[str](), NodeRules.bound

    def noted(rules: NodeRules, state: Any, held: int = 0) -> int | str:
        seen.append(state.kind.box.gpu_count)
        return real(rules, state, held)

    monkeypatch.setattr(NodeRules, "bound", noted)
    first = allocator.allocate(inventory, pod("p", "c"), [claim("c", part("r", "3g.40gb"))])
    assert isinstance(first, Allocation)
    assert len(seen) == 2, "six nodes in two states, and one that has no parts to give"
    commit(inventory, first)
    for _ in range(3):
        allocator.allocate(inventory, pod("p", "d"), [claim("d", part("r", "3g.40gb"))])
    assert len(seen) == 3
