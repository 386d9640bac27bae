"""Workloads of the input → the pods that their controllers would make now, named, labelled and owned as those do it.

What a decision reads of it is right: labels and owners by which a family of pods is known, the node of a DaemonSet's
pod. Names end in a number where a controller draws letters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.objects import ENDED, KubeObject, Node, ObjectMeta, OwnerReference, Pod, Toleration
from dracaena.cli.cluster_objects import decode_object
from dracaena.cli.manifests import Manifest, ManifestError
from dracaena.controller.allocation.nodes.matching import required_affinity, unfit_for
from dracaena.controller.allocation.nodes.node_filter import this_node
from dracaena.controller.allocation.state.gangs import (
    GROUP_LABEL,
    GROUP_SIZE_ANNOTATION,
    JOB_INDEX_LABEL,
    JOB_LABEL,
    JOB_SET_LABEL,
    MOST_PODS,
)
from dracaena.validation.findings import Path, render_path
from dracaena.validation.pod_templates import holds_pods, pod_template_paths, value_at

DAEMON_TOLERATIONS: Final = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect)
    for name, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""What kube-controller-manager makes every pod of a DaemonSet tolerate."""
_GROUP_SET_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
_JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
_MOST_NUMBER: Final = 2**31 - 1
"""Counts of the API are int32."""


@dataclass(frozen=True, slots=True)
class WorkloadPods:
    """What the workloads of an input create in addition to the pods in it."""

    pods: tuple[Pod, ...]
    """In the order of the workloads."""
    remarks: tuple[str, ...]


class Workload:
    """One workload as it was written, and what its parts are made with."""

    def __init__(self, manifest: Manifest) -> None:
        """Raises BadInputError if the object's metadata does not have the API's shape."""
        self.manifest = manifest
        self.kind: str = manifest.object["kind"]
        self.meta = decode_object(Named, manifest).metadata
        self.uid = self.meta.uid or self.made_uid(self.kind, self.meta.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.meta.namespace}/{self.meta.name}"

    def made_uid(self, kind: str, name: str) -> str:
        """Return a UID for something that no server has created yet, the same in each run."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{self.meta.namespace}/{name}"))

    def value(self, *path: str | int) -> Any:
        """Return what is at a path; None if there is nothing."""
        return value_at(self.manifest.object, path)

    def number(self, *path: str | int, default: int) -> int:
        """Return a count of the API. Raises ManifestError, with its place, for anything else."""
        value = self.value(*path)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_NUMBER:
            raise self.error(path, f"{value!r}, expected a whole number of 0 or more")
        return value

    def template(self, *path: str | int) -> Pod:
        """Return the pod template at a path, as a pod. Raises BadInputError, with its place, if there is none."""
        written = self.value(*path)
        if not isinstance(written, Mapping):
            raise self.error(path, "no pod template, expected an object with metadata and spec")
        meta = written.get("metadata")
        metadata = {**(meta if isinstance(meta, Mapping) else {}), "name": self.meta.name}
        document = {"apiVersion": Pod.API_VERSION, "kind": Pod.KIND, **written, "metadata": metadata}
        source = self.manifest.source
        place = source.place.at(path)
        return decode_object(Pod, Manifest(document, type(source)(source.file, source.document, place)))

    def error(self, path: Path, text: str) -> ManifestError:
        """Return what is wrong at a path."""
        source = self.manifest.source
        place = source.place.at(path)
        return ManifestError(source.file, place.line, place.column, f"{self}: {render_path(path)}: {text}")

    def pod(self, template: Pod, name: str, owner: OwnerReference, **added: Mapping[str, str]) -> Pod:
        """Return a pod from a template. `added`: labels and annotations in addition to the template's."""
        meta = ObjectMeta(
            name=name,
            namespace=self.meta.namespace,
            uid=self.made_uid(f"Pod of {self.kind} {self.meta.name}", name),
            labels={**template.metadata.labels, **added.get("labels", {})},
            annotations={**template.metadata.annotations, **added.get("annotations", {})},
            owner_references=[owner],
        )
        return msgspec.structs.replace(template, metadata=meta)

    def owner(self, kind: str, name: str = "") -> OwnerReference:
        """Return a reference to what owns a pod: the workload itself, or what it makes of this kind and name."""
        name = name or self.meta.name
        own = (kind, name) == (self.kind, self.meta.name)
        uid = self.uid if own else self.made_uid(kind, name)
        version = self.manifest.object["apiVersion"] if own else "apps/v1"
        return OwnerReference(uid=uid, kind=kind, name=name, api_version=version, controller=True)


