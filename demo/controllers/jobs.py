"""Stand-in for the job controller: creates a job's pods, counts how they end, and says when the job is over.

What it does, as the real one does it:
* as many pods at a time as the job wants, with its tracking finalizer and its labels. After BURST pods it checks again
  how many are wanted;
* each pod that ended is counted once, whatever crashes in between: its UID is in status.uncountedTerminatedPods until
  its finalizer is removed. A pod that is deleted before it ended counts as failed;
* the job ends with the last success that it wants, or with one failure more than its backoffLimit;
* a suspended job has no pods, and ttlSecondsAfterFinished deletes one that has ended.

What it does not do: it does not wait before it replaces a failed pod, and adopts no pods that others created. Jobs with
indexes, deadlines and policies are refused by the API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dracaena.api.objects import Pod
from dracaena.demo.objects import JobDocument, owned_by, owner_reference
from dracaena.demo.reconcile import BURST, RETRY_S, CachedLoop, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import NotFoundError
from dracaena.process.clock import Clock, rfc3339

TRACKED: Final = "batch.kubernetes.io/job-tracking"
"""Finalizer of a pod that its job has not counted yet."""

COMPONENT: Final = "job-controller"


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of one job, by what they mean to it. Pods without the finalizer are already counted."""

    active: tuple[Pod, ...]
    succeeded: tuple[Pod, ...]
    failed: tuple[Pod, ...]

    @classmethod
    def of(cls, job: JobDocument, pods: Sequence[Pod]) -> JobPods:
        """Sort the pods that the job owns."""
        mine = [pod for pod in pods if owned_by(pod, job)]
        deleted = [pod for pod in mine if pod.metadata.deletion_timestamp is not None]
        succeeded = tuple(pod for pod in mine if pod.status.phase == "Succeeded")
        failed = tuple(pod for pod in mine if pod not in succeeded and (pod.status.phase == "Failed" or pod in deleted))
        return cls(tuple(pod for pod in mine if pod not in (*succeeded, *failed)), succeeded, failed)


class JobController(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        self._client = client
        self._clock = clock
        self._burst = burst
        super().__init__(CachedLoop("jobs", self._reconcile, client, clock, events_as=COMPONENT))
        self._jobs = self._loop.cache(JobDocument)
        self._pods = self._loop.cache(Pod)
        self._again_s: list[float] = []  # when another look has to follow this one, in seconds

    def _reconcile(self) -> float | None:
        self._again_s = []
        done = settle(self._jobs.values(), self._sync, "job")
        known = {job.metadata.uid for job in self._jobs.values()}
        left = [pod for pod in self._pods.values() if TRACKED in pod.metadata.finalizers and not _owners(pod) & known]
        freed = settle(left, self._let_go_of_orphan, "pod")
        return min([*self._again_s, *(() if done and freed else (RETRY_S,))], default=None)

    def _let_go_of_orphan(self, pod: Pod) -> None:
        """Free a pod whose job is gone: nobody counts it. Asks the API, because the cache of jobs may be behind."""
        for owner in pod.metadata.owner_references:
            if owner.kind == JobDocument.KIND:
                try:
                    job = self._client.get(JobDocument, owner.name, namespace=pod.metadata.namespace)
                except NotFoundError:
                    continue
                if job.metadata.uid == owner.uid:
                    return
        self._untrack(pod)

    def _sync(self, seen: JobDocument) -> None:
        """Take one step of one job, from what the API says now: from an old cache, pods would be created twice."""
        namespace = seen.metadata.namespace
        job = self._client.get(JobDocument, seen.metadata.name, namespace=namespace)
        pods = JobPods.of(job, self._client.list(Pod, namespace=namespace).items)
        job = self._count(job, pods)
        if job.metadata.deletion_timestamp is not None:
            return
        if ended_with(job) is not None:
            self._delete_after_ttl(job)
            return
        end = end_of(job.spec, job.status, pods)
        if end is not None:  # all at once: an end cannot be undone
            for pod in pods.active:
                self._delete(pod)
            active: list[Pod] = []
        else:
            active = self._made(job, pods)
        self._report(job, active, end)

    # counting

    def _count(self, job: JobDocument, pods: JobPods) -> JobDocument:
        """Count what ended, in two writes with the removal of finalizers between them."""
        uncounted = job.status.get("uncountedTerminatedPods") or {}
        fresh = {
            name: sorted({*uncounted.get(name, ()), *(pod.metadata.uid for pod in ended if _is_tracked(pod))})
            for name, ended in (("succeeded", pods.succeeded), ("failed", pods.failed))
        }
        if not any(fresh.values()):
            return job
        if any(fresh[name] != sorted(uncounted.get(name, ())) for name in fresh):
            job = self._patch(job, {"uncountedTerminatedPods": fresh})
        for pod in (*pods.succeeded, *pods.failed):
            if _is_tracked(pod):
                self._untrack(pod)
        counts = {name: job.status.get(name, 0) + len(uids) for name, uids in fresh.items() if uids}
        return self._patch(job, counts | {"uncountedTerminatedPods": {"succeeded": None, "failed": None}})

    def _untrack(self, pod: Pod) -> None:
        meta = pod.metadata
        kept = [name for name in meta.finalizers if name != TRACKED]
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": kept or None}}
        self._client.merge_patch(Pod, meta.name, patch, namespace=meta.namespace)

    # pods

    def _made(self, job: JobDocument, pods: JobPods) -> list[Pod]:
        """The active pods after some were created, or deleted because there are too many: no more than a burst."""
        wanted = wanted_active(job.spec, job.status)
        active = list(pods.active[: max(wanted, len(pods.active) - self._burst)])
        for pod in pods.active[len(active) :]:
            self._delete(pod)
        for _ in range(min(wanted - len(active), self._burst)):
            made = self._client.create(Pod, pod_document(job), namespace=job.metadata.namespace)
            self._events.record(job, "Normal", "SuccessfulCreate", f"Created pod: {made.metadata.name}")
            active.append(made)
        if len(active) != wanted:
            self._again_s.append(0.0)
        return active

    def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        self._client.delete(Pod, meta.name, namespace=meta.namespace, uid=meta.uid)

    def _delete_after_ttl(self, job: JobDocument) -> None:
        ttl_s = job.spec.get("ttlSecondsAfterFinished")
        ended = ended_with(job)
        if ttl_s is None or ended is None:
            return
        left_s = ttl_s - (self._clock.now() - datetime.fromisoformat(ended["lastTransitionTime"])).total_seconds()
        if left_s > 0:
            self._again_s.append(left_s)
            return
        meta = job.metadata
        self._client.delete(
            JobDocument, meta.name, namespace=meta.namespace, uid=meta.uid, propagation_policy="Background"
        )

    # status

    def _report(self, job: JobDocument, active: Sequence[Pod], end: list[dict[str, Any]] | None) -> None:
        now = rfc3339(self._clock.now())
        ready = sum(
            any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions) for pod in active
        )
        status: dict[str, Any] = {"active": len(active), "ready": ready, "terminating": 0}
        if not job.spec.get("suspend"):
            status["startTime"] = job.status.get("startTime") or now
            status["uncountedTerminatedPods"] = job.status.get("uncountedTerminatedPods") or {}
        conditions = [one for one in job.status.get("conditions", ()) if one["type"] != "Suspended"]
        suspended = _suspension(job)
        stamped = [one | {"lastProbeTime": now, "lastTransitionTime": now} for one in (*suspended, *(end or ()))]
        before = {one["type"]: one for one in job.status.get("conditions", ())}
        stamped = [before[one["type"]] if _is_said(before, one) else one for one in stamped]
        if stamped or len(conditions) < len(before):
            status["conditions"] = [*conditions, *stamped]
        if end is not None and end[-1]["type"] == "Complete":
            status["completionTime"] = now
        if any(job.status.get(name, 0 if name == "active" else None) != value for name, value in status.items()):
            self._patch(job, status)
            if end is not None:
                self._tell_end(job, end[-1])

    def _tell_end(self, job: JobDocument, condition: dict[str, Any]) -> None:
        if condition["type"] == "Complete":
            self._events.record(job, "Normal", "Completed", "Job completed")
        else:
            self._events.record(job, "Warning", condition["reason"], condition["message"])

    def _patch(self, job: JobDocument, status: dict[str, Any]) -> JobDocument:
        meta = job.metadata
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "status": status}
        return self._client.merge_patch(JobDocument, meta.name, patch, namespace=meta.namespace, subresource="status")


