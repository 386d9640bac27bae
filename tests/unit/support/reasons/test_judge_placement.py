"""What the judge says of reasons about other pods and storage, in small clusters drawn by chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import ObjectMeta, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.nodes.placement import affinity, spread, volumes
from dracaena.controller.allocation.nodes.placement.affinity import AffinityRules
from dracaena.controller.allocation.nodes.placement.placed_pods import Counted, PlacedPods
from dracaena.controller.allocation.nodes.placement.spread import SpreadRules
from dracaena.controller.allocation.nodes.placement.volumes import VolumeRules
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, device_name, machine, node, pool_slice
from support.reasons import recording
from support.reasons.recording import untrue_reasons
from support.seeds import sampled
from support.slow_placement import REQUIRED
from support.slow_selectors import random_labels, random_selector

TWO = machine("lovelace", blocks(2, inside="PIX", outside="PIX"), product_name="L40S")
NODES = ("a", "b", "c", "d")
KEYS = ("zone", "host")
"""Of the nodes' labels."""


def drawn_pod(rng: random.Random, name: str) -> Pod:
    def terms() -> list[dict[str, Any]]:
        return [
            {"topologyKey": rng.choice(KEYS), "labelSelector": random_selector(rng)}
            for _ in range(rng.choice([0, 0, 1, 1, 2]))
        ]

    def constraint() -> dict[str, Any]:
        more = {"minDomains": 3} if rng.random() < 0.2 else {}
        base = {"topologyKey": rng.choice(KEYS), "maxSkew": rng.randint(1, 2), "whenUnsatisfiable": "DoNotSchedule"}
        return {**base, "labelSelector": random_selector(rng), **more}

    names = [f"c{rng.randint(0, 3)}" for _ in range(rng.choice([0, 0, 1, 2]))]
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": random_labels(rng)}
    if name != "p" and rng.random() < 0.2:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    document = {
        "metadata": meta,
        "spec": {
            "affinity": {"podAffinity": {REQUIRED: terms()}, "podAntiAffinity": {REQUIRED: terms()}},
            "topologySpreadConstraints": [constraint() for _ in range(rng.choice([0, 0, 1, 2]))],
            "volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in dict.fromkeys(names)],
        },
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(document, Pod)


def drawn_storage(rng: random.Random, inventory: Inventory) -> None:
    storage = inventory.storage
    for kind, waits in (("disk", True), ("now", False)):
        mode = "WaitForFirstConsumer" if waits else "Immediate"
        storage.set_class(kind, StorageClass(ObjectMeta(kind), "kubernetes.io/no-provisioner", mode, []))
    for number in range(3):
        host = {"key": "host", "operator": "In", "values": rng.sample(NODES, rng.randint(1, 3))}
        spec = {
            "capacity": {"storage": f"{rng.randint(1, 2)}Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"],
            "storageClassName": "disk",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
        }
        document = {"metadata": {"name": f"v{number}"}, "spec": spec, "status": {"phase": "Available"}}
        storage.set_volume(f"v{number}", msgspec.convert(document, PersistentVolume))
    for number in range(rng.choice([1, 4, 4])):
        volume = rng.choice(["", "", f"v{number}"])
        spec = {
            "volumeName": volume,
            "storageClassName": rng.choice(["disk", "disk", "disk", "now"]),
            "accessModes": [rng.choice(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        bound = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
        meta = {"name": f"c{number}", "namespace": "default", "uid": f"c{number}", "annotations": bound}
        document = {"metadata": meta, "spec": spec}
        storage.set_claim(f"default/c{number}", msgspec.convert(document, PersistentVolumeClaim))


def drawn(seed: int) -> tuple[Inventory, Pod, ResourceClaim]:
    """A cluster of four nodes with two GPUs each, most of which are taken, and a pod with rules of all kinds."""
    rng = random.Random(seed)
    labels = {name: {"zone": rng.choice("xy"), "host": name} for name in NODES}
    for name in NODES:
        labels[name] = {key: value for key, value in labels[name].items() if rng.random() < 0.95}
    nodes = [node(name, labels=labels[name]) for name in NODES]
    inventory = make_inventory(
        DRIVER, nodes=nodes, slices=[pool_slice(name, TWO) for name in NODES], classes=[device_class()]
    )
    for name in NODES:
        if rng.random() < 0.7:
            inventory.hold(f"on-{name}", frozenset(DeviceId(DRIVER, name, device_name(TWO, one)) for one in (0, 1)))
    if rng.random() < 0.7:
        drawn_storage(rng, inventory)
    for number in range(rng.randint(0, 6)):
        inventory.place(drawn_pod(rng, f"q{number}"), rng.choice(NODES))
    return inventory, drawn_pod(rng, "p"), claim("c")


def untrue_of(seed: int) -> list[str]:
    inventory, asking, asked = drawn(seed)
    with untrue_reasons() as untrue:
        Allocator().explain(inventory, asking, [asked])
        Allocator().allocate(inventory, asking, [asked])
    return list(untrue)


@pytest.fixture(autouse=True)
def each_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "EACH", 1)
    monkeypatch.setattr(recording.JUDGED, "allocations", 0)


@pytest.mark.parametrize("first", sampled(range(0, 3_000, 50), 2, 10))
def test_each_reason_is_true(first: int) -> None:
    assert {seed: found for seed in range(first, first + 50) if (found := untrue_of(seed))} == {}


def near_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AffinityRules, "reason", lambda _self, _labels: affinity.NOT_NEAR)


def others_rule_for_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(affinity, "KEPT_OFF", affinity.NEAR_OTHERS)


def kept_off_by_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AffinityRules, "reason", lambda _self, _labels: affinity.KEPT_OFF)


def leaving_pods_spread(patch: pytest.MonkeyPatch) -> None:
    right = PlacedPods._is_counted
    patch.setattr(PlacedPods, "_is_counted", lambda self, of, facts: right(self, Counted(of.sets), facts))


def too_many_everywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpreadRules, "reason", lambda _self, _labels: spread.TOO_MANY)


def no_volume_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VolumeRules, "_can_bind", lambda _self, _indexed: False)


def own_use_of_a_volume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlacedPods, "users", lambda _self, _claim: 1)


def bound_or_not(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(volumes, "is_bound", lambda _claim: False)


FAULTS = (
    near_nobody,
    others_rule_for_its_own,
    kept_off_by_nobody,
    leaving_pods_spread,
    too_many_everywhere,
    no_volume_anywhere,
    own_use_of_a_volume,
    bound_or_not,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert any(untrue_of(seed) for seed in range(200))
