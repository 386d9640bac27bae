"""Which pods belong together, how many there are to be, and whether they are of use only together
(docs/design/gangs.md).

A pod names its family; the size is written on the pod, or in an object that the family is named after. Neither is
checked by anybody: a pod can claim to be of any family of its namespace, and of no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from dracaena.api.gang_label import GANG_LABEL, gang_size
from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.workload_objects import (
    Job,
    JobSet,
    KaiPodGroup,
    MpiJob,
    PodGroup,
    PyTorchJob,
    RayCluster,
    VolcanoPodGroup,
    WorkloadObject,
)

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
KUEUE_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_SIZE_ANNOTATION: Final = "kueue.x-k8s.io/pod-group-total-count"
"""Of a group of plain pods: pkg/controller/constants and pkg/controller/jobs/pod/constants of kubernetes-sigs/kueue."""
KAI_ANNOTATION: Final = "pod-group-name"
"""pkg/common/constants of kai-scheduler/KAI-Scheduler, PodGroupAnnotationForPod."""
VOLCANO_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
"""scheduling/v1beta1/labels.go of volcano.sh/apis, KubeGroupNameAnnotationKey and VolcanoGroupNameAnnotationKey."""

STATEFUL_SET: Final = "StatefulSet"
OWNERS: Final = {
    ("apps", STATEFUL_SET): STATEFUL_SET,
    ("kubeflow.org", MpiJob.KIND): MpiJob.FAMILY,
    ("kubeflow.org", PyTorchJob.KIND): PyTorchJob.FAMILY,
    ("ray.io", RayCluster.KIND): RayCluster.FAMILY,
}
"""API group and kind of the controllers that make a family of their pods → what it is called."""

_OWNER_KINDS: Final = frozenset(kind for _, kind in OWNERS)

FAMILY_LABELS: Final = frozenset({JOB_LABEL, JOB_SET_LABEL, GROUP_LABEL, KUEUE_LABEL, GANG_LABEL})
FAMILY_ANNOTATIONS: Final = (GROUP_SIZE_ANNOTATION, KUEUE_SIZE_ANNOTATION, KAI_ANNOTATION, *VOLCANO_ANNOTATIONS)
"""All that is read here, beside the PodGroup and the controller."""

MOST_CHARACTERS: Final = 253
"""Of an annotation that is read: the longest name of an object (DNS-1123 subdomain)."""

MOST_PODS: Final = 100_000
"""A larger size is ignored: Kubernetes supports 150,000 pods."""

MOST_UID_CHARACTERS: Final = 64
"""Of the UID in an ownerReference, which may be any text. Real ones have 36."""


class Family(NamedTuple):
    """Names a family of pods."""

    namespace: str
    kind: str
    """Of what it is named after."""
    name: str
    """The UID of that object, or its name where pods have nothing else."""

    def __str__(self) -> str:
        """As logs name it."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Gang:
    """A family, as far as its size and what holds for it are known."""

    family: Family
    uid: str
    """Of the object that says the size: another one of the same name is another gang. Empty: no object says it."""
    size: int | None
    """Pods that are to run at the same time; None: unknown."""
    is_hard: bool
    """Whether fewer of them are of no use. Only where users say so."""
    said: str = ""
    """Of a hard one: where its size is said, in words for people."""

    def lack(self, there: int) -> str | None:
        """Say that a hard one cannot start while so many of its pods exist; None: enough do."""
        if self.size is None or there >= self.size:
            return None
        return f"{there} of {self.size} pods of its gang exist ({self.said}), and none gets devices before all exist"


class Sizes:
    """What objects say about the sizes of families. Part of its owner. Cost: a look-up for each call."""

    def __init__(self) -> None:
        self._objects: dict[Family, WorkloadObject] = {}
        self._read: dict[str, bool] = {}

    def follow(self, kind: str, *, is_read: bool) -> None:
        """Note that objects of a kind (Family.kind) are being read, or that those that exist are all known."""
        self._read[kind] = is_read

    def unfollow(self, kind: str) -> None:
        """Note that whether there are objects of a kind cannot be known."""
        self._read.pop(kind, None)

    def put(self, item: WorkloadObject) -> Family:
        """Take in an object; return the family that it is about."""
        family = family_about(item)
        self._objects[family] = item
        return family

    def take_out(self, item: WorkloadObject) -> Family:
        """Forget an object, unless another one has taken its place; return its family."""
        family = family_about(item)
        known = self._objects.get(family)
        if known is not None and known.metadata.uid == item.metadata.uid:
            del self._objects[family]
        return family

    def gang_of(self, pod: Pod) -> Gang | None:
        """Return the gang of a pod; None: it has no family.

        The size comes from the first of these that says one: the gang of its PodGroup, the label gpu.dracaena.dev/gang,
        the pod's own annotations (LeaderWorkerSet, Kueue), the object that the family is named after.
        """
        family = family_of(pod)
        if family is None:
            return None
        hard = self.hard(family, labelled_size(pod))
        if hard is not None:
            return hard
        item, written = self._objects.get(family), _written_size(pod, family)
        if written is not None or item is None:
            return Gang(family, "", written, is_hard=False)
        return Gang(family, item.metadata.uid, _valid(item.size), is_hard=False)

    def hard(self, family: Family, labelled: int | None) -> Gang | None:
        """Return a family as a gang of which fewer are of no use, given the size in the labels of its pods; None: its
        users do not say that it is one. A PodGroup with the policy `basic` is none, whatever its pods' labels say."""
        item = self._objects.get(family)
        if self.is_basic(family):
            return None
        size = None if item is None or family.kind != PodGroup.FAMILY else _valid(item.size)
        if item is not None and size is not None:
            return Gang(
                family, item.metadata.uid, size, is_hard=True, said=f"minCount of PodGroup {item.metadata.name}"
            )
        if labelled is None:
            return None
        return Gang(family, "", labelled, is_hard=True, said=f"label {GANG_LABEL}")

    def not_there(self, family: Family) -> str | None:
        """Say that a PodGroup does not exist, or that it is not known yet: kube-scheduler waits for it, too. None: it
        is there, or a server does not show PodGroups."""
        is_read = self._read.get(PodGroup.FAMILY) if family.kind == PodGroup.FAMILY else None
        if is_read is None or family in self._objects:
            return None
        why = "does not exist" if is_read else "has not been read yet"
        return f"PodGroup {family.name} {why}"

    def is_basic(self, family: Family) -> bool:
        """Whether a family is a PodGroup whose pods are bound one by one."""
        item = self._objects.get(family)
        return item is not None and family.kind == PodGroup.FAMILY and item.size is None


