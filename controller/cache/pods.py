"""Trims pods so that those of a whole cluster fit into memory: 150,000 take about 100 MiB.

Every pod uses resources of its node, so all are watched; but for most pods only these resources matter. A pod may also
have 700,000 empty terms of node affinity, which take 50 MiB as objects: long lists are kept as text (api.packed).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from dracaena.api.gang_label import GANG_LABEL
from dracaena.api.gpu_quota import MOST_BYTES
from dracaena.api.names import quota_annotation
from dracaena.api.objects import (
    Container,
    ContainerClaim,
    ContainerPort,
    ContainerResources,
    ContainerStatus,
    Namespace,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
    PodVolume,
    SchedulingGate,
    Toleration,
)
from dracaena.api.packed import packed, unpacked
from dracaena.controller.allocation.nodes.node_filter import tolerations_of
from dracaena.controller.allocation.nodes.placement.placed_pods import shared_labels
from dracaena.controller.allocation.nodes.placement.pod_terms import ANTI_AFFINITY, REQUIRED
from dracaena.controller.allocation.nodes.placement.spread import must_hold
from dracaena.controller.allocation.nodes.pod_resources import (
    CPU,
    PODS,
    PodResources,
    UnreadableQuantityError,
    pod_resources,
)
from dracaena.controller.allocation.state.gangs import FAMILY_ANNOTATIONS, MOST_CHARACTERS

# Empty lists and objects that all pods share: separate defaults for each pod would double its size.
_NO_TEXTS: Final[list[str]] = []
_NO_MAP: Final[dict[str, Any]] = {}
_NO_TEXT_MAP: Final[dict[str, str]] = {}
_NO_CONSTRAINTS: Final[list[dict[str, Any]]] = []
_NO_VOLUMES: Final[list[PodVolume]] = []
_NO_OWNERS: Final[list[OwnerReference]] = []
_NO_TOLERATIONS: Final[list[Toleration]] = []
_NO_GATES: Final[list[SchedulingGate]] = []
_NO_CLAIMS: Final[list[PodResourceClaim]] = []
_NO_CONTAINERS: Final[list[Container]] = []
_NO_CONDITIONS: Final[list[PodCondition]] = []
_NO_CLAIM_STATUSES: Final[list[PodResourceClaimStatus]] = []
_NO_STATUSES: Final[list[ContainerStatus]] = []
_Named = tuple[tuple[str, str], ...]
"""Claims and requests that a container names."""

MOST_NAMED: Final = 256
"""Claim requests that are kept of one pod's containers: eight containers with a claim of 32 requests each."""


def kept_pod(pod: Pod) -> Pod:
    """Return a trimmed pod: one container that requests what the whole pod requests, and which claims its containers
    name. Of a pod with claims, or with the label of a gang, what shows its family is kept (allocation.state.gangs), and
    its controller.

    A pod without claims keeps only its name, UID, version, node, gates, PodGroup and phase; what other pods' rules read
    (labels, anti-affinity, claims for storage, whether it is being deleted); and what shows whether kube-scheduler
    makes progress (state.scheduler_progress): priority, the scheduler's name, and its message while the pod has no
    node. pod_resources() returns the same as for the whole pod. Cost: some 20 µs.
    """
    try:
        containers = _few_containers(pod_resources(pod), _named_claims(pod.spec))
    except UnreadableQuantityError:
        bare = ObjectMeta(
            pod.metadata.name,
            pod.metadata.namespace,
            pod.metadata.uid,
            pod.metadata.resource_version,
            labels=_shared(pod.metadata.labels),
        )
        # The decision for this pod says what is wrong.
        return msgspec.structs.replace(pod, metadata=bare, spec=_trimmed_spec(pod))
    has_family = bool(pod.spec.resource_claims) or GANG_LABEL in pod.metadata.labels
    meta = ObjectMeta(
        name=pod.metadata.name,
        namespace=sys.intern(pod.metadata.namespace),
        uid=pod.metadata.uid,
        resource_version=pod.metadata.resource_version,
        creation_timestamp=pod.metadata.creation_timestamp if pod.spec.resource_claims else None,
        deletion_timestamp=pod.metadata.deletion_timestamp,
        labels=_shared(pod.metadata.labels),
        annotations=_family_annotations(pod) if has_family else _NO_TEXT_MAP,
        finalizers=_NO_TEXTS,
        owner_references=_controlling_owner(pod) if has_family else _NO_OWNERS,
    )
    if not pod.spec.resource_claims:
        return Pod(metadata=meta, spec=_plain_spec(pod.spec, containers), status=_plain_status(pod))
    replace = msgspec.structs.replace
    spec = replace(
        _trimmed_spec(pod),
        containers=containers,
        init_containers=_NO_CONTAINERS,
        resources=None,
        overhead=_NO_MAP,
    )
    status = replace(
        pod.status,
        conditions=_scheduling_conditions(pod.status.conditions),
        container_statuses=_NO_STATUSES,
        init_container_statuses=_NO_STATUSES,
        allocated_resources=_NO_MAP,
        resources=None,
    )
    return Pod(metadata=meta, spec=spec, status=status)