def pod_document(job: JobDocument) -> dict[str, Any]:
    """Return the next pod of a job."""
    template = job.spec["template"]
    metadata = {
        key: template.get("metadata", {})[key] for key in ("labels", "annotations") if key in template["metadata"]
    }
    made = {
        "generateName": f"{job.metadata.name}-",
        "finalizers": [TRACKED],
        "ownerReferences": [owner_reference(job)],
    }
    return {"metadata": metadata | made, "spec": template["spec"]}


def wanted_active(spec: dict[str, Any], status: dict[str, Any]) -> int:
    """Return how many pods should run now: no more than can still be needed, none for a suspended job."""
    if spec.get("suspend"):
        return 0
    parallelism: int = spec.get("parallelism", 0)
    if "completions" not in spec:
        # A work queue: once one pod has succeeded, those that run are the last.
        active: int = status.get("active", 0)
        return min(parallelism, active) if status.get("succeeded") else parallelism
    completions: int = spec["completions"]
    succeeded: int = status.get("succeeded", 0)
    return min(parallelism, max(0, completions - succeeded))


def end_of(spec: dict[str, Any], status: dict[str, Any], pods: JobPods) -> list[dict[str, Any]] | None:
    """Return the conditions with which the job ends now, or None while it goes on."""
    succeeded, failed = status.get("succeeded", 0), status.get("failed", 0)
    if failed > spec["backoffLimit"]:
        why = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        return [{"type": kind, "status": "True"} | why for kind in ("FailureTarget", "Failed")]
    wanted = spec.get("completions")
    if succeeded >= wanted if wanted is not None else succeeded and not pods.active:
        why = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        return [{"type": kind, "status": "True"} | why for kind in ("SuccessCriteriaMet", "Complete")]
    return None


def ended_with(job: JobDocument) -> dict[str, Any] | None:
    """Return the condition with which a job has ended, None while it has not."""
    conditions = job.status.get("conditions", ())
    return next((one for one in conditions if one["type"] in ("Complete", "Failed") and one["status"] == "True"), None)


def _suspension(job: JobDocument) -> list[dict[str, Any]]:
    """The condition of a job that is suspended, or was."""
    if job.spec.get("suspend"):
        return [{"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"}]
    if any(one["type"] == "Suspended" for one in job.status.get("conditions", ())):
        return [{"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}]
    return []


def _is_said(before: dict[str, dict[str, Any]], condition: dict[str, Any]) -> bool:
    said = before.get(condition["type"], {})
    return all(said.get(key) == condition[key] for key in ("status", "reason", "message"))


def _is_tracked(pod: Pod) -> bool:
    return TRACKED in pod.metadata.finalizers


def _owners(pod: Pod) -> set[str]:
    return {owner.uid for owner in pod.metadata.owner_references if owner.kind == JobDocument.KIND}
