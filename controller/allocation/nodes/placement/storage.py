"""Volume claims, volumes and storage classes, cut down to what tells where a pod can have its volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.objects import PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.nodes.matching import NodeSelector, read_node_selector

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
ONE_POD: Final = "ReadWriteOncePod"

ZONE_LABELS: Final[Mapping[str, str]] = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels by which in-tree volumes say where they are → the label of today."""


@dataclass(frozen=True, slots=True)
class Zones:
    """A label that nodes must have with one of the values; a beta label may stand on them as that of today."""

    label: str
    values: frozenset[str]

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels is in one of the zones; one without any zone label always is."""
        if not ZONE_LABELS.keys() & labels.keys():
            return True
        value = labels.get(self.label, labels.get(ZONE_LABELS[self.label]))
        return value is not None and value in self.values


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume, read."""

    affinity: NodeSelector | None
    zones: tuple[Zones, ...]


def read_volume(item: PersistentVolume) -> Volume:
    """Read where a volume can be used. What cannot be read of its node affinity matches no node."""
    affinity = item.spec.node_affinity
    required = None if affinity is None else affinity.get("required")
    zones = (
        Zones(label, frozenset(part.strip() for part in item.metadata.labels[label].split("__")))
        for label in ZONE_LABELS
        if all(part.strip() for part in item.metadata.labels.get(label, "").split("__"))
    )
    return Volume(None if required is None else read_node_selector(required), tuple(zones))


def volume_claims(pod: Pod) -> Iterator[str]:
    """Yield the names of the volume claims of a pod, each once; a generic ephemeral volume has one of its own."""
    names = (
        volume.persistent_volume_claim.claim_name
        if volume.persistent_volume_claim is not None
        else f"{pod.metadata.name}-{volume.name}"
        for volume in pod.spec.volumes
        if volume.persistent_volume_claim is not None or volume.ephemeral is not None
    )
    yield from dict.fromkeys(names)


def class_of(item: PersistentVolumeClaim | PersistentVolume) -> str:
    """Return the name of a storage class; nothing where there is none."""
    return item.metadata.annotations.get(BETA_CLASS, item.spec.storage_class_name or "")


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Whether a claim has its volume for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def may_provision(item: StorageClass) -> bool:
    """Whether volumes of a class are made on demand."""
    return item.provisioner not in ("", NO_PROVISIONER)


def allows_topology(item: StorageClass, labels: Mapping[str, str]) -> bool:
    """Return whether volumes of a class can be made for a node with these labels (allowedTopologies)."""
    terms = item.allowed_topologies
    return not terms or any(_is_met(term.get("matchLabelExpressions"), labels) for term in terms)


def _is_met(expressions: Any, labels: Mapping[str, str]) -> bool:
    return bool(expressions) and all(labels.get(one.get("key")) in (one.get("values") or ()) for one in expressions)


def could_be(claim: PersistentVolumeClaim, volume: PersistentVolume, *, is_meant: bool = False) -> bool:
    """Return whether a volume would do for a claim, wherever it is (component-helpers, FindMatchingVolume); less is
    asked of one that is meant for it."""
    wanted, has = claim.spec, volume.spec
    if volume.metadata.deletion_timestamp is not None or size_of(has.capacity) < size_of(wanted.resources.requests):
        return False
    if (wanted.volume_mode or "Filesystem") != (has.volume_mode or "Filesystem"):
        return False
    if (wanted.volume_attributes_class_name or "") != (has.volume_attributes_class_name or ""):
        return False
    return is_meant or (
        class_of(claim) == class_of(volume)
        and volume.status.phase == "Available"
        and set(wanted.access_modes) <= set(has.access_modes)
    )


def is_meant_for(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Return whether a volume is reserved for a claim."""
    ref = volume.spec.claim_ref
    return ref is not None and (
        (ref.name, ref.namespace) == (claim.metadata.name, claim.metadata.namespace)
        and ref.uid in ("", claim.metadata.uid)
    )


def size_of(amounts: Mapping[str, Any]) -> int:
    """Return the bytes of storage that are asked for or there, in billionths; 0 where none can be read."""
    try:
        return parse_quantity(str(amounts.get("storage", "0"))).nano
    except ValueError:
        return 0