def kept_namespace(driver: str) -> Callable[[Namespace], Namespace]:
    """Return a function that trims a namespace to its labels and its quota."""
    name = quota_annotation(driver)

    def kept(namespace: Namespace) -> Namespace:
        meta = namespace.metadata
        quota = {name: meta.annotations[name][: MOST_BYTES + 1]} if name in meta.annotations else {}
        labels = _shared(meta.labels)
        return Namespace(ObjectMeta(meta.name, "", meta.uid, meta.resource_version, labels=labels, annotations=quota))

    return kept


@lru_cache(8_192)
def _few_containers(taken: PodResources, named: tuple[_Named, ...]) -> list[Container]:
    """Return one container that requests what all do, and names the claims of the first that names any; and one for
    each other that names others. Equal pods, of which a cluster has many, share them.
    """
    requests: dict[str, str | int | float] = {
        name: f"{amount}m" if name == CPU else str(amount) for name, amount in taken.amounts if name != PODS
    }
    ports = [ContainerPort(port.port, port.protocol, port.address) for port in taken.ports]
    claims = [[ContainerClaim(name, request) for name, request in each] for each in named] or [[]]
    first = Container(name="", resources=ContainerResources(claims=claims[0], requests=requests), ports=ports)
    return [first, *(Container(name="", resources=ContainerResources(claims=each)) for each in claims[1:])]


def _named_claims(spec: PodSpec) -> tuple[_Named, ...]:
    """Return the claim requests that each container names, each once; containers that name the same count once. If
    there are more than MOST_NAMED in all, each claim is named as a whole, as if by a container of its own."""
    if not spec.resource_claims:
        return ()
    every = (*spec.init_containers, *spec.containers)
    by_container = dict.fromkeys(
        tuple(dict.fromkeys((use.name, use.request) for use in container.resources.claims)) for container in every
    )
    by_container.pop((), None)
    if sum(map(len, by_container)) > MOST_NAMED:
        return tuple(((entry.name, ""),) for entry in spec.resource_claims)
    return tuple(by_container)


def _trimmed_spec(pod: Pod) -> PodSpec:
    """Keep only those placement fields that are read here."""
    return msgspec.structs.replace(
        pod.spec,
        affinity=_required(pod.spec.affinity),
        topology_spread_constraints=_constraints(pod.spec.topology_spread_constraints),
        volumes=_with_claims(pod.spec.volumes),
        tolerations=_distinct(tolerations_of(pod)),
        scheduling_gates=_gates(pod.spec),
    )


def _gates(spec: PodSpec) -> list[SchedulingGate]:
    """Keep two of the gates: they show whether ours is the only one (api.gates), and messages name the first."""
    return spec.scheduling_gates[:2] or _NO_GATES


def _distinct(tolerations: Sequence[Toleration]) -> list[Toleration]:
    """Keep tolerations that differ in a field that nodes.matching reads, packed. It does not read tolerationSeconds."""
    fields = dict.fromkeys((one.key, one.operator, one.value, one.effect) for one in tolerations)
    kept: list[Toleration] = packed([Toleration(*texts) for texts in fields])
    return kept or _NO_TOLERATIONS


def _required(affinity: dict[str, Any]) -> dict[str, Any]:
    """Keep the required terms of node and pod affinity, packed."""
    if not affinity:
        return _NO_MAP
    kept = {}
    for kind, rules in affinity.items():
        if not isinstance(rules, dict):
            if rules is not None:
                kept[kind] = rules  # its reader says what is wrong
        elif rules.get(REQUIRED) is not None:
            kept[kind] = {REQUIRED: packed(rules[REQUIRED])}
    return kept or _NO_MAP


