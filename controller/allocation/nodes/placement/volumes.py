"""Whether a pod can have its volumes on a node, as kube-scheduler 1.36 judges it (plugins VolumeRestrictions,
VolumeBinding and VolumeZone). First come volume claims, volumes and storage classes, then the rules of one pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from dracaena.api.objects import PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.nodes.matching import NodeSelector, read_node_selector
from dracaena.controller.allocation.nodes.node_filter import IndexedNode, Names, NodeIndex
from dracaena.controller.allocation.nodes.placement.placed_pods import Change, ClaimUse, OfClass, PlacedPods
from dracaena.controller.allocation.nodes.placement.pod_terms import UnreadableSelectorError, read_label_selector

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
"""Labels by which in-tree volumes say where they are → today's label."""


@dataclass(frozen=True, slots=True)
class Zones:
    """A label that nodes must have with one of the values; today's label counts for a beta label."""

    label: str
    values: frozenset[str]

    def allows(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels is in one of the zones; a node without any zone label always is."""
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
    """Read where a volume can be used. Unreadable parts of its node affinity match no node."""
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
    """Return the name of the storage class; empty when there is none."""
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
    """Return whether a volume would suit a claim, wherever it is (component-helpers, FindMatchingVolume); a volume that
    is meant for the claim has to meet less."""
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
    """Return the bytes of storage that are asked for or there, in billionths; 0 if none can be read."""
    try:
        return parse_quantity(str(amounts.get("storage", "0"))).nano
    except ValueError:
        return 0


IN_USE: Final = "while another pod uses a ReadWriteOncePod volume of this pod"
NO_CLAIM: Final = "while a PersistentVolumeClaim of the pod does not exist"
NOT_BOUND: Final = "while a PersistentVolumeClaim of the pod is not bound"
NO_VOLUME: Final = "while a PersistentVolume of the pod does not exist"
NOT_THERE: Final = "not matching the node affinity of the pod's PersistentVolumes"
NONE_TO_BIND: Final = "without a PersistentVolume that the pod's claims could have there"
OTHER_ZONE: Final = "outside the zones of the pod's PersistentVolumes"

_WAITS: Final = "WaitForFirstConsumer"


class Storage:
    """Claims for storage, volumes and storage classes, as the watches show them. One owner, one thread at a time."""

    def __init__(self) -> None:
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self._of_class: dict[str, dict[str, PersistentVolume]] = {}

    @property
    def is_known(self) -> bool:
        """Whether there is any claim: if none are shown, as in a simulation, volumes are not judged."""
        return bool(self.claims)

    def of_class(self, name: str) -> Mapping[str, PersistentVolume]:
        """Return the volumes of a storage class by name."""
        return self._of_class.get(name, {})

    def set_claim(self, key: str, claim: PersistentVolumeClaim | None) -> None:
        """Take in a claim for storage; None: it is gone."""
        if claim is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = claim

    def set_class(self, name: str, kind: StorageClass | None) -> None:
        """Take in a storage class; None: it is gone."""
        if kind is None:
            self.classes.pop(name, None)
        else:
            self.classes[name] = kind

    def set_volume(self, name: str, volume: PersistentVolume | None) -> None:
        """Take in a volume; None: it is gone."""
        before = self.volumes.pop(name, None)
        if before is not None:
            siblings = self._of_class[class_of(before)]
            del siblings[name]
            if not siblings:
                del self._of_class[class_of(before)]
        if volume is not None:
            self.volumes[name] = volume
            self._of_class.setdefault(class_of(volume), {})[name] = volume


@dataclass(frozen=True, slots=True)
class _Unbound:
    """A claim that gets a volume when its pod has a node."""

    claim: PersistentVolumeClaim
    selected_node: str | None
    nearby: Mapping[str, Sequence[PersistentVolume]]
    """Volumes that may suit and are on few nodes, by node."""
    wide: Sequence[tuple[PersistentVolume, Volume]]
    """The other volumes that may suit."""


class VolumeRules:
    """The volumes of one pod. Worked out at the first question, and invalid after a change."""

    def __init__(
        self, storage: Storage, placed: PlacedPods, nodes: NodeIndex, pod: Pod, name: str, effort: Effort
    ) -> None:
        self._storage = storage
        self._nodes = nodes
        self._effort = effort
        self._bound: list[Volume] = []
        self._unbound: list[_Unbound] = []
        self._names = tuple(volume_claims(pod))
        self._pod = pod
        self._placed = placed
        self._name = name

    @property
    def waits_for(self) -> Mapping[Change, None]:
        """What has to change somewhere before a refused node may suit the pod: its own claims, and the volumes and
        storage classes of those that are not bound."""
        namespace = self._pod.metadata.namespace
        found = (self._storage.claims.get(f"{namespace}/{name}") for name in self._names)
        classes = [OfClass(class_of(claim)) for claim in found if claim is not None and not is_bound(claim)]
        changes = [Change(ClaimUse(namespace, name), is_more=False) for name in self._names]
        return dict.fromkeys([*changes, *(Change(one, is_more=False) for one in classes)])

    def reason(self, indexed: IndexedNode) -> str | None:
        """Return why a node is unfit for the pod, in words that follow a count of nodes.

        Cost: a step for each volume that is bound, or that may suit and is not tied to few nodes.
        """
        if self._everywhere is not None:
            return self._everywhere
        node = indexed.node
        self._effort.charge(len(self._bound), Work.NODES)
        if any(one.affinity is not None and not one.affinity.matches(node) for one in self._bound):
            return NOT_THERE
        if self._unbound and not self._can_bind(indexed):
            return NONE_TO_BIND
        if any(not zones.allows(indexed.labels) for one in self._bound for zones in one.zones):
            return OTHER_ZONE
        return None

    def narrowed(self, nodes: NodeIndex) -> Names | None:
        """Return the nodes where the bound volumes can be used, as far as names and labels show; None: all."""
        if self._everywhere is not None:
            return None
        return nodes.selected([one.affinity for one in self._bound if one.affinity is not None], self._effort)

    @cached_property
    def _everywhere(self) -> str | None:
        """Why the pod cannot have its volumes on any node; None when there are nodes to look at."""
        storage, placed, namespace = self._storage, self._placed, self._pod.metadata.namespace
        own = placed.placed(namespace, self._name)
        claims = [storage.claims.get(f"{namespace}/{claim}") for claim in self._names]
        there = [claim for claim in claims if claim is not None]
        if len(there) < len(claims):
            return NO_CLAIM
        for claim in there:
            itself = own is not None and claim.metadata.name in own[1].volume_claims
            users = placed.users(ClaimUse(namespace, claim.metadata.name)) - itself
            if ONE_POD in claim.spec.access_modes and users > 0:
                return IN_USE
        for claim in sorted(there, key=lambda claim: (size_of(claim.spec.resources.requests), claim.metadata.name)):
            if is_bound(claim):
                volume = storage.volumes.get(claim.spec.volume_name)
                if volume is None:
                    return NO_VOLUME
                self._bound.append(read_volume(volume))
                continue
            kind = storage.classes.get(class_of(claim))
            if kind is None or kind.volume_binding_mode != _WAITS or claim.spec.volume_name:
                return NOT_BOUND
            self._unbound.append(self._candidates(claim))
        return None

    def _candidates(self, claim: PersistentVolumeClaim) -> _Unbound:
        selected_node = claim.metadata.annotations.get(SELECTED_NODE)
        nearby: dict[str, list[PersistentVolume]] = {}
        wide = []
        volumes = [] if selected_node is not None else list(self._storage.of_class(class_of(claim)).values())
        self._effort.charge(len(volumes), Work.NODES)
        for volume in sorted(_fitting(claim, volumes), key=lambda one: (size_of(one.spec.capacity), one.metadata.name)):
            read = read_volume(volume)
            names = None if read.affinity is None else self._nodes.selected((read.affinity,), self._effort)
            if names is None or read.affinity is None:
                wide.append((volume, read))
                continue
            for name in names:
                if name in self._nodes and read.affinity.matches(self._nodes.get(name).node):
                    nearby.setdefault(name, []).append(volume)
        return _Unbound(claim, selected_node, nearby, wide)

    def _can_bind(self, indexed: IndexedNode) -> bool:
        name = indexed.node.metadata.name
        taken: set[str] = set()
        for one in self._unbound:
            if one.selected_node not in (None, name):
                return False
            volume = None if one.selected_node is not None else self._smallest(one, indexed, taken)
            if volume is not None:
                taken.add(volume.metadata.name)
                continue
            kind = self._storage.classes[class_of(one.claim)]
            if not may_provision(kind) or not allows_topology(kind, indexed.labels):
                return False
        return True

    def _smallest(self, one: _Unbound, indexed: IndexedNode, taken: set[str]) -> PersistentVolume | None:
        self._effort.charge(1 + len(one.wide), Work.NODES)
        wide = (volume for volume, read in one.wide if read.affinity is None or read.affinity.matches(indexed.node))
        near = one.nearby.get(indexed.node.metadata.name, ())
        found = [volume for volume in (*near, *wide) if volume.metadata.name not in taken]
        meant = [volume for volume in found if is_meant_for(one.claim, volume)]
        return min(meant or found, key=lambda item: (size_of(item.spec.capacity), item.metadata.name), default=None)


def _fitting(claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume]) -> Iterator[PersistentVolume]:
    """Yield the volumes that a claim may bind to; if one is kept for it, only that one."""
    try:
        selector = read_label_selector(claim.spec.selector)
    except UnreadableSelectorError:
        return
    free = []
    for volume in volumes:
        if volume.spec.claim_ref is not None:
            if is_meant_for(claim, volume) and could_be(claim, volume, is_meant=True):
                yield volume
                return
        elif could_be(claim, volume) and (selector is None or selector.matches(volume.metadata.labels)):
            free.append(volume)
    yield from free
