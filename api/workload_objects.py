"""Objects that say how many pods belong together: PodGroups of three schedulers, and the owners of pods that run as one
job. Only that is kept of each, so that a list of them costs the same whatever their pod templates contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Protocol, Self

import msgspec

from dracaena.api.objects import KubeObject, ObjectMeta, Wire
from dracaena.api.opaque import AsSent


class Sized(Protocol):
    """What a spec says."""

    @property
    def size(self) -> int | None:
        """How many pods are to run at the same time; None: it does not say. Any number: authors write it."""


class WorkloadObject(KubeObject, frozen=True):
    """Base of all of them. Of its metadata only what identifies it is kept."""

    FAMILY: ClassVar[str]
    """What people call a family of its pods (allocation.state.gangs)."""
    BY_UID: ClassVar[bool] = True
    """Whether pods name it by its UID, otherwise by its name."""
    SPEC: ClassVar[type[Sized]]
    """How its spec is read."""

    size: int | None = None
    """How many pods are to run at the same time, as the spec says it."""

    @classmethod
    def _from_json(cls, text: bytes | msgspec.Raw, as_sent: AsSent) -> Self:
        sent = msgspec.json.decode(text, type=_Sent)
        meta = sent.metadata
        bare = ObjectMeta(meta.name, meta.namespace, meta.uid, meta.resource_version)
        try:
            return cls(bare, msgspec.json.decode(sent.spec, type=cls.SPEC).size)
        except msgspec.ValidationError:  # a form that we do not know: the object is there, and says no size
            return cls(bare)


class _Sent(Wire, frozen=True):
    metadata: ObjectMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")


class GangPolicy(Wire, frozen=True):
    """schedulingPolicy.gang."""

    min_count: int | None = None


class PodGroupPolicy(Wire, frozen=True):
    """spec.schedulingPolicy of a PodGroup. Without a gang its pods are bound one by one (`basic`)."""

    gang: GangPolicy | None = None


class PodGroupSpec(Wire, frozen=True):
    """spec of a PodGroup."""

    scheduling_policy: PodGroupPolicy = PodGroupPolicy()

    @property
    def size(self) -> int | None:
        """minCount; None: it is no gang."""
        gang = self.scheduling_policy.gang
        return None if gang is None else gang.min_count


class PodGroup(WorkloadObject, frozen=True):
    """k8s.io/api 0.37.1, scheduling/v1beta1/types.go. Pods name it in spec.schedulingGroup."""

    API_VERSION: ClassVar[str] = "scheduling.k8s.io/v1beta1"
    RESOURCE: ClassVar[str] = "podgroups"
    KIND: ClassVar[str] = "PodGroup"
    FAMILY: ClassVar[str] = "PodGroup"
    BY_UID: ClassVar[bool] = False
    SPEC: ClassVar[type[Sized]] = PodGroupSpec


class PodGroupV1Alpha2(PodGroup, frozen=True):
    """The same in Kubernetes 1.36."""

    API_VERSION: ClassVar[str] = "scheduling.k8s.io/v1alpha2"


class MinMemberSpec(Wire, frozen=True):
    """spec of the PodGroups of KAI and Volcano."""

    min_member: int | None = None

    @property
    def size(self) -> int | None:
        """minMember."""
        return self.min_member


class KaiPodGroup(WorkloadObject, frozen=True):
    """What KAI's pod grouper makes for each workload."""

    API_VERSION: ClassVar[str] = "scheduling.run.ai/v2alpha2"
    RESOURCE: ClassVar[str] = "podgroups"
    KIND: ClassVar[str] = "PodGroup"
    FAMILY: ClassVar[str] = "KAI PodGroup"
    BY_UID: ClassVar[bool] = False
    SPEC: ClassVar[type[Sized]] = MinMemberSpec


class VolcanoPodGroup(WorkloadObject, frozen=True):
    """What Volcano makes for each of its Jobs, and users for other workloads."""

    API_VERSION: ClassVar[str] = "scheduling.volcano.sh/v1beta1"
    RESOURCE: ClassVar[str] = "podgroups"
    KIND: ClassVar[str] = "PodGroup"
    FAMILY: ClassVar[str] = "Volcano PodGroup"
    BY_UID: ClassVar[bool] = False
    SPEC: ClassVar[type[Sized]] = MinMemberSpec


class JobSpec(Wire, frozen=True):
    """spec of a Job."""

    parallelism: int | None = None
    completions: int | None = None

    @property
    def size(self) -> int | None:
        """The pods that run at the same time until fewer are left to do. Both numbers default to 1."""
        parallelism = 1 if self.parallelism is None else self.parallelism
        return parallelism if self.completions is None else min(parallelism, self.completions)