class Named(KubeObject, frozen=True):
    """An object of which only the metadata is decoded by shape."""


def is_workload(manifest: Manifest) -> bool:
    """Whether an object makes pods that workload_pods() knows. One of a kind that is known only by its pod templates
    does so until a server has it: what its controller has made is in the input then."""
    group, kind = _group_and_kind(manifest)
    if holds_pods(group, kind):
        return (group, kind) in _MAKERS
    return _has_new_templates(manifest) and why_not_simulated(manifest) is None


def why_not_simulated(manifest: Manifest) -> str | None:
    """Say why an object of a kind that is not known makes no pods here although it has pod templates: its own API may
    ask for less than Kubernetes does of a pod. None of any other object."""
    if holds_pods(*_group_and_kind(manifest)) or not _has_new_templates(manifest):
        return None
    try:
        list(_parts(Workload(manifest)))
    except BadInputError as error:
        return f"{manifest.object['kind']} is not simulated: {error}"
    return None


def _has_new_templates(manifest: Manifest) -> bool:
    has_uid = bool(value_at(manifest.object, ("metadata", "uid")))
    return not has_uid and bool(pod_template_paths(*_group_and_kind(manifest), manifest.object))


def workload_pods(manifests: Iterable[Manifest], nodes: Sequence[Node], pods: Sequence[Pod]) -> WorkloadPods:
    """Return what workloads create in addition to `pods`, those in the input itself.

    A workload that another one of the input owns makes nothing, for its owner makes all; but a Job of a CronJob does,
    as the CronJob stands for one more run. Of a workload that a server has made (metadata.uid) the pods that are there
    are not made again. Raises BadInputError, with its place, for what is not of the API's shape and for more pods than
    a cluster can have.
    """
    workloads = _distinct(map(Workload, manifests))
    by_uid = {each.meta.uid: each for each in workloads if each.meta.uid}
    made: list[Pod] = []
    remarks: list[str] = []
    for each in workloads:
        owner = by_uid.get(controller_uid(each.meta))
        if owner is not None and owner.kind != "CronJob":
            continue
        present = [pod for pod in pods if each.meta.uid and _is_of(pod, each, by_uid)]
        found = tuple(
            islice(_MAKERS.get(_group_and_kind(each.manifest), _templates)(each, nodes, present), MOST_PODS + 1)
        )
        if len(made) + len(found) > MOST_PODS:
            raise each.error(("spec",), f"makes more than {MOST_PODS:,} pods, the most that a cluster can have")
        made += found
        if _group_and_kind(each.manifest) not in _MAKERS:
            remarks.append(f"{each}: simulated as {len(found)} pods, `replicas` of each pod template in it")
        if each.value("spec", "suspend") is True:
            remarks.append(f"{each} is suspended: simulated as if it were not")
    return WorkloadPods(tuple(made), tuple(remarks))


def controller_uid(meta: ObjectMeta) -> str:
    """Return the UID of the controller among the owners of an object; "" if it has none."""
    return next((owner.uid for owner in meta.owner_references if owner.controller), "")


def _distinct(workloads: Iterable[Workload]) -> list[Workload]:
    """Return each workload once. Raises BadInputError for another one of the same group, kind and name."""
    found: dict[tuple[str, str, str, str], Workload] = {}
    for each in workloads:
        key = (*_group_and_kind(each.manifest), each.meta.namespace, each.meta.name)
        first = found.setdefault(key, each)
        if first.manifest.object != each.manifest.object:
            source = first.manifest.source
            raise BadInputError(f"{each.manifest.source}: another {each} is already in the input: {source}")
    return list(found.values())


def _is_of(pod: Pod, workload: Workload, by_uid: Mapping[str, Workload]) -> bool:
    """Whether a pod was created for a workload: by its owners, or by its labels if an owner is not in the input."""
    if pod.metadata.namespace != workload.meta.namespace:
        return False
    uid = controller_uid(pod.metadata)
    for _ in range(len(by_uid) + 1):  # a chain of owners is no longer
        if uid == workload.meta.uid:
            return True
        if uid not in by_uid:
            break
        uid = controller_uid(by_uid[uid].meta)
    labels, name = pod.metadata.labels, workload.meta.name
    match workload.kind:
        case "Deployment":
            replica_set = f"{name}-{labels.get('pod-template-hash')}"
            return any(
                owner.kind == "ReplicaSet" and owner.name == replica_set for owner in pod.metadata.owner_references
            )
        case "JobSet":
            return labels.get(JOB_SET_LABEL) == workload.meta.uid
        case "LeaderWorkerSet":
            return labels.get(_GROUP_SET_LABEL) == name
    return False


