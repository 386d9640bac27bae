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
from typing import Final

import structlog

from dracaena.api.decision import Decision, decode_decision
from dracaena.api.errors import BadInputError
from dracaena.api.names import decision_annotation
from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.claim_writer import pod_reference
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.nomination import Nomination
from dracaena.controller.ports import ClaimApi, PodApi
from dracaena.kube.errors import ConflictError, InvalidError, NotFoundError
from dracaena.process.clock import Clock

MAX_ENDED: Final = 1_000
"""Ends that are remembered, 0.2 MB: of a few seconds at the highest rate."""

REFUSED_S: Final = 30.0
"""Until a write is tried again that the server's validation refuses: a person has to change something first."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Task:
    """One claim on its way back. Touched by one worker at a time: the work queue gives a pod to one only."""

    namespace: str
    name: str
    uid: str
    version: str
    """resourceVersion of the claim that was to be taken back."""
    pod_uid: str
    reason: str
    """Label of the metric."""
    dropped: ResourceClaim | None = None
    """The claim as the first write left it."""
    since_s: float = field(default=0.0)


@dataclass(frozen=True, slots=True)
class _Ended:
    how: str
    """Label of the metric."""
    claim: ResourceClaim | None = None
    """The claim when it stays allocated: the watch may be behind, and its devices are nobody else's."""


class TakeBack:
    """Claims of pods that are being taken back, by pod. One lock of its own, for the table of tasks.

    `forget` is called with the UID of each claim that was freed: nothing has to be assumed about it any more; `stored`
    with each claim that stays allocated.
    """

    def __init__(
        self,
        driver: str,
        claims: ClaimApi,
        pods: PodApi,
        nomination: Nomination,
        forget: Callable[[str], None],
        stored: Callable[[ResourceClaim], None],
        clock: Clock,
        metrics: ControllerMetrics,
        *,
        unbound_wait_s: float,
    ) -> None:
        self._driver = driver
        self._nomination = nomination
        self._claims = claims
        self._pods = pods
        self._forget = forget
        self._stored = stored
        self._clock = clock
        self._metrics = metrics
        self._unbound_wait_s = unbound_wait_s
        self._lock = threading.Lock()
        self._tasks: dict[str, list[_Task]] = {}
        self._ended: dict[str, str] = {}

    def begin(self, pod: Pod, claims: Iterable[ResourceClaim], reason: str) -> bool:
        """Take back what a pod got; advance() does the work. `reason` is a short word for the metric.

        Return whether there is anything to do: not for a state of a claim that was dealt with, which the watch shows
        for a while longer.
        """
        metas = [claim.metadata for claim in claims]
        with self._lock:
            known = self._tasks.get(pod.key, [])
            uids = {task.uid for task in known}
            new = [
                _Task(meta.namespace, meta.name, meta.uid, meta.resource_version, pod.metadata.uid, reason)
                for meta in metas
                if meta.uid not in uids and self._ended.get(meta.uid) != meta.resource_version
            ]
            if new:
                self._tasks[pod.key] = [*known, *new]
            return bool(new)

    def has(self, pod_key: str) -> bool:
        """Return whether something is being taken back from a pod."""
        with self._lock:
            return pod_key in self._tasks

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
        self._metrics.take_backs.labels(task.reason, ended.how).inc()
        claim_key = f"{task.namespace}/{task.name}"
        log.info("taken back", claim=claim_key, claim_uid=task.uid, reason=task.reason, end=ended.how)
        if ended.claim is None:
            self._forget(task.uid)
        else:
            self._stored(ended.claim)
        with self._lock:
            self._tasks[pod_key].remove(task)
            if not self._tasks[pod_key]:
                del self._tasks[pod_key]
            if len(self._ended) >= MAX_ENDED:
                self._ended.clear()
            self._ended[task.uid] = task.version

    def _step(self, pod_key: str, task: _Task) -> float | _Ended:
        claim = self._claims.read_claim(task.namespace, task.name)
        if claim is None or claim.metadata.uid != task.uid or claim.status.allocation is None:
            return _Ended("gone")
        if any(consumer.uid != task.pod_uid for consumer in claim.status.reserved_for):
            return _Ended("kept", claim)  # another pod counts on it
        pod = self._pods.read_pod(*pod_key.split("/", 1))
        if pod is not None and pod.metadata.uid == task.pod_uid and pod.spec.node_name:
            return self._keep(task, claim, pod)
        try:
            return self._drop_or_clear(task, claim, pod)
        except InvalidError as error:
            log.warning("take-back refused by the API server", claim=claim.key, again_in_s=REFUSED_S, error=str(error))
            return REFUSED_S
        except (ConflictError, NotFoundError) as error:
            log.info("take-back refused, reading again", claim=claim.key, error=str(error))
            return 0.0

    def _keep(self, task: _Task, claim: ResourceClaim, pod: Pod) -> float | _Ended:
        """The pod got bound: it keeps its devices and gets its reservation back."""
        if not claim.status.reserved_for:
            try:
                self._claims.reserve(claim, [pod_reference(pod)])
            except (ConflictError, NotFoundError):
                return 0.0
        return _Ended("kept", claim)

    def _drop_or_clear(self, task: _Task, claim: ResourceClaim, pod: Pod | None) -> float | _Ended:
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
        decision = our_decision(claim, self._driver)
        if pod is not None and decision is not None:
            self._nomination.clear(pod, decision.node)
        return _Ended("cleared")


def our_decision(claim: ResourceClaim, driver: str) -> Decision | None:
    """Return the decision that the allocation of a claim stands for, None when it is not ours or there is none.

    It is ours when its decision annotation tells of these devices. A decision that had to be cut so far that it names
    none tells of any allocation with devices of our driver. Devices of other drivers may be among them.
    """
    if claim.status.allocation is None:
        return None
    try:
        decision = decode_decision(claim.metadata.annotations.get(decision_annotation(driver), ""))
    except BadInputError:
        return None
    results = claim.status.allocation.devices.results
    if not any(result.driver == driver for result in results):
        return None
    if decision.cut and not decision.devices:
        return decision
    return decision if sorted(decision.devices) == sorted(result.device for result in results) else None


def is_used_by_only(claim: ResourceClaim, pod: Pod) -> bool:
    """Return whether nobody but this pod uses a claim."""
    return {user.uid for user in claim.status.reserved_for} <= {pod.metadata.uid}


def was_allocated_by_us(claim: ResourceClaim, driver: str) -> bool:
    """Return whether the allocation of a claim is ours."""
    return our_decision(claim, driver) is not None
