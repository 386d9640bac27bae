"""Decisions over buckets against a slow, obvious version that asks every node."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.answers import NOT_SELECTED
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, node, pod, pool_slice, request
from support.clusters import CLASSES, SWITCHED, RandomCluster, random_claims, random_cluster, random_pod
from support.seeds import in_turn
from support.slow_nodes import SlowVersion

SHARES = (None, (0, 0, 0), (16, 16, 16), (0, 60, 4))
"""Of the GPUs that pods ask for; None: nodes compare without prices."""


def world(seed: int) -> tuple[RandomCluster, Inventory, random.Random]:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    inventory = make_inventory(DRIVER, nodes=cluster.nodes, slices=cluster.slices.values(), classes=CLASSES)
    inventory.hold("others", cluster.held)
    return cluster, inventory, rng


@pytest.mark.parametrize(("first_seed", "shares"), in_turn(range(0, 200, 10), 2, 6, SHARES))
def test_the_answer_is_that_of_asking_every_node(first_seed: int, shares: tuple[int, int, int] | None) -> None:
    allocator = Allocator()
    for seed in range(first_seed, first_seed + 10):
        cluster, inventory, rng = world(seed)
        if shares is not None:
            allocator.reprice(inventory, shares)
        slow = SlowVersion(cluster, Engine(allocator.engine.prices))
        for _ in range(4):
            asking, claims = random_pod(rng), random_claims(rng, cluster)
            by_node = slow.by_node(asking, claims)
            choices = {name: found for name, found in by_node.items() if not isinstance(found, str)}
            order = sorted(choices, key=lambda name: (choices[name].score.node_rank(), name))
            decision = allocator.allocate(inventory, asking, claims)
            if not order:
                assert isinstance(decision, NoFit)
                check_explanation(allocator, inventory, asking, claims, said(slow, cluster, claims, by_node))
                continue
            assert isinstance(decision, Allocation)
            assert (decision.node, decision.choice) == (order[0], choices[order[0]])
            assert allocator.explain(inventory, asking, claims) is None
            if decision.runner_up is not None and decision.runner_up.pool.node != decision.node:
                assert decision.runner_up.pool.node == order[1]
                assert decision.runner_up.choice == choices[order[1]]
            elif len(order) > 1:
                assert decision.runner_up is not None
                assert decision.runner_up.choice.score > choices[order[1]].score
            counts = decision.census.reasons(decision.choice)
            assert sum(count for _, count in counts) == len(cluster.nodes) - 1
            assert all(count > 0 for _, count in counts)


def said(
    slow: SlowVersion, cluster: RandomCluster, claims: Sequence[ResourceClaim], by_node: dict[str, Choice | str]
) -> dict[str, Choice | str]:
    """What is said of each node: of its devices, whether they never do or not now."""
    nodes = {item.metadata.name: item for item in cluster.nodes}
    return {
        name: slow.lack(nodes[name], claims)
        if slow.outside(nodes[name]) is None and slow.devices(nodes[name], claims) == found
        else found
        for name, found in by_node.items()
    }


def check_explanation(
    allocator: Allocator,
    inventory: Inventory,
    asking: Pod,
    claims: Sequence[ResourceClaim],
    by_node: dict[str, Choice | str],
) -> None:
    found = allocator.explain(inventory, asking, claims)
    assert isinstance(found, Unsatisfied)
    assert found.nodes == len(by_node)
    expected = Counter(reason for reason in by_node.values() if isinstance(reason, str))
    seen = Counter({reason.text: reason.count for reason in found.reasons})
    assert expected == seen
    named = [name for reason in found.reasons for name in reason.nodes]
    assert len(named) == len(set(named))
    for reason in found.reasons:
        assert list(reason.nodes) == sorted(reason.nodes)
        assert len(reason.nodes) == min(3, reason.count)
        assert reason.nodes[0] == min(name for name, why in by_node.items() if why == reason.text)


def equal_nodes(count: int, **labels: Any) -> Inventory:
    nodes = [node(f"n{number:04}", labels={"half": str(number % 2), "n": str(number)}) for number in range(count)]
    slices = [pool_slice(item.metadata.name, SWITCHED) for item in nodes]
    return make_inventory(DRIVER, nodes=nodes, slices=slices, classes=CLASSES)


def decide(inventory: Inventory, on: Pod, count: int = 1) -> Any:
    return Allocator().allocate(inventory, on, [claim("c", request(count=count))])


def test_of_equal_nodes_the_first_by_name_that_may_be_used_is_taken() -> None:
    inventory = equal_nodes(20)
    assert decide(inventory, pod("p")).node == "n0000"
    assert decide(inventory, pod("p", nodeSelector={"half": "1"})).node == "n0001"
    assert decide(inventory, pod("p", nodeSelector={"half": "1", "n": "17"})).node == "n0017"
    assert isinstance(decide(inventory, pod("p", nodeSelector={"half": "0", "n": "17"})), NoFit)


def test_a_decision_asks_about_no_more_nodes_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    reason = NodeFilter.reason

    def counted(self: NodeFilter, indexed: Any) -> str | None:
        asked.append(indexed.node.metadata.name)
        return reason(self, indexed)

    monkeypatch.setattr(NodeFilter, "reason", counted)
    inventory = equal_nodes(50)
    decide(inventory, pod("p"))
    assert asked == ["n0000", "n0001"]  # the winner and the runner-up
    asked.clear()
    decide(inventory, pod("p", nodeSelector={"n": "31"}))
    assert asked == ["n0031"]
    asked.clear()
    decide(inventory, pod("p"), count=9)
    assert asked == []


def test_the_census_tells_buckets_filters_and_nodes_without_gpus_apart() -> None:
    nodes = [
        *(node(f"a{number}") for number in range(6)),
        *(node(f"b{number}") for number in range(2)),
        node("a10", unschedulable=True),
        node("d"),
    ]
    inventory = make_inventory(
        DRIVER,
        nodes=nodes,
        slices=[pool_slice(item.metadata.name, SWITCHED) for item in nodes if item.metadata.name != "d"],
        classes=CLASSES,
    )
    for name, keep in (("b0", 1), ("b1", 1), ("a2", 6), ("a10", 6)):
        pool = inventory.pool(name)
        assert pool is not None
        inventory.hold(name, frozenset(DeviceId(DRIVER, name, device or "") for device in pool.devices[keep:]))
    decision = decide(inventory, pod("p"), count=2)
    assert isinstance(decision, Allocation)
    assert decision.node == "a2"
    assert dict(decision.census.reasons(decision.choice)) == {
        "cordoned": 1,
        "with fewer than 2 free GPUs": 2,
        f"without usable GPUs of {DRIVER}": 1,
        "worse in damage to groups of 8": 5,
    }
    picky = decide(inventory, pod("p", nodeSelector={"no": "where"}), count=2)
    assert isinstance(picky, NoFit)
    chosen = decide(inventory, pod("p", nodeName="a1"), count=2)
    assert dict(chosen.census.reasons(chosen.choice)) == {NOT_SELECTED: 8, f"without usable GPUs of {DRIVER}": 1}


def test_without_anything_to_allocate_any_node_will_do() -> None:
    assert Allocator().allocate(equal_nodes(1), pod("p"), []) == Settled()
    assert Allocator().allocate(equal_nodes(0), pod("p"), []) == NoFit()