def _group_and_kind(manifest: Manifest) -> tuple[str, str]:
    return manifest.object["apiVersion"].rpartition("/")[0], manifest.object["kind"]


def _running(present: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in present if pod.status.phase not in ENDED]


def _names(pods: Iterable[Pod]) -> set[str]:
    """Return the names of pods of the same number: the whole name, or everything before the letters at its end."""
    return {name for pod in pods for name in (pod.metadata.name, pod.metadata.name.rpartition("-")[0])}


def _replicas(workload: Workload, _: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    template = workload.template("spec", "template")
    owner = workload.owner("ReplicaSet" if workload.kind == "Deployment" else workload.kind)
    running = _running(present)
    taken = {pod.metadata.name for pod in present}
    missing = workload.number("spec", "replicas", default=1) - len(running)
    names = (name for number in count() if (name := f"{workload.meta.name}-{number}") not in taken)
    for name in islice(names, max(0, missing)):
        yield workload.pod(template, name, owner)


def _templates(workload: Workload, _: Sequence[Node], __: Sequence[Pod]) -> Iterator[Pod]:
    """Yield the pods of a kind that is not known: of each template in it as many as `replicas` next to it says."""
    parts = list(_parts(workload))
    for number, (template, replicas) in enumerate(parts):
        prefix = f"{workload.meta.name}-{number}" if len(parts) > 1 else workload.meta.name
        for each in range(replicas):
            yield workload.pod(template, f"{prefix}-{each}", workload.owner(workload.kind))


def _parts(workload: Workload) -> Iterator[tuple[Pod, int]]:
    """Yield each template with the number of its pods. Raises BadInputError, with its place."""
    for path in pod_template_paths(*_group_and_kind(workload.manifest), workload.manifest.object):
        yield workload.template(*path), workload.number(*path[:-1], "replicas", default=1)


def _stateful_set(workload: Workload, _: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    template = workload.template("spec", "template")
    start = workload.number("spec", "ordinals", "start", default=0)
    taken = {pod.metadata.name for pod in _running(present)}
    owner = workload.owner("StatefulSet")
    for number in range(start, start + workload.number("spec", "replicas", default=1)):
        name = f"{workload.meta.name}-{number}"
        if name not in taken:
            labels = {"apps.kubernetes.io/pod-index": str(number), "statefulset.kubernetes.io/pod-name": name}
            yield workload.pod(template, name, owner, labels=labels)


def _daemon_set(workload: Workload, nodes: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    """Yield a pod for each node that matches the template and whose taints it tolerates; it names the node as a rule,
    as kube-controller-manager has it."""
    template = workload.template("spec", "template")
    tolerations = [*template.spec.tolerations, *DAEMON_TOLERATIONS]
    required = required_affinity(template)
    running = _running(present)
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        if unfit_for(template, required, tolerations, node) is not None or any(_is_for(pod, node) for pod in running):
            continue
        name = node.metadata.name
        of_node = {"requiredDuringSchedulingIgnoredDuringExecution": this_node(name)}
        affinity = {**template.spec.affinity, "nodeAffinity": of_node}
        spec = msgspec.structs.replace(template.spec, tolerations=tolerations, affinity=affinity)
        pod = msgspec.structs.replace(template, spec=spec)
        yield workload.pod(pod, f"{workload.meta.name}-{name}", workload.owner("DaemonSet"))


def _is_for(pod: Pod, node: Node) -> bool:
    if pod.spec.node_name:
        return pod.spec.node_name == node.metadata.name
    required = required_affinity(pod)
    return required is not None and required.matches(node)


def _job(workload: Workload, _: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    return _pods_of_job(workload, _JobPart(("spec",), workload.meta.name, workload.uid), present)


def _cron_job(workload: Workload, _: Sequence[Node], __: Sequence[Pod]) -> Iterator[Pod]:
    """Yield the pods of one more run."""
    name = workload.meta.name
    return _pods_of_job(workload, _JobPart(("spec", "jobTemplate", "spec"), name, workload.made_uid("Job", name)), ())


def _job_set(workload: Workload, _: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    listed = workload.value("spec", "replicatedJobs")
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        path: Path = ("spec", "replicatedJobs", index)
        part = str(entry.get("name")) if isinstance(entry, Mapping) else ""
        for number in range(workload.number(*path, "replicas", default=1)):
            name = f"{workload.meta.name}-{part}-{number}"
            labels = {
                JOB_SET_LABEL: workload.uid,
                "jobset.sigs.k8s.io/jobset-name": workload.meta.name,
                "jobset.sigs.k8s.io/replicatedjob-name": part,
                "jobset.sigs.k8s.io/job-index": str(number),
            }
            job = _JobPart((*path, "template", "spec"), name, workload.made_uid("Job", name), labels, indexed=True)
            of_job = [pod for pod in present if pod.metadata.labels.get(_JOB_NAME_LABEL) == name]
            yield from _pods_of_job(workload, job, of_job)


@dataclass(frozen=True, slots=True)
class _JobPart:
    """A Job, wherever its spec is in a workload."""

    path: Path
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    indexed: bool = False
    """The default of completionMode."""


def _pods_of_job(workload: Workload, job: _JobPart, present: Sequence[Pod]) -> Iterator[Pod]:
    """Yield the pods of a Job that run at once: parallelism, but never more than the completions left."""
    template = workload.template(*job.path, "template")
    mode = workload.value(*job.path, "completionMode")
    indexed = mode == "Indexed" or (mode is None and job.indexed)
    at_once = workload.number(*job.path, "parallelism", default=1)
    completions = workload.number(*job.path, "completions", default=at_once if indexed else _MOST_NUMBER)
    if workload.value(*job.path, "parallelism") is None and workload.value(*job.path, "completions") is None:
        completions = 1
    done = sum(pod.status.phase == "Succeeded" for pod in present)
    missing = max(0, min(at_once, completions - done) - len(_running(present)))
    taken = _names([pod for pod in present if pod.status.phase != "Failed"])
    owner = OwnerReference(uid=job.uid, kind="Job", name=job.name, api_version="batch/v1", controller=True)
    labels = {JOB_LABEL: job.uid, _JOB_NAME_LABEL: job.name, "job-name": job.name, **job.labels}
    numbers = (number for number in range(completions) if f"{job.name}-{number}" not in taken)
    for number in islice(numbers, missing):
        index = {JOB_INDEX_LABEL: str(number)} if indexed else {}
        yield workload.pod(template, f"{job.name}-{number}", owner, labels={**labels, **index}, annotations=index)


def _leader_worker_set(workload: Workload, _: Sequence[Node], present: Sequence[Pod]) -> Iterator[Pod]:
    """Yield the pods group by group, the leader of each first."""
    path: Path = ("spec", "leaderWorkerTemplate")
    worker = workload.template(*path, "workerTemplate")
    has_leader = workload.value(*path, "leaderTemplate") is not None
    leader = workload.template(*path, "leaderTemplate") if has_leader else worker
    size = workload.number(*path, "size", default=1)
    taken = {pod.metadata.name for pod in _running(present)}
    for group in range(workload.number("spec", "replicas", default=1)):
        of_group = f"{workload.meta.name}-{group}"
        for number in range(size):
            name = f"{of_group}-{number}" if number else of_group
            if name in taken:
                continue
            labels = {
                _GROUP_SET_LABEL: workload.meta.name,
                GROUP_LABEL: workload.made_uid("group", of_group),
                "leaderworkerset.sigs.k8s.io/group-index": str(group),
                "leaderworkerset.sigs.k8s.io/worker-index": str(number),
            }
            yield workload.pod(
                worker if number else leader,
                name,
                workload.owner("StatefulSet", of_group if number else workload.meta.name),
                labels=labels,
                annotations={GROUP_SIZE_ANNOTATION: str(size)},
            )


_Maker = Callable[[Workload, Sequence[Node], Sequence[Pod]], Iterator[Pod]]
_MAKERS: Final[Mapping[tuple[str, str], _Maker]] = {
    ("", "ReplicationController"): _replicas,
    ("apps", "DaemonSet"): _daemon_set,
    ("apps", "Deployment"): _replicas,
    ("apps", "ReplicaSet"): _replicas,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "CronJob"): _cron_job,
    ("batch", "Job"): _job,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
}
"""API group and kind → what makes its pods."""
