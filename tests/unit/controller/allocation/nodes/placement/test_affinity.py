"""Pod affinity and anti-affinity against a slow version that looks at every pod on every node."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_filter import Names, NodeIndex
from dracaena.controller.allocation.nodes.placement.affinity import KEPT_OFF, NEAR_OTHERS, NOT_NEAR
from dracaena.controller.allocation.nodes.placement.placed_pods import MAX_COUNTS, PlacedPods, pod_facts
from dracaena.controller.allocation.nodes.placement.placement_demand import placement_demand
from dracaena.controller.allocation.nodes.placement.pod_terms import UnreadableSelectorError, read_label_selector
from dracaena.controller.allocation.nodes.placement.spread import SpreadScopes
from dracaena.controller.allocation.nodes.placement.volumes import Storage
from support.reasons.recording import plain
from support.seeds import sampled
from support.slow_placement import REQUIRED, SlowPlacement
from support.slow_selectors import app, random_labels, random_selector

NAMESPACES = ("blue", "green", "red")
KEYS = ("zone", "rack", "host")


def pod(
    name: str,
    *,
    labels: Mapping[str, str] = {},
    near: list[dict[str, Any]] | None = None,
    apart: list[dict[str, Any]] | None = None,
    namespace: str = "blue",
    **spec: Any,
) -> Pod:
    affinity = {}
    if near:
        affinity["podAffinity"] = {REQUIRED: near}
    if apart:
        affinity["podAntiAffinity"] = {REQUIRED: apart}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": dict(labels)}
    return msgspec.convert({"metadata": meta, "spec": {"affinity": affinity, **spec}}, Pod)


def term(key: str, selector: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, **({} if selector is None else {"labelSelector": selector}), **more}


class World:
    """Nodes, namespaces and pods on nodes, told to the books one by one."""

    def __init__(self) -> None:
        self.placed = PlacedPods()
        self.nodes: dict[str, dict[str, str]] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.pods: dict[str, tuple[str, Pod]] = {}

    def node(self, name: str, **labels: str) -> None:
        self.nodes[name] = labels
        self.placed.set_node(name, labels)

    def put(self, item: Pod, node: str | None) -> None:
        name = item.metadata.uid
        if node is None:
            self.pods.pop(name, None)
        else:
            self.pods[name] = node, item
        self.placed.place(name, item.metadata.namespace, node, pod_facts(item))

    def reasons(self, asking: Pod) -> dict[str, str | None]:
        index = NodeIndex()
        for name, labels in self.nodes.items():
            index.put(Node(metadata=ObjectMeta(name=name, labels=labels)))
        found = placement_demand(self.placed, SpreadScopes(index), Storage(), asking, asking.metadata.uid, Effort())
        return {name: None if found is None else found.reason(index.get(name)) for name in index.names}

    def narrowed(self, asking: Pod) -> Names | None:
        index = NodeIndex()
        for name, labels in self.nodes.items():
            index.put(Node(metadata=ObjectMeta(name=name, labels=labels)))
        found = placement_demand(self.placed, SpreadScopes(index), Storage(), asking, asking.metadata.uid, Effort())
        return None if found is None else found.narrowed(index)

    def slowly(self, asking: Pod) -> dict[str, str | None]:
        slow = SlowPlacement(
            {name: {"metadata": {"name": name, "labels": labels}} for name, labels in self.nodes.items()},
            [(node, plain(item)) for node, item in self.pods.values()],
            self.namespaces,
        )
        return {name: slow.of_affinity(plain(asking), name) for name in self.nodes}


def random_terms(rng: random.Random, most: int) -> list[dict[str, Any]]:
    terms = []
    for _ in range(rng.randint(0, most)):
        one = term(rng.choice(KEYS), rng.choice([None, *(random_selector(rng) for _ in range(6))]))
        if rng.random() < 0.3:
            one["namespaces"] = rng.sample(NAMESPACES, rng.randint(1, 2))
        if rng.random() < 0.3:
            no_team = {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}
            one["namespaceSelector"] = rng.choice([{}, {"matchLabels": {"team": "x"}}, no_team])
        terms.append(one)
    return terms


def random_pod(rng: random.Random, name: str) -> Pod:
    return pod(
        name,
        labels=random_labels(rng),
        namespace=NAMESPACES[int(name) % 3],
        near=random_terms(rng, rng.choice([0, 0, 2])),
        apart=random_terms(rng, rng.choice([0, 0, 2])),
    )


def random_node_labels(rng: random.Random) -> dict[str, str]:
    return {key: f"{key}-{rng.randint(0, 2)}" for key in KEYS if rng.random() < 0.85}


@pytest.mark.parametrize("seed", sampled(range(300), 15, 100))
def test_each_node_has_the_reason_that_the_words_of_the_api_give_it(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    asked = [random_pod(rng, str(number)) for number in range(6)]  # asked again and again, so that counts must follow
    for _ in range(60):
        step = rng.random()
        if step < 0.25 or not world.nodes:
            world.node(f"n{rng.randint(0, 5)}", **random_node_labels(rng))
        elif step < 0.3:
            name = rng.choice(sorted(world.nodes))
            del world.nodes[name]
            world.placed.remove_node(name)
        elif step < 0.4:
            name = rng.choice(NAMESPACES)
            labels = rng.choice([None, {}, {"team": "x"}])
            if labels is not None or name in world.namespaces:
                world.namespaces.pop(name, None)
                world.namespaces |= {} if labels is None else {name: labels}
                world.placed.set_namespace(name, labels)
        else:
            item = rng.choice(asked) if rng.random() < 0.2 else random_pod(rng, str(rng.randint(10, 20)))
            world.put(item, rng.choice([None, *(f"n{number}" for number in range(6))]))
        asking = rng.choice(asked) if rng.random() < 0.7 else random_pod(rng, str(rng.randint(10, 20)))
        reasons = world.reasons(asking)
        assert reasons == world.slowly(asking), seed
        narrowed = world.narrowed(asking)
        assert narrowed is None or {name for name, reason in reasons.items() if reason is None} <= narrowed, seed
        world.placed.check(world.nodes)


# What kube-scheduler's own tests hold (plugin InterPodAffinity), as facts in our words.

SECURE = {"service": "securityscan"}
BY_SERVICE = {"matchExpressions": [{"key": "service", "operator": "In", "values": ["securityscan", "value2"]}]}
BY_OTHER = {"matchExpressions": [{"key": "service", "operator": "In", "values": ["antivirusscan", "value2"]}]}
NOT_SERVICE = {"matchExpressions": [{"key": "service", "operator": "NotIn", "values": ["securityscan3", "value3"]}]}


@pytest.mark.parametrize(
    ("asking", "there", "expected"),
    [
        (pod("p"), None, None),
        (pod("p", near=[term("region", BY_SERVICE)]), pod("e", labels=SECURE), None),
        (pod("p", near=[term("region", NOT_SERVICE)]), pod("e", labels=SECURE), None),
        (
            pod("p", near=[term("region", BY_SERVICE, namespaces=["other"])]),
            pod("e", labels=SECURE, namespace="ns"),
            NOT_NEAR,
        ),
        (pod("p", labels=SECURE, near=[term("region", BY_OTHER)]), pod("e", labels=SECURE), NOT_NEAR),
        (
            pod("p", near=[term("region", BY_SERVICE)], apart=[term("node", BY_OTHER)]),
            pod("e", labels=SECURE),
            None,
        ),
        (
            pod("p", near=[term("region", BY_SERVICE)], apart=[term("zone", BY_SERVICE)]),
            pod("e", labels=SECURE),
            NEAR_OTHERS,
        ),
        (pod("p", labels=SECURE, near=[term("region", NOT_SERVICE)]), pod("e", labels={"service": "value3"}), None),
        (pod("p", labels=SECURE), pod("e", apart=[term("zone", BY_SERVICE)]), KEPT_OFF),
        (pod("p", labels=SECURE), pod("e", apart=[term("zone", BY_OTHER)]), None),
        (pod("p", labels=SECURE, apart=[term("zone", BY_OTHER)]), pod("e", apart=[term("zone", BY_SERVICE)]), KEPT_OFF),
        (pod("p", apart=[term("zone", BY_SERVICE)]), pod("e", labels=SECURE, namespace="ns"), None),
        (
            pod("p", apart=[term("zone", BY_SERVICE, namespaceSelector={})]),
            pod("e", labels=SECURE, namespace="ns"),
            NEAR_OTHERS,
        ),
        (
            pod("p", near=[term("region", BY_SERVICE, namespaceSelector={"matchLabels": {"team": "x"}})]),
            pod("e", labels=SECURE, namespace="teamx"),
            None,
        ),
        (
            pod("p", near=[term("region", BY_SERVICE, namespaceSelector={"matchLabels": {"team": "y"}})]),
            pod("e", labels=SECURE, namespace="teamx"),
            NOT_NEAR,
        ),
    ],
)
def test_one_node_and_one_pod_on_it(asking: Pod, there: Pod | None, expected: str | None) -> None:
    world = World()
    world.node("node1", region="r1", zone="z11")
    world.placed.set_namespace("teamx", {"team": "x"})
    if there is not None:
        world.put(there, "node1")
    assert world.reasons(asking) == {"node1": expected}


def test_the_first_pod_of_a_series_may_go_wherever_the_node_has_the_label() -> None:
    world = World()
    world.node("a", zone="z1")
    world.node("b", zone="z2")
    world.node("c")
    first = pod("p", labels={"app": "a"}, near=[term("zone", app("a"))])
    assert world.reasons(first) == {"a": None, "b": None, "c": NOT_NEAR}
    world.put(first, "a")
    second = pod("q", labels={"app": "a"}, near=[term("zone", app("a"))])
    assert world.reasons(second) == {"a": None, "b": NOT_NEAR, "c": NOT_NEAR}
    assert world.reasons(first) == {"a": None, "b": None, "c": NOT_NEAR}  # it is not its own neighbour


def test_nodes_far_from_the_pod_that_is_wanted_are_not_looked_at() -> None:
    world = World()
    for number in range(20):
        world.node(f"n{number}", host=f"h{number}")
    world.put(pod("db", labels={"app": "db"}), "n7")
    assert world.narrowed(pod("p", near=[term("host", app("db"))])) == {"n7"}
    assert world.narrowed(pod("p", near=[term("host", app("web"))])) == frozenset()
    assert world.narrowed(pod("p", labels={"app": "web"}, near=[term("host", app("web"))])) is None


def test_all_terms_are_about_the_same_pod() -> None:
    world = World()
    world.node("a", zone="z1", host="h1")
    world.put(pod("x", labels={"app": "a"}), "a")
    world.put(pod("y", labels={"tier": "x"}), "a")
    both = [term("zone", app("a")), term("host", {"matchLabels": {"tier": "x"}})]
    assert world.reasons(pod("p", near=both)) == {"a": NOT_NEAR}
    world.put(pod("z", labels={"app": "a", "tier": "x"}), "a")
    assert world.reasons(pod("p", near=both)) == {"a": None}


def test_terms_that_cannot_be_read_refuse_the_pod_that_has_them_and_bother_no_other() -> None:
    world = World()
    world.node("a", zone="z1")
    bad = pod("bad", near=[term("zone", {"matchExpressions": [{"key": "app", "operator": "Resembles"}]})])
    with pytest.raises(UnreadableSelectorError, match="Resembles"):
        world.reasons(bad)
    world.put(pod("other", apart=[term("zone", {"matchExpressions": [{"key": "app", "operator": "In"}]})]), "a")
    assert world.reasons(pod("p", labels={"app": "a"})) == {"a": None}


@pytest.mark.parametrize(
    "document", [[], {"matchLabels": ["x"]}, {"matchExpressions": {"x": 1}}, {"matchExpressions": ["x"]}]
)
def test_what_is_no_label_selector_is_said_to_be_none(document: Any) -> None:
    with pytest.raises(UnreadableSelectorError):
        read_label_selector(document)


def test_a_pod_without_rules_pays_nothing() -> None:
    world = World()
    world.node("a", zone="z1")
    for number in range(50):
        world.put(pod(str(number), labels={"app": "a"}), "a")
    assert (
        placement_demand(
            world.placed, SpreadScopes(NodeIndex()), Storage(), pod("p", labels={"app": "a"}), "p", Effort()
        )
        is None
    )
    assert not world.placed.changes(), "nobody asked, so nothing is counted"


def test_counts_that_nobody_holds_and_nobody_asked_for_lately_are_forgotten() -> None:
    world = World()
    world.node("a", zone="z1")
    held = placement_demand(
        world.placed, SpreadScopes(NodeIndex()), Storage(), pod("p", near=[term("zone", app("held"))]), "p", Effort()
    )
    assert held is not None
    for number in range(2 * MAX_COUNTS):
        world.reasons(pod("p", near=[term("zone", app(str(number)))]))
    world.placed.changes()
    world.put(pod("e", labels={"app": "0"}), "a")
    assert not world.placed.changes()
    world.put(pod("f", labels={"app": "held"}), "a")
    assert {change.is_more for change in world.placed.changes()} == {True}
    assert len(world.placed._counts) <= MAX_COUNTS + 1