def _constraints(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the spread constraints with whenUnsatisfiable: DoNotSchedule, packed."""
    if not entries:
        return _NO_CONSTRAINTS
    kept: list[dict[str, Any]] = packed([entry for entry in unpacked(entries) if must_hold(entry)])
    return kept or _NO_CONSTRAINTS


def _with_claims(volumes: list[PodVolume]) -> list[PodVolume]:
    """Keep the volumes that have claims."""
    return [
        one for one in volumes if one.persistent_volume_claim is not None or one.ephemeral is not None
    ] or _NO_VOLUMES


def _claim_volumes(volumes: list[PodVolume]) -> list[PodVolume]:
    """Keep only the claims of the volumes of a pod on a node."""
    return [
        PodVolume("", one.persistent_volume_claim) for one in volumes if one.persistent_volume_claim is not None
    ] or _NO_VOLUMES


def _required_anti_affinity(affinity: dict[str, Any]) -> dict[str, Any]:
    """Keep the required anti-affinity of a pod on a node, which keeps others away; equal rules share one object."""
    rules = affinity.get(ANTI_AFFINITY)
    if not isinstance(rules, dict) or not rules.get(REQUIRED):
        return _NO_MAP
    return _shared_rules(msgspec.json.encode(rules[REQUIRED]))


@lru_cache(1_024)
def _shared_rules(text: bytes) -> dict[str, Any]:
    return {ANTI_AFFINITY: {REQUIRED: packed(msgspec.json.decode(text))}}


def _family_annotations(pod: Pod) -> dict[str, str]:
    """Keep the annotations that say which family a pod is of and how many pods that has."""
    there = pod.metadata.annotations
    kept = tuple((name, there[name]) for name in FAMILY_ANNOTATIONS if len(there.get(name, "")) in _READ)
    return shared_labels(kept) if kept else _NO_TEXT_MAP


_READ: Final = range(1, MOST_CHARACTERS + 1)
"""Characters of an annotation that is read."""


MOST_OWNER_CHARACTERS: Final = 512
"""Of the owner that is kept: UID, kind and name together. Controllers write some 100, but any user may write more."""


def _controlling_owner(pod: Pod) -> list[OwnerReference]:
    """Keep the controller of a pod: it shows the family, and people know the pod by it."""
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    if owner is None or len(owner.uid) + len(owner.kind) + len(owner.name) > MOST_OWNER_CHARACTERS:
        return _NO_OWNERS
    return [owner]


def _shared(labels: dict[str, str]) -> dict[str, str]:
    return shared_labels(tuple(labels.items())) if labels else _NO_TEXT_MAP


def _scheduling_conditions(conditions: list[PodCondition]) -> list[PodCondition]:
    return [_without_times(condition) for condition in conditions if condition.type == "PodScheduled"] or _NO_CONDITIONS


def _without_times(condition: PodCondition) -> PodCondition:
    return msgspec.structs.replace(condition, last_transition_time=None, observed_generation=None)


def _plain_spec(spec: PodSpec, containers: list[Container]) -> PodSpec:
    return PodSpec(
        node_name=sys.intern(spec.node_name),
        node_selector=_NO_MAP,
        affinity=_required_anti_affinity(spec.affinity),
        tolerations=_NO_TOLERATIONS,
        scheduling_gates=_gates(spec),
        resource_claims=_NO_CLAIMS,
        containers=containers,
        init_containers=_NO_CONTAINERS,
        overhead=_NO_MAP,
        scheduler_name=sys.intern(spec.scheduler_name),
        priority=spec.priority,
        topology_spread_constraints=_NO_CONSTRAINTS,
        scheduling_group=spec.scheduling_group,
        volumes=_claim_volumes(spec.volumes),
    )


def _plain_status(pod: Pod) -> PodStatus:
    if not pod.spec.node_name:
        said = _scheduling_conditions(pod.status.conditions)
        if said:
            return _status_of(pod.status.phase, said)
    return _quiet_status(pod.status.phase)


@lru_cache(16)
def _quiet_status(phase: str) -> PodStatus:
    """Return the status shared by all pods without claims in a phase that have no message from kube-scheduler."""
    return _status_of(phase, _NO_CONDITIONS)


def _status_of(phase: str, conditions: list[PodCondition]) -> PodStatus:
    return PodStatus(
        phase=phase,
        conditions=conditions,
        resource_claim_statuses=_NO_CLAIM_STATUSES,
        container_statuses=_NO_STATUSES,
        init_container_statuses=_NO_STATUSES,
        allocated_resources=_NO_MAP,
    )
