"""Takes allocations back that led nowhere, in two guarded writes.

Clearing at once would race with a bind: a reserved claim needs no write of kube-scheduler's any more, so nothing of a
bind in progress would conflict, and the pod would run without its devices. So first the reservation is dropped and the
allocation kept: a bind that starts from then on has to reserve, which changes the claim. After a bind's time the
allocation is cleared with the resourceVersion of the first write, which conflicts if anybody reserved in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog

from dracaena.api.decision import decode_decision
from dracaena.api.errors import BadInputError
from dracaena.api.names import decision_annotation
from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.claim_writer import pod_reference
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import ClaimApi, PodReader
from dracaena.kube.errors import ConflictError, InvalidError, NotFoundError
from dracaena.process.clock import Clock

log = structlog.get_logger()


@dataclass(slots=True)
class _Task:
    """One claim on its way back. Touched by one worker at a time: the work queue gives a pod to one only."""

    namespace: str
    name: str
    uid: str
    pod_uid: str
    dropped: ResourceClaim | None = None
    """The claim as the first write left it."""
    since_s: float = field(default=0.0)


@dataclass(frozen=True, slots=True)
class _Ended:
    how: str
    """Label of the metric."""


class TakeBack:
    """Claims of pods that are being taken back, by pod. One lock of its own, for the table of tasks.

    `forget` is called with the UID of each claim that is dealt with: nothing has to be assumed about it any more.
    """

    def __init__(
        self,
        claims: ClaimApi,
        pods: PodReader,
        forget: Callable[[str], None],
        clock: Clock,
        metrics: ControllerMetrics,
        *,
        unbound_wait_s: float,
    ) -> None:
        self._claims = claims
        self._pods = pods
        self._forget = forget
        self._clock = clock
        self._metrics = metrics
        self._unbound_wait_s = unbound_wait_s
        self._lock = threading.Lock()
        self._tasks: dict[str, list[_Task]] = {}

    def begin(self, pod: Pod, claims: Iterable[ResourceClaim]) -> None:
        """Take back what a pod got; advance() does the work."""
        tasks = [
            _Task(claim.metadata.namespace, claim.metadata.name, claim.metadata.uid, pod.metadata.uid)
            for claim in claims
        ]
        with self._lock:
            known = self._tasks.setdefault(pod.key, [])
            known.extend(task for task in tasks if task.uid not in {other.uid for other in known})

    def advance(self, pod_key: str) -> float | None:
        """Do what can be done now for a pod; return the seconds until there is more to do, None when all is done.

        Raises KubeError when the server does not answer; the tasks stay.
        """
        with self._lock:
            tasks = list(self._tasks.get(pod_key, ()))
        waits = []
        for task in tasks:
            found = self._step(pod_key, task)
            if isinstance(found, _Ended):
                self._finish(pod_key, task, found)
            else:
                waits.append(found)
        return min(waits, default=None)

    def _finish(self, pod_key: str, task: _Task, ended: _Ended) -> None:
        self._metrics.take_backs.labels(ended.how).inc()
        log.info("taken back", claim=f"{task.namespace}/{task.name}", claim_uid=task.uid, end=ended.how)
        self._forget(task.uid)
        with self._lock:
            self._tasks[pod_key].remove(task)
            if not self._tasks[pod_key]:
                del self._tasks[pod_key]

    def _step(self, pod_key: str, task: _Task) -> float | _Ended:
        claim = self._claims.read_claim(task.namespace, task.name)
        if claim is None or claim.metadata.uid != task.uid or claim.status.allocation is None:
            return _Ended("gone")
        if any(consumer.uid != task.pod_uid for consumer in claim.status.reserved_for):
            return _Ended("kept")  # another pod counts on it
        pod = self._pods.read_pod(*pod_key.split("/", 1))
        if pod is not None and pod.metadata.uid == task.pod_uid and pod.spec.node_name:
            return self._keep(task, claim, pod)
        try:
            return self._drop_or_clear(task, claim)
        except (ConflictError, InvalidError, NotFoundError) as error:
            log.info("take-back refused, reading again", claim=claim.key, error=str(error))
            task.dropped = None
            return 0.0

    def _keep(self, task: _Task, claim: ResourceClaim, pod: Pod) -> float | _Ended:
        """The pod got bound: it keeps its devices and gets its reservation back."""
        if not claim.status.reserved_for:
            try:
                self._claims.reserve(claim, [pod_reference(pod)])
            except (ConflictError, NotFoundError):
                return 0.0
        return _Ended("kept")

    def _drop_or_clear(self, task: _Task, claim: ResourceClaim) -> float | _Ended:
        now_s = self._clock.monotonic()
        if task.dropped is None or task.dropped.metadata.resource_version != claim.metadata.resource_version:
            # Without a reservation (a first write of somebody who was killed) the wait begins here.
            task.dropped = self._claims.reserve(claim, ()) if claim.status.reserved_for else claim
            task.since_s = self._clock.monotonic()
            log.info("reservation dropped", claim=claim.key, wait_s=self._unbound_wait_s)
            return self._unbound_wait_s
        left_s = task.since_s + self._unbound_wait_s - now_s
        if left_s > 0:
            return left_s
        self._claims.deallocate(task.dropped)
        return _Ended("cleared")


def was_allocated_by_us(claim: ResourceClaim, driver: str) -> bool:
    """Return whether the allocation of a claim is the one that its decision annotation tells of.

    A decision that had to be cut so far that it names no devices tells of any allocation of our driver.
    """
    if claim.status.allocation is None:
        return False
    try:
        decision = decode_decision(claim.metadata.annotations.get(decision_annotation(driver), ""))
    except BadInputError:
        return False
    results = claim.status.allocation.devices.results
    if any(result.driver != driver for result in results):
        return False
    if decision.cut and not decision.devices:
        return True
    return sorted(decision.devices) == sorted(result.device for result in results)
