"""Topology spread against a slow version that looks at every pod on every node, as the API's words go."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Node, NodeSpec, ObjectMeta, Pod, Taint
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_filter import NodeIndex
from dracaena.controller.allocation.nodes.placement.placed_pods import PlacedPods, pod_facts
from dracaena.controller.allocation.nodes.placement.placement_demand import placement_demand
from dracaena.controller.allocation.nodes.placement.pod_terms import UnreadableSelectorError
from dracaena.controller.allocation.nodes.placement.spread import MAX_REACHES, SpreadScopes
from dracaena.controller.allocation.nodes.placement.volumes import Storage
from support.reasons.recording import plain
from support.seeds import sampled
from support.slow_placement import SlowPlacement
from support.slow_selectors import random_labels, random_selector

TAINT = Taint(key="team", value="blue", effect="NoSchedule")
SPARE = Taint(key="team", value="blue", effect="PreferNoSchedule")
TOLERATION = {"key": "team", "operator": "Exists"}


def spread(key: str, selector: dict[str, Any] | None = None, skew: int = 1, **more: Any) -> dict[str, Any]:
    made = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", **more}
    return made if selector is None else {**made, "labelSelector": selector}


def pod(
    name: str, *constraints: dict[str, Any], labels: Mapping[str, str], namespace: str = "blue", **spec: Any
) -> Pod:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": dict(labels)}
    if spec.pop("leaving", False):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return msgspec.convert({"metadata": meta, "spec": {"topologySpreadConstraints": list(constraints), **spec}}, Pod)


class World:
    def __init__(self) -> None:
        self.placed = PlacedPods()
        self.index = NodeIndex()
        self.reaches = SpreadScopes(self.index)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, tuple[str, Pod]] = {}

    def node(self, name: str, *taints: Taint, **labels: str) -> None:
        made = Node(metadata=ObjectMeta(name=name, labels=labels), spec=NodeSpec(taints=list(taints)))
        self.nodes[name] = made
        self.index.put(made)
        self.placed.set_node(name, labels)

    def remove(self, name: str) -> None:
        del self.nodes[name]
        self.index.remove(name)
        self.placed.remove_node(name)

    def put(self, item: Pod, node: str | None) -> None:
        self.pods.pop(item.metadata.uid, None)
        if node is not None:
            self.pods[item.metadata.uid] = node, item
        self.placed.place(item.metadata.uid, item.metadata.namespace, node, pod_facts(item))

    def reasons(self, asking: Pod) -> dict[str, str | None]:
        found = placement_demand(self.placed, self.reaches, Storage(), asking, asking.metadata.uid, Effort())
        return {name: None if found is None else found.reason(self.index.get(name)) for name in self.index.names}

    def slowly(self, asking: Pod) -> dict[str, str | None]:
        slow = SlowPlacement(
            {name: plain(item) for name, item in self.nodes.items()},
            [(node, plain(item)) for node, item in self.pods.values()],
        )
        return {name: slow.of_spread(plain(asking), name) for name in sorted(self.nodes)}


def random_pod(rng: random.Random, name: str) -> Pod:
    constraints = []
    for _ in range(rng.choice([0, 1, 1, 2])):
        selector = rng.choice([None, *(random_selector(rng) for _ in range(8))])
        one = spread(rng.choice(["zone", "host"]), selector, rng.randint(1, 2))
        if rng.random() < 0.2:
            one["whenUnsatisfiable"] = "ScheduleAnyway"
        more: dict[str, list[Any]] = {
            "minDomains": [2, 4],
            "nodeAffinityPolicy": ["Honor", "Ignore"],
            "nodeTaintsPolicy": ["Honor", "Ignore"],
            "matchLabelKeys": [["tier"], ["missing", "app"]],
        }
        for key, values in more.items():
            if rng.random() < 0.3:
                one[key] = rng.choice(values)
        constraints.append(one)
    spec: dict[str, Any] = {"leaving": rng.random() < 0.15}
    if rng.random() < 0.3:
        spec["nodeSelector"] = {"zone": "z0"}
    if rng.random() < 0.3:
        spec["tolerations"] = [TOLERATION]
    return pod(name, *constraints, labels=random_labels(rng), namespace=("blue", "green")[int(name) % 2], **spec)


@pytest.mark.parametrize("seed", sampled(range(300), 15, 100))
def test_each_node_has_the_reason_that_the_words_of_the_api_give_it(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    asked = [random_pod(rng, str(number)) for number in range(6)]
    for _ in range(60):
        step = rng.random()
        if step < 0.25 or not world.nodes:
            labels = {key: f"{key[0]}{rng.randint(0, 2)}" for key in ("zone", "host") if rng.random() < 0.9}
            world.node(f"n{rng.randint(0, 5)}", *rng.choice([[], [], [TAINT], [SPARE]]), **labels)
        elif step < 0.3:
            world.remove(rng.choice(sorted(world.nodes)))
        else:
            item = rng.choice(asked) if rng.random() < 0.2 else random_pod(rng, str(rng.randint(10, 25)))
            world.put(item, rng.choice([None, *(f"n{number}" for number in range(6))]))
        asking = rng.choice(asked) if rng.random() < 0.7 else random_pod(rng, str(rng.randint(10, 25)))
        assert world.reasons(asking) == world.slowly(asking), seed
        world.placed.check({name: item.metadata.labels for name, item in world.nodes.items()})


# What kube-scheduler's own tests hold (plugin PodTopologySpread), as facts in our words.

FOO = {"matchExpressions": [{"key": "foo", "operator": "Exists"}]}
ZONES = {"node-a": "zone1", "node-b": "zone1", "node-x": "zone2", "node-y": "zone2"}


def zoned(**pods: int) -> World:
    world = World()
    for name, zone in ZONES.items():
        world.node(name, zone=zone, node=name)
    for name, number in pods.items():
        for place in range(number):
            world.put(pod(f"{name}{place}", labels={"foo": ""}), f"node-{name}")
    return world


@pytest.mark.parametrize(
    ("constraints", "pods", "allowed"),
    [
        ([spread("zone", FOO)], {}, "abxy"),
        ([spread("zone", FOO)], {"a": 1, "b": 1, "y": 2}, "abxy"),
        ([spread("zone", FOO)], {"a": 1, "b": 1}, "xy"),
        ([spread("zone", FOO, 2)], {"a": 1, "b": 1}, "xy"),
        ([spread("zone", FOO, 3)], {"a": 1, "b": 1}, "abxy"),
        ([spread("node", FOO)], {"a": 2, "b": 1, "y": 3}, "x"),
        ([spread("zone", FOO), spread("node", FOO)], {"a": 2, "b": 1, "y": 3}, "x"),
        ([spread("zone", FOO), spread("node", FOO)], {"a": 2, "b": 1, "x": 2, "y": 1}, "by"),
        ([spread("zone", FOO, minDomains=3)], {}, "abxy"),
        ([spread("zone", FOO, minDomains=3)], {"a": 1, "x": 1}, ""),
        ([spread("zone", FOO, minDomains=2)], {"a": 1, "x": 1}, "abxy"),
        ([spread("rack", FOO)], {}, ""),
    ],
)
def test_four_nodes_in_two_zones(constraints: list[dict[str, Any]], pods: dict[str, int], allowed: str) -> None:
    reasons = zoned(**pods).reasons(pod("p", *constraints, labels={"foo": ""}))
    assert "".join(name[-1] for name, reason in reasons.items() if reason is None) == allowed


def test_which_nodes_count_is_remembered_until_a_node_changes() -> None:
    world = zoned()
    constraint = spread("zone", FOO)
    for number in range(2 * MAX_REACHES):
        world.reasons(pod("p", constraint, labels={"foo": ""}, nodeSelector={"node": str(number)}))
    assert len(world.reaches._known) == MAX_REACHES
    asking = pod("p", constraint, labels={"foo": ""})
    world.reasons(asking)
    known = next(reversed(world.reaches._known.values()))
    world.put(pod("q", labels={"foo": ""}), "node-a")
    world.reasons(asking)
    assert next(reversed(world.reaches._known.values())) is known
    world.node("node-a", TAINT, zone="zone1", node="node-a")
    world.reasons(asking)
    assert next(reversed(world.reaches._known.values())) is not known


def test_pods_that_tolerate_other_taints_reach_other_nodes() -> None:
    world = zoned(x=1)
    world.node("node-a", TAINT, zone="zone1", node="node-a")
    world.node("node-b", TAINT, zone="zone1", node="node-b")
    constraint = spread("zone", FOO, nodeTaintsPolicy="Honor")
    assert set(world.reasons(pod("p", constraint, labels={"foo": ""})).values()) == {None}
    tolerant = world.reasons(pod("p", constraint, labels={"foo": ""}, tolerations=[TOLERATION]))
    assert {name for name, reason in tolerant.items() if reason} == {"node-x", "node-y"}


@pytest.mark.parametrize("broken", [{"matchLabelKeys": "x"}, {"maxSkew": "1"}, {"labelSelector": []}])
def test_a_constraint_that_cannot_be_read_is_reported_to_its_author(broken: dict[str, Any]) -> None:
    with pytest.raises(UnreadableSelectorError):
        zoned().reasons(pod("p", {**spread("zone", FOO), **broken}, labels={}))
