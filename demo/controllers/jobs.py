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
from dracaena.demo.controllers.pod_owners import BURST, PodOwners, is_ready, pod_document
from dracaena.demo.objects import JobDocument
from dracaena.demo.reconcile import RETRY_S, settle, stamped
from dracaena.kube.client import KubeClient
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
    def of(cls, mine: Sequence[Pod]) -> JobPods:
        """Sort the pods that a job owns."""
        deleted = [pod for pod in mine if pod.metadata.deletion_timestamp is not None]
        succeeded = tuple(pod for pod in mine if pod.status.phase == "Succeeded")
        failed = tuple(pod for pod in mine if pod not in succeeded and (pod.status.phase == "Failed" or pod in deleted))
        return cls(tuple(pod for pod in mine if pod not in (*succeeded, *failed)), succeeded, failed)


class JobController(PodOwners[JobDocument]):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock, *, burst: int = BURST) -> None:
        super().__init__(JobDocument, client, clock, events_as=COMPONENT, burst=burst)

    def _reconcile(self) -> float | None:
        again_s = super()._reconcile()
        known = {job.metadata.uid for job in self._owners.values()}
        left = [pod for pod in self._pods.values() if _is_tracked(pod) and not _owners(pod) & known]
        freed = settle(left, self._let_go_of_orphan, "pod")
        return again_s if freed else min(RETRY_S, RETRY_S if again_s is None else again_s)

    def _let_go_of_orphan(self, pod: Pod) -> None:
        """Free a pod whose job is gone: nobody counts it. Asks the API, because the cache of jobs may be behind."""
        for owner in pod.metadata.owner_references:
            job = (
                self._read(JobDocument, owner.name, pod.metadata.namespace) if owner.kind == JobDocument.KIND else None
            )
            if job is not None and job.metadata.uid == owner.uid:
                return
        self._drop_finalizers(pod, TRACKED)

    def _sync(self, owner: JobDocument, pods: Sequence[Pod]) -> None:
        sorted_pods = JobPods.of(pods)
        job = self._count(owner, sorted_pods)
        if job.metadata.deletion_timestamp is not None:
            return
        if ended_with(job) is not None:
            self._delete_after_ttl(job)
            return
        end = end_of(job.spec, job.status, sorted_pods)
        if end is not None:  # all at once: an end cannot be undone
            for pod in sorted_pods.active:
                self._delete(pod)
            active: list[Pod] = []
        else:
            wanted = wanted_active(job.spec, job.status)
            active = self._resized(job, sorted_pods.active, wanted, pod_document(job, finalizers=[TRACKED]))
        self._report_progress(job, active, end)

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
            job = self._patch_status(job, {"uncountedTerminatedPods": fresh})
        for pod in filter(_is_tracked, (*pods.succeeded, *pods.failed)):
            self._drop_finalizers(pod, TRACKED)
        counts = {name: job.status.get(name, 0) + len(uids) for name, uids in fresh.items() if uids}
        return self._patch_status(job, counts | {"uncountedTerminatedPods": {"succeeded": None, "failed": None}})

    def _delete_after_ttl(self, job: JobDocument) -> None:
        ttl_s = job.spec.get("ttlSecondsAfterFinished")
        ended = ended_with(job)
        if ttl_s is None or ended is None:
            return
        left_s = ttl_s - (self._clock.now() - datetime.fromisoformat(ended["lastTransitionTime"])).total_seconds()
        if left_s > 0:
            self._again_s.append(left_s)
        else:
            self._delete(job, propagation_policy="Background")

    def _report_progress(self, job: JobDocument, active: Sequence[Pod], end: list[dict[str, Any]] | None) -> None:
        now = rfc3339(self._clock.now())
        status: dict[str, Any] = {"active": len(active), "ready": sum(map(is_ready, active)), "terminating": 0}
        if not job.spec.get("suspend"):
            status["startTime"] = job.status.get("startTime") or now
            status["uncountedTerminatedPods"] = job.status.get("uncountedTerminatedPods") or {}
        before = job.status.get("conditions", ())
        conditions = stamped((*_suspension(job), *(end or ())), before, now, "lastProbeTime")
        if conditions:
            status["conditions"] = [*(one for one in before if one["type"] != "Suspended"), *conditions]
        if end is not None and end[-1]["type"] == "Complete":
            status["completionTime"] = now
        if any(job.status.get(name, 0 if name == "active" else None) != value for name, value in status.items()):
            self._patch_status(job, status)
            if end is not None:
                self._tell_end(job, end[-1])

    def _tell_end(self, job: JobDocument, condition: dict[str, Any]) -> None:
        if condition["type"] == "Complete":
            self._events.record(job, "Normal", "Completed", "Job completed")
        else:
            self._events.record(job, "Warning", condition["reason"], condition["message"])


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


def _is_tracked(pod: Pod) -> bool:
    return TRACKED in pod.metadata.finalizers


def _owners(pod: Pod) -> set[str]:
    return {owner.uid for owner in pod.metadata.owner_references if owner.kind == JobDocument.KIND}
