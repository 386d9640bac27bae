"""Pods of one family, according to the pods, with their nodes (docs/design/choice-of-node.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dracaena.api.objects import OwnerReference, Pod
from dracaena.controller.allocation.nodes.node_resources import pod_name

JOB_LABEL: Final = "batch.kubernetes.io/controller-uid"
"""batch/v1/types.go, ControllerUidLabel."""
JOB_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
"""batch/v1/types.go, JobCompletionIndexAnnotation: on the pods of a Job with completionMode Indexed."""
JOB_SET_LABEL: Final = "jobset.sigs.k8s.io/jobset-uid"
"""jobset_types.go of kubernetes-sigs/jobset, JobSetUIDKey."""
GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-key"
GROUP_SIZE_ANNOTATION: Final = "leaderworkerset.sigs.k8s.io/size"
"""Of one group of a LeaderWorkerSet: reference of kubernetes-sigs/lws, "Labels, Annotations and Environment
Variables"."""
STATEFUL_SET: Final = ("apps/", "StatefulSet")
"""Group of the apiVersion, and kind, of the only controller that is recognised by its ownerReference alone."""

FAMILY_LABELS: Final = frozenset({JOB_LABEL, JOB_SET_LABEL, GROUP_LABEL})
"""Labels that name a family."""

MOST_PODS: Final = 100_000
"""A larger size is ignored: Kubernetes supports 150,000 pods."""

MOST_UID_CHARACTERS: Final = 64
"""Of the UID in an ownerReference, which may be any text. Real ones have 36."""

_NOWHERE: Final[Mapping[str, int]] = MappingProxyType({})


class Family(NamedTuple):
    """Names a family of pods. A pod can claim to be of any family of its namespace, and of no other."""

    namespace: str
    kind: str
    name: str


def family_of(pod: Pod) -> Family | None:
    """Return the family of a pod, the first of these: its PodGroup, the group of its LeaderWorkerSet, its JobSet, its
    Job, its StatefulSet. None: it has none.

    Pods of a ReplicaSet have none: they seldom talk to each other. Nor have pods of a Job without indexes, which cannot
    know who is who; most Jobs of one pod are like that.
    """
    labels = pod.metadata.labels
    group = pod.spec.scheduling_group
    owner = stateful_set_of(pod)
    names = (
        ("PodGroup", "" if group is None else group.pod_group_name),
        ("LeaderWorkerSet", labels.get(GROUP_LABEL)),
        ("JobSet", labels.get(JOB_SET_LABEL)),
        ("Job", labels.get(JOB_LABEL) if JOB_INDEX_LABEL in labels else None),
        ("StatefulSet", None if owner is None else owner.uid),
    )
    return next((Family(pod.metadata.namespace, kind, name) for kind, name in names if name), None)


def stateful_set_of(pod: Pod) -> OwnerReference | None:
    """Return the controller of a pod that is a StatefulSet."""
    group, kind = STATEFUL_SET
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == kind and owner.api_version.startswith(group):
            return owner if len(owner.uid) <= MOST_UID_CHARACTERS else None
    return None


def family_size(pod: Pod) -> int | None:
    """Return how many pods the family of a pod has, if the pod says so: in the group of a LeaderWorkerSet."""
    family = family_of(pod)
    if family is None or family.kind != "LeaderWorkerSet":
        return None
    text = pod.metadata.annotations.get(GROUP_SIZE_ANNOTATION, "")
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MOST_PODS)):
        return None
    return int(text) if 0 < int(text) <= MOST_PODS else None


class Kin(NamedTuple):
    """What a decision about a pod knows of its family."""

    siblings: Mapping[str, int]
    """Node → other pods of the family there; only nodes with some."""
    left: int | None
    """Pods of the family still to be placed, including this one, at least 1; None: unknown."""


class Families:
    """The nodes of each family's pods, including those where a decision says they will be. Part of its owner. Cost: a
    few look-ups for each call."""

    def __init__(self) -> None:
        self.placed: dict[str, tuple[Family, str]] = {}
        """Name of a pod on a node → its family and the node. Read only."""
        self._nodes: dict[Family, Counter[str]] = {}

    def place(self, pod: Pod, node: str | None) -> None:
        """Note that a pod that names claims is on a node from now on; None: on none, or gone."""
        name = pod_name(pod)
        family = family_of(pod) if node is not None and pod.spec.resource_claims else None
        after = None if family is None or node is None else (family, node)
        before = self.placed.get(name)
        if before == after:
            return
        if before is not None:
            self._leave(name, *before)
        if after is not None:
            self.placed[name] = after
            self._nodes.setdefault(after[0], Counter())[after[1]] += 1

    def of(self, pod: Pod) -> Kin | None:
        """Return what we know of a pod's family; None: it has none. Cost: a step for each node of the family."""
        family = family_of(pod)
        if family is None:
            return None
        siblings: Mapping[str, int] = self._nodes.get(family, _NOWHERE)
        own = self.placed.get(pod_name(pod))
        if own is not None and own[0] == family:
            siblings = Counter(siblings)
            siblings[own[1]] -= 1
            siblings = +siblings
        size = family_size(pod)
        left = None if size is None else max(1, size - sum(siblings.values()))
        return Kin(dict(siblings), left)

    def _leave(self, name: str, family: Family, node: str) -> None:
        del self.placed[name]
        nodes = self._nodes[family]
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
            if not nodes:
                del self._nodes[family]
