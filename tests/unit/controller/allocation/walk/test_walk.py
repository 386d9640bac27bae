"""The walk visits nodes in order and counts each once; what decisions say of nodes is held in test_reasons."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import msgspec
import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk import walk as module
from dracaena.controller.allocation.walk.answers import NOT_SELECTED
from dracaena.controller.allocation.walk.matches import MatchedKinds
from dracaena.controller.allocation.walk.pod_demand import PodDemand, read_pod_demand
from dracaena.controller.allocation.walk.walk import NO_ROOM, NOT_BETTER, TRIED_BEFORE, Walk
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.clusters import CLASSES, SMALL

NAMES = "abcdef"
OF_NO_GPU = f'device.attributes["{DRIVER}"].uuid == "GPU-of-nobody"'
OF_FIRST_GPU = f'device.attributes["{DRIVER}"].uuid == "{SMALL.gpus[0].uuid}"'
SEEDS = 40


def walk_for(inventory: Inventory, asking: Pod, claims: Sequence[ResourceClaim], asked: set[str]) -> Walk:
    allocator = Allocator()
    demand = read_pod_demand(inventory, asking, claims, MatchedKinds(allocator.selectors), {}, allocator.effort)
    assert isinstance(demand, PodDemand)
    questions = allocator.questions(inventory, asking, claims, barred={})
    assert questions is not None
    rules = questions[1][0]
    is_exact = rules.facts.exact and not inventory.allowed_drivers
    return Walk(inventory, demand, rules.answers, lambda: rules, allocator.effort, asked, is_exact=is_exact)


def small_nodes() -> Inventory:
    return make_inventory(
        DRIVER,
        nodes=[node(name) for name in NAMES],
        slices=[pool_slice(name, SMALL) for name in NAMES],
        classes=CLASSES,
    )


def test_nodes_that_were_asked_without_success_come_last_and_each_is_asked_once(asked_nodes: list[str]) -> None:
    named = claim("c", request(selectors=[{"cel": {"expression": OF_NO_GPU}}]))
    earlier = {"a", "c"}
    walk = walk_for(small_nodes(), pod("p"), [named], earlier)
    assert walk.best() is None
    assert asked_nodes == ["b", "d", "e", "f", "a", "c"]
    assert earlier == set(NAMES), "the next try knows them all"
    assert not walk.is_round_over


def test_nodes_that_were_asked_without_success_are_counted_as_such_behind_the_winner(asked_nodes: list[str]) -> None:
    first = claim("c", request(selectors=[{"cel": {"expression": OF_FIRST_GPU}}]))
    walk = walk_for(small_nodes(), pod("p"), [first], {"a", "c"})
    winner = walk.best()
    assert winner is not None
    assert (asked_nodes, winner.pool.node) == (["b"], "b")
    assert walk.census(winner).filtered == {TRIED_BEFORE: 2, NOT_BETTER: 3}


def test_when_every_node_was_asked_without_success_a_new_round_begins(asked_nodes: list[str]) -> None:
    named = claim("c", request(selectors=[{"cel": {"expression": OF_NO_GPU}}]))
    earlier = set(NAMES)
    walk = walk_for(small_nodes(), pod("p"), [named], earlier)
    assert walk.best() is None
    assert walk.is_round_over
    assert (asked_nodes, earlier) == ([], set())


def divided(name: str) -> Machine:
    """One whole GPU, and another one in two parts."""
    pair = machine(f"pair-{name}", blocks(2, inside="NV12", outside="NV12"))
    parent = pair.gpus[0].uuid
    parts = tuple(
        MigDevice(parent, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in range(2)
    )
    return dataclasses.replace(pair, mig_devices=parts)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_node_is_counted_once_whichever_part_of_the_walk_refused_it(seed: int) -> None:
    """Nodes of whole GPUs have too few of them, so mixed nodes are visited a second time for what else they have."""
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.randrange(2, 12))]
    kinds = {name: divided(name) if rng.random() < 0.6 else SMALL for name in names}
    nodes: list[Node] = [node(name, unschedulable=rng.random() < 0.4) for name in names]
    inventory = make_inventory(
        DRIVER,
        nodes=nodes,
        slices=[pool_slice(name, kind) for name, kind in kinds.items()],
        classes=CLASSES,
    )
    free = {name: 3 if kinds[name] is not SMALL else len(SMALL.gpus) for name in names}
    for name in names:
        pool = inventory.pool(name)
        assert pool is not None
        whole = [DeviceId(DRIVER, name, device) for device in pool.devices if device is not None]
        if rng.random() < 0.5:
            inventory.hold(f"holder of {name}", frozenset(whole))
            free[name] -= len(whole)
    count = rng.choice((1, 1, 3))
    given = Allocator().allocate(inventory, pod("p"), [claim("c", request(count=count))])
    fits = {item.metadata.name for item in nodes if not item.spec.unschedulable}
    fits &= {name for name in names if free[name] >= count}
    assert isinstance(given, Allocation) == bool(fits)
    if isinstance(given, Allocation):
        assert given.node in fits
        assert sum(count for _, count in given.census.reasons(given.choice)) == len(names) - 1


def test_plain_nodes_without_room_are_counted_as_such_when_a_mixed_node_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were put aside before any mixed node was asked for more than its whole GPUs."""
    monkeypatch.setattr(module, "PATIENCE", 2)
    names = [f"plain{number}" for number in range(6)]
    inventory = make_inventory(
        DRIVER,
        nodes=[with_cpu(node(name), 1 if name in names else 8) for name in (*names, "mixed")],
        slices=[*(pool_slice(name, SMALL) for name in names), pool_slice("mixed", divided("mixed"))],
        classes=CLASSES,
    )
    pool = inventory.pool("mixed")
    assert pool is not None
    whole = [DeviceId(DRIVER, "mixed", device) for device in pool.devices if device is not None]
    inventory.hold("holder", frozenset(whole))
    asking = pod("p", containers=[{"name": "main", "resources": {"requests": {"cpu": "4"}}}])
    given = Allocator().allocate(inventory, asking, [claim("c", request())])
    assert isinstance(given, Allocation)
    assert given.node == "mixed"
    told = dict(given.census.reasons(given.choice))
    assert NOT_SELECTED not in told
    assert sum(told.values()) == told[NO_ROOM] + 2 == len(names)


def with_cpu(item: Node, cpu: int) -> Node:
    status = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": str(cpu), "pods": "110"}}}
    return msgspec.structs.replace(item, status=msgspec.convert(status, Node).status)