class Job(WorkloadObject, frozen=True):
    """batch/v1/types.go."""

    API_VERSION: ClassVar[str] = "batch/v1"
    RESOURCE: ClassVar[str] = "jobs"
    KIND: ClassVar[str] = "Job"
    FAMILY: ClassVar[str] = "Job"
    SPEC: ClassVar[type[Sized]] = JobSpec


class JobTemplate(Wire, frozen=True):
    """template of a replicated job."""

    spec: JobSpec = JobSpec()


class ReplicatedJob(Wire, frozen=True):
    """spec.replicatedJobs[] of a JobSet."""

    template: JobTemplate = JobTemplate()
    replicas: int | None = None


class JobSetSpec(Wire, frozen=True):
    """spec of a JobSet."""

    replicated_jobs: list[ReplicatedJob] = []

    @property
    def size(self) -> int | None:
        """The pods of all its Jobs that run at the same time."""
        return sum(_count(job.replicas) * _count(job.template.spec.size) for job in self.replicated_jobs)


class JobSet(WorkloadObject, frozen=True):
    """kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go."""

    API_VERSION: ClassVar[str] = "jobset.x-k8s.io/v1alpha2"
    RESOURCE: ClassVar[str] = "jobsets"
    KIND: ClassVar[str] = "JobSet"
    FAMILY: ClassVar[str] = "JobSet"
    SPEC: ClassVar[type[Sized]] = JobSetSpec


class ReplicaSpec(Wire, frozen=True):
    """One role of a training job of Kubeflow."""

    replicas: int | None = None


class MpiJobSpec(Wire, frozen=True):
    """spec of an MPIJob."""

    mpi_replica_specs: dict[str, ReplicaSpec] = {}

    @property
    def size(self) -> int | None:
        """Its workers: the launcher's pod belongs to a Job of its own, and seldom has GPUs."""
        workers = self.mpi_replica_specs.get("Worker")
        return None if workers is None else _count(workers.replicas)


class MpiJob(WorkloadObject, frozen=True):
    """kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go."""

    API_VERSION: ClassVar[str] = "kubeflow.org/v2beta1"
    RESOURCE: ClassVar[str] = "mpijobs"
    KIND: ClassVar[str] = "MPIJob"
    FAMILY: ClassVar[str] = "MPIJob"
    SPEC: ClassVar[type[Sized]] = MpiJobSpec


class PyTorchJobSpec(Wire, frozen=True):
    """spec of a PyTorchJob."""

    pytorch_replica_specs: dict[str, ReplicaSpec] = {}

    @property
    def size(self) -> int | None:
        """Master and workers."""
        return sum(_count(role.replicas) for role in self.pytorch_replica_specs.values())


class PyTorchJob(WorkloadObject, frozen=True):
    """kubeflow/trainer (v1), pkg/apis/kubeflow.org/v1/pytorch_types.go."""

    API_VERSION: ClassVar[str] = "kubeflow.org/v1"
    RESOURCE: ClassVar[str] = "pytorchjobs"
    KIND: ClassVar[str] = "PyTorchJob"
    FAMILY: ClassVar[str] = "PyTorchJob"
    SPEC: ClassVar[type[Sized]] = PyTorchJobSpec


class RayWorkerGroup(Wire, frozen=True):
    """spec.workerGroupSpecs[] of a RayCluster; `num_of_hosts`: pods of each replica."""

    replicas: int | None = None
    num_of_hosts: int | None = None


class RayClusterSpec(Wire, frozen=True):
    """spec of a RayCluster."""

    worker_group_specs: list[RayWorkerGroup] = []

    @property
    def size(self) -> int | None:
        """Its workers: the head seldom has GPUs."""
        return sum(_count(group.replicas) * _count(group.num_of_hosts) for group in self.worker_group_specs)


class RayCluster(WorkloadObject, frozen=True):
    """ray-project/kuberay, apis/ray/v1/raycluster_types.go. A RayJob and a RayService make one for their pods."""

    API_VERSION: ClassVar[str] = "ray.io/v1"
    RESOURCE: ClassVar[str] = "rayclusters"
    KIND: ClassVar[str] = "RayCluster"
    FAMILY: ClassVar[str] = "RayCluster"
    SPEC: ClassVar[type[Sized]] = RayClusterSpec


KINDS: Final[Mapping[str, type[WorkloadObject]]] = {
    kind.FAMILY: kind for kind in (PodGroup, JobSet, Job, MpiJob, PyTorchJob, RayCluster, KaiPodGroup, VolcanoPodGroup)
}
"""By what their families are called, each in its newest version."""

OLDER: Final[Mapping[str, tuple[type[WorkloadObject], ...]]] = {PodGroup.FAMILY: (PodGroupV1Alpha2,)}
"""Older versions that a supported server may have instead."""


def _count(number: int | None) -> int:
    """Read a number of replicas, which defaults to 1."""
    return 1 if number is None else max(0, number)