def family_of(pod: Pod) -> Family | None:
    """Return the family of a pod, the first of these: its PodGroup, the group of its LeaderWorkerSet, its JobSet, its
    Job, its owner if that is one of OWNERS, its group of Kueue, its PodGroup of KAI or Volcano, and with the label
    gpu.dracaena.dev/gang its Job or owner of whatever kind. None: it has none.

    Pods of a ReplicaSet have none without the label: they seldom talk to each other. Nor have pods of a Job without
    indexes, which cannot know who is who; most Jobs of one pod are like that.
    """
    return next((Family(pod.metadata.namespace, kind, name) for kind, name in _names(pod) if name), None)


def _names(pod: Pod) -> Iterator[tuple[str, str | None]]:
    meta, group = pod.metadata, pod.spec.scheduling_group
    labels, annotations = meta.labels, meta.annotations
    if group is not None:
        yield PodGroup.FAMILY, group.pod_group_name
    yield "LeaderWorkerSet", labels.get(GROUP_LABEL)
    yield JobSet.FAMILY, labels.get(JOB_SET_LABEL)
    if JOB_INDEX_LABEL in labels:
        yield Job.FAMILY, labels.get(JOB_LABEL)
    owner = controller_of(pod)
    if owner is not None:
        made = OWNERS.get((owner.api_version.partition("/")[0], owner.kind))
        if made is not None:
            yield made, owner.uid
    yield "Kueue pod group", labels.get(KUEUE_LABEL)
    yield KaiPodGroup.FAMILY, _bounded(annotations.get(KAI_ANNOTATION))
    for name in VOLCANO_ANNOTATIONS:
        yield VolcanoPodGroup.FAMILY, _bounded(annotations.get(name))
    if labelled_size(pod) is not None and owner is not None:
        yield owner.kind[:MOST_UID_CHARACTERS], owner.uid


def may_have_a_group(pod: Pod) -> bool:
    """Whether a pod may have a group (group_of). Cheap: most pods have none."""
    return pod.spec.scheduling_group is not None or GANG_LABEL in pod.metadata.labels


def group_of(pod: Pod) -> Family | None:
    """Return the family of a pod if that may be a gang: it is a PodGroup, or users have labelled the pod."""
    family = family_of(pod) if may_have_a_group(pod) else None
    is_group = family is not None and family.kind == PodGroup.FAMILY
    return family if is_group or labelled_size(pod) is not None else None


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the controller of a pod, unless its UID cannot be one."""
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    return owner if owner is not None and len(owner.uid) <= MOST_UID_CHARACTERS else None


def may_have_a_family(pod: Pod) -> bool:
    """Whether a pod has anything that a family could be read from. Cheap: most pods have nothing."""
    meta = pod.metadata
    return (
        pod.spec.scheduling_group is not None
        or not FAMILY_LABELS.isdisjoint(meta.labels)
        or any(name in meta.annotations for name in FAMILY_ANNOTATIONS)
        or any(owner.kind in _OWNER_KINDS for owner in meta.owner_references)
    )


def family_about(item: WorkloadObject) -> Family:
    """Return the family whose size an object says."""
    meta = item.metadata
    return Family(meta.namespace, item.FAMILY, meta.uid if item.BY_UID else meta.name)


def labelled_size(pod: Pod) -> int | None:
    """Return the size of a gang that users have written on its pods; None: nothing, or no such number."""
    return gang_size(pod.metadata.labels.get(GANG_LABEL, ""))


def _written_size(pod: Pod, family: Family) -> int | None:
    """Return the size that a controller has written on the pods of a family."""
    if family.kind == "LeaderWorkerSet":
        return _number(pod.metadata.annotations.get(GROUP_SIZE_ANNOTATION, ""))
    if family.kind == "Kueue pod group":
        return _number(pod.metadata.annotations.get(KUEUE_SIZE_ANNOTATION, ""))
    return None


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MOST_PODS)):
        return None
    return _valid(int(text))


def _valid(size: int | None) -> int | None:
    return size if size is not None and 0 < size <= MOST_PODS else None


def _bounded(name: str | None) -> str | None:
    return name if name is not None and len(name) <= MOST_CHARACTERS else None
