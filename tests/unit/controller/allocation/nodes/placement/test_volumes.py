"""Volumes against a slow version that asks each volume anew for each node, and what kube-scheduler's tests hold."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Node, ObjectMeta, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.nodes.node_filter import Names, NodeIndex
from dracaena.controller.allocation.nodes.placement.placed_pods import PlacedPods, pod_facts
from dracaena.controller.allocation.nodes.placement.placement_demand import placement_demand
from dracaena.controller.allocation.nodes.placement.spread import SpreadScopes
from dracaena.controller.allocation.nodes.placement.volumes import (
    IN_USE,
    NO_CLAIM,
    NO_VOLUME,
    NONE_TO_BIND,
    NOT_BOUND,
    NOT_THERE,
    OTHER_ZONE,
    SELECTED_NODE,
    Storage,
)
from support.reasons.recording import plain
from support.seeds import sampled
from support.slow_placement import SlowPlacement

ZONE = "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
GIB = 1 << 30


def pod(name: str, *claims: str, ephemeral: str = "") -> Pod:
    volumes: list[dict[str, Any]] = [
        {"name": f"v{place}", "persistentVolumeClaim": {"claimName": claim}} for place, claim in enumerate(claims)
    ]
    if ephemeral:
        volumes.append({"name": ephemeral, "ephemeral": {}})
    volumes.append({"name": "config", "configMap": {"name": "x"}})
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": meta, "spec": {"volumes": volumes}}, Pod)


def volume_claim(name: str, volume: str = "", *, kind: str = "", gib: int = 1, **more: Any) -> PersistentVolumeClaim:
    annotations = more.pop("annotations", BOUND if volume else {})
    spec = {
        "volumeName": volume,
        "storageClassName": kind,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{gib}Gi"}},
        **more,
    }
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": spec}, PersistentVolumeClaim)


def near(key: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": "In", "values": list(values)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def volume(
    name: str,
    affinity: dict[str, Any] | None = None,
    *,
    kind: str = "",
    gib: int = 1,
    labels: Mapping[str, str] = {},
    phase: str = "Available",
    **more: Any,
) -> PersistentVolume:
    spec = {
        "capacity": {"storage": str(gib * GIB)},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": kind,
        "nodeAffinity": affinity,
        **more,
    }
    document = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec, "status": {"phase": phase}}
    return msgspec.convert(document, PersistentVolume)


def storage_class(name: str, *zones: str, provisioner: str = "disk.example.com", waits: bool = True) -> StorageClass:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}] if zones else []
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    return StorageClass(ObjectMeta(name), provisioner, mode, topologies)


class World:
    """Nodes a and b in zone x, c in zone y, d in none."""

    def __init__(self, *objects: PersistentVolumeClaim | PersistentVolume | StorageClass) -> None:
        self.placed = PlacedPods()
        self.index = NodeIndex()
        self.storage = Storage()
        for name, zone in {"a": "x", "b": "x", "c": "y", "d": ""}.items():
            labels = {"kubernetes.io/hostname": name, **({ZONE: zone} if zone else {})}
            self.index.put(Node(metadata=ObjectMeta(name=name, labels=labels)))
            self.placed.set_node(name, labels)
        self.pods: list[tuple[str, Pod]] = []
        self.storage.set_claim("default/other", volume_claim("other"))
        for item in objects:
            self.tell(item)

    def tell(self, item: PersistentVolumeClaim | PersistentVolume | StorageClass) -> None:
        if isinstance(item, PersistentVolumeClaim):
            self.storage.set_claim(item.key, item)
        elif isinstance(item, PersistentVolume):
            self.storage.set_volume(item.key, item)
        else:
            self.storage.set_class(item.key, item)

    def put(self, item: Pod, node: str) -> None:
        self.pods.append((node, item))
        self.placed.place(item.metadata.uid, item.metadata.namespace, node, pod_facts(item))

    def slowly(self, asking: Pod) -> dict[str, str | None]:
        storage = self.storage
        every = (storage.claims, storage.volumes, storage.classes)
        slow = SlowPlacement(
            {name: plain(self.index.get(name).node) for name in self.index.names},
            [(node, plain(item)) for node, item in self.pods],
            {},
            *({key: plain(item) for key, item in one.items()} for one in every),
        )
        return {name: slow.of_volumes(plain(asking), name) for name in self.index.names}

    def reasons(self, asking: Pod) -> dict[str, str | None]:
        found = placement_demand(
            self.placed, SpreadScopes(self.index), self.storage, asking, asking.metadata.uid, Effort()
        )
        return {name: None if found is None else found.reason(self.index.get(name)) for name in self.index.names}

    def narrowed(self, asking: Pod) -> Names | None:
        found = placement_demand(
            self.placed, SpreadScopes(self.index), self.storage, asking, asking.metadata.uid, Effort()
        )
        return None if found is None else found.narrowed(self.index)

    def allowed(self, asking: Pod) -> str:
        return "".join(name for name, reason in self.reasons(asking).items() if reason is None)


ANY = "abcd"
LOCAL = storage_class("local", provisioner="kubernetes.io/no-provisioner")
DISK = storage_class("disk")
KEPT_FOR_C: Any = {"claimRef": {"name": "c", "namespace": "default"}}
KEPT_FOR_OTHERS: Any = {"claimRef": {"name": "z", "namespace": "default"}}


@pytest.mark.parametrize(
    ("objects", "allowed", "reason"),
    [
        # Bound claims.
        ([volume_claim("c", "v"), volume("v")], ANY, None),
        ([volume_claim("c", "v"), volume("v", near(ZONE, "y"))], "c", NOT_THERE),
        ([volume_claim("c", "v"), volume("v", {"required": {"nodeSelectorTerms": []}})], "", NOT_THERE),
        ([volume_claim("c", "v")], "", NO_VOLUME),
        ([volume_claim("c", "v"), volume("v", labels={ZONE: "y"})], "cd", OTHER_ZONE),
        ([volume_claim("c", "v"), volume("v", labels={ZONE: "y__z"})], "cd", OTHER_ZONE),
        ([volume_claim("c", "v"), volume("v", labels={OLD_ZONE: "x"})], "abd", OTHER_ZONE),
        ([volume_claim("c", "v"), volume("v", labels={ZONE: "y__"})], ANY, None),
        # Claims that are not bound, and wait for nobody.
        ([], "", NO_CLAIM),
        ([volume_claim("c")], "", NOT_BOUND),
        ([volume_claim("c", kind="gone")], "", NOT_BOUND),
        ([volume_claim("c", kind="now"), storage_class("now", waits=False)], "", NOT_BOUND),
        ([volume_claim("c", "v", kind="disk", annotations={}), volume("v"), DISK], "", NOT_BOUND),
        # Claims whose volume is made for the pod.
        ([volume_claim("c", kind="disk"), DISK], ANY, None),
        ([volume_claim("c", kind="disk"), storage_class("disk", "y")], "c", NONE_TO_BIND),
        (
            [volume_claim("c", kind="disk", annotations={"volume.kubernetes.io/selected-node": "b"}), DISK],
            "b",
            NONE_TO_BIND,
        ),
        ([volume_claim("c", kind="disk"), storage_class("disk", provisioner="")], "", NONE_TO_BIND),
        # Claims that take a volume which is there.
        ([volume_claim("c", kind="local"), LOCAL], "", NONE_TO_BIND),
        ([volume_claim("c", kind="local"), LOCAL, volume("v", kind="local")], ANY, None),
        (
            [volume_claim("c", kind="local"), LOCAL, volume("v", near("kubernetes.io/hostname", "b"), kind="local")],
            "b",
            NONE_TO_BIND,
        ),
        ([volume_claim("c", kind="local", gib=2), LOCAL, volume("v", kind="local")], "", NONE_TO_BIND),
        ([volume_claim("c", kind="local"), LOCAL, volume("v", kind="other")], "", NONE_TO_BIND),
        ([volume_claim("c", kind="local"), LOCAL, volume("v", kind="local", phase="Released")], "", NONE_TO_BIND),
        ([volume_claim("c", kind="local"), LOCAL, volume("v", kind="local", volumeMode="Block")], "", NONE_TO_BIND),
        ([volume_claim("c", kind="local"), LOCAL, volume("v", kind="local", **KEPT_FOR_OTHERS)], "", NONE_TO_BIND),
        (
            [volume_claim("c", kind="local"), LOCAL, volume("v", kind="local", phase="Bound", **KEPT_FOR_C)],
            ANY,
            None,
        ),
        (
            [
                volume_claim("c", kind="local"),
                LOCAL,
                volume("free", kind="local"),
                volume("kept", near(ZONE, "y"), kind="local", **KEPT_FOR_C),
            ],
            "c",
            NONE_TO_BIND,
        ),
        (
            [volume_claim("c", kind="local", accessModes=["ReadWriteMany"]), LOCAL, volume("v", kind="local")],
            "",
            NONE_TO_BIND,
        ),
        (
            [
                volume_claim("c", kind="local", selector={"matchLabels": {"fast": "yes"}}),
                LOCAL,
                volume("slow", kind="local"),
                volume("fast", near(ZONE, "y"), kind="local", labels={"fast": "yes"}),
            ],
            "c",
            NONE_TO_BIND,
        ),
        # A volume that is there is taken before one is made.
        (
            [volume_claim("c", kind="disk"), storage_class("disk", "y"), volume("v", near(ZONE, "x"), kind="disk")],
            "abc",
            NONE_TO_BIND,
        ),
    ],
)
def test_one_claim(objects: list[Any], allowed: str, reason: str | None) -> None:
    world = World(*objects)
    assert world.allowed(pod("p", "c")) == allowed
    narrowed = world.narrowed(pod("p", "c"))
    assert narrowed is None or set(allowed) <= narrowed
    assert set(world.reasons(pod("p", "c")).values()) - {None} == ({reason} if reason else set())


def test_nodes_without_the_volume_are_not_looked_at() -> None:
    world = World(volume_claim("c", "v"), volume("v", near("kubernetes.io/hostname", "b")))
    assert world.narrowed(pod("p", "c")) == {"b"}


def test_two_claims_do_not_take_one_volume() -> None:
    here = near("kubernetes.io/hostname", "a")
    world = World(LOCAL, volume_claim("small", kind="local"), volume_claim("large", kind="local", gib=2))
    world.tell(volume("large", here, kind="local", gib=2))
    assert world.allowed(pod("p", "small", "large")) == ""
    world.tell(volume("small", here, kind="local"))
    assert world.allowed(pod("p", "small", "large")) == "a"


def test_a_volume_for_one_pod_is_refused_while_another_uses_it_and_not_to_its_own_pod() -> None:
    world = World(volume_claim("c", "v", accessModes=["ReadWriteOncePod"]), volume("v"))
    first, second = pod("p", "c"), pod("q", "c")
    assert world.allowed(first) == ANY
    world.placed.place(first.metadata.uid, "default", "a", pod_facts(first))
    assert world.allowed(first) == ANY
    assert set(world.reasons(second).values()) == {IN_USE}
    world.placed.place(first.metadata.uid, "default", None, None)
    assert world.allowed(second) == ANY


def test_a_generic_ephemeral_volume_has_a_claim_named_after_pod_and_volume() -> None:
    world = World(volume_claim("p-scratch", "v"), volume("v", near(ZONE, "y")))
    assert world.allowed(pod("p", ephemeral="scratch")) == "c"
    assert set(world.reasons(pod("q", ephemeral="scratch")).values()) == {NO_CLAIM}


def test_where_nothing_shows_claims_nothing_is_said_of_volumes() -> None:
    world = World()
    world.storage.set_claim("default/other", None)
    assert world.allowed(pod("p", "c")) == ANY


def test_a_volume_that_changes_its_class_or_goes_is_found_there_no_more() -> None:
    world = World(LOCAL, volume_claim("c", kind="local"), volume("v", kind="local"))
    world.tell(volume("v", kind="other"))
    assert world.allowed(pod("p", "c")) == ""
    world.tell(volume("v", kind="local"))
    assert world.allowed(pod("p", "c")) == ANY
    world.storage.set_volume("v", None)
    assert world.allowed(pod("p", "c")) == ""


def random_claim(rng: random.Random, name: str, kinds: list[str]) -> PersistentVolumeClaim:
    more: dict[str, Any] = {}
    if rng.random() < 0.2:
        more["accessModes"] = ["ReadWriteOncePod"]
    if rng.random() < 0.2:
        more["selector"] = {"matchLabels": {"app": "a"}}
    if rng.random() < 0.1:
        more["annotations"] = {SELECTED_NODE: rng.choice(ANY)}
    if rng.random() < 0.1:
        more["volumeMode"] = "Block"
    of = rng.choice(["", "", "", *(f"v{number}" for number in range(6)), "gone"])
    return volume_claim(name, of, kind=rng.choice(kinds), gib=rng.randint(1, 3), **more)


def random_volume(rng: random.Random, name: str, kinds: list[str]) -> PersistentVolume:
    where = rng.choice([None, near(ZONE, rng.choice("xy")), near("kubernetes.io/hostname", rng.choice(ANY))])
    labels = {key: value for key, value in {ZONE: "x__y", OLD_ZONE: "x", "app": "a"}.items() if rng.random() < 0.3}
    if ZONE in labels:
        labels[ZONE] = rng.choice(["x", "y", "x__y", "x__"])
    more: dict[str, Any] = {"volumeMode": "Block"} if rng.random() < 0.1 else {}
    phase = rng.choice(["Available", "Available", "Available", "Released"])
    return volume(name, where, kind=rng.choice(kinds), gib=rng.randint(1, 3), labels=labels, phase=phase, **more)


@pytest.mark.parametrize("seed", sampled(range(1_000), 100, 300))
@pytest.mark.parametrize("wild", [False, True])
def test_claims_that_take_volumes_or_have_some_made_are_served_as_by_the_slow_version(seed: int, wild: bool) -> None:
    """Without what makes one claim unfit everywhere, and with it: bound claims, classes that do not wait, and more."""
    rng = random.Random(seed)
    world = World(LOCAL, storage_class("disk", *rng.sample("xy", rng.randint(0, 2))), storage_class("now", waits=False))
    kinds = ["local", "disk"]
    for number in range(rng.randint(0, 6)):
        if wild:
            world.tell(random_volume(rng, f"v{number}", kinds))
            continue
        where = rng.choice([None, near(ZONE, rng.choice("xy")), near("kubernetes.io/hostname", rng.choice(ANY))])
        world.tell(volume(f"v{number}", where, kind=rng.choice(kinds), gib=rng.randint(1, 3)))
    if wild and rng.random() < 0.3:
        world.tell(volume("kept", kind="local", gib=rng.randint(1, 3), claimRef={"name": "c0", "namespace": "default"}))
    names = [f"c{number}" for number in range(rng.randint(1, 3))]
    for name in names if not wild else names[: rng.choice([1, 3, 3, 3, 3])]:
        plain_claim = volume_claim(name, kind=rng.choice(kinds), gib=rng.randint(1, 3))
        world.tell(random_claim(rng, name, [*kinds, *kinds, *kinds, "now", "missing"]) if wild else plain_claim)
    asking = pod("p", *names)
    if wild:
        world.put(pod("q", rng.choice(names)), rng.choice(ANY))
        world.put(asking, rng.choice(ANY))
    assert world.reasons(asking) == world.slowly(asking)
