"""Carries out the next step for a claim, apart from decisions: a write, a read, or another look later.

Clearing an allocation at once would race with a bind: kube-scheduler writes nothing more to a claim that is reserved,
so a bind under way would not conflict, and the pod would run without its devices. So the reservation is dropped first
and the allocation kept: a bind that starts later has to reserve, which changes the claim. Once it is proven that no
earlier bind is under way (lifecycle.proof), the allocation is cleared with the version that the server showed last,
which conflicts if the claim was reserved in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog

from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import group_consumer
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt, PodIdentity
from dracaena.controller.lifecycle.own_allocation import our_node
from dracaena.controller.lifecycle.phases import RecordEvent
from dracaena.controller.lifecycle.tending import (
    PROBED_AT_ONCE,
    Ask,
    Clear,
    Drop,
    Find,
    Keep,
    Look,
    Probe,
    Read,
    Release,
    Reserve,
    Step,
)
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import ClaimApi, PodApi
from dracaena.controller.queue.charging import Charging
from dracaena.controller.state.cluster import Cluster
from dracaena.controller.write.claim_writer import pod_reference
from dracaena.controller.write.nomination import Nomination
from dracaena.kube.errors import ConflictError, InvalidError, KubeError, NotFoundError
from dracaena.process.clock import Clock, rfc3339

REFUSED_S: Final = 30.0
"""Pause before a write that failed validation is repeated: a person has to change something first."""

AGAIN_S: Final = 2.0
"""Pause before reading a pod again that our watch does not show yet, or that could not be probed."""

UNUSED: Final = "unused"
"""Metric label for an allocation that is cleared only because no pod uses it."""

SHORTEST_LOOK_S: Final = 0.01
"""Shortest wait: one that rounding left just above zero would cause a busy loop."""

MAX_STEPS: Final = 8
"""Most steps of one call. A take-back needs three; others may change the claim in between."""

log = structlog.get_logger()


class ClaimTender:
    """Carries out what Cluster.next_step() says. Holds no state; call it for one claim by one thread at a time."""

    def __init__(
        self,
        driver: str,
        cluster: Cluster,
        claims: ClaimApi,
        pods: PodApi,
        nomination: Nomination,
        charging: Charging,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._driver = driver
        self._cluster = cluster
        self._claims = claims
        self._pods = pods
        self._nomination = nomination
        self._charging = charging
        self._clock = clock
        self._metrics = metrics

    def tend(self, claim_key: str) -> float | None:
        """Take the steps that can be taken now; return the seconds until the claim needs another look, None when its
        next change will bring one. Raises KubeError when the server does not answer."""
        with self._charging.of(claim_key):
            return self._tend(claim_key)

    def _tend(self, claim_key: str) -> float | None:
        for _ in range(MAX_STEPS):
            found = self._cluster.next_step(claim_key)
            if found is None:
                return None
            step, record = found
            if isinstance(step, Look):
                return max(step.in_s, SHORTEST_LOOK_S)
            again_s = self._take(step, record)
            if again_s is not None:
                return again_s
        return AGAIN_S

    def _take(self, step: Step, record: ClaimRecord) -> float | None:
        """Take one step; return the seconds until the next one, None when it may follow at once."""
        if isinstance(step, Drop | Clear | Reserve):
            return self._write(record, step)
        if isinstance(step, Read):
            claim = self._claims.read_claim(record.shown.metadata.namespace, record.shown.metadata.name)
            self._cluster.was_read(claim, record, after_doubt=True)
        elif isinstance(step, Ask):
            return self._each(step.pods, self._ask)
        elif isinstance(step, Probe):
            return self._each(step.pods, self._probe)
        elif isinstance(step, Find):
            return self._find(record, step.doubt)
        elif isinstance(step, Keep):
            self._count(record, "kept")
        elif isinstance(step, Release):
            log.info("devices are no longer held back", claim=record.key, claim_uid=record.uid)
        return None

    def _write(self, record: ClaimRecord, step: Drop | Clear | Reserve) -> float | None:
        try:
            stored = self._send(record, step)
        except (ConflictError, NotFoundError) as error:
            self._cluster.write_ended(record, RecordEvent.REFUSED)
            log.info("write refused, reading again", claim=record.key, error=str(error))
            claim = self._claims.read_claim(record.shown.metadata.namespace, record.shown.metadata.name)
            self._cluster.was_read(claim, record)
            known = self._cluster.record(record.key)
            if known is not None and known.version == record.version:
                raise  # the refusal is not about the claim's state, but from a webhook or a policy
            return None
        except InvalidError as error:
            self._cluster.write_ended(record, RecordEvent.REFUSED)
            log.warning(
                "write refused by the API server's validation", claim=record.key, again_in_s=REFUSED_S, error=str(error)
            )
            return REFUSED_S
        except KubeError as error:
            self._cluster.write_ended(record, RecordEvent.REFUSED if error.is_refusal else RecordEvent.NO_ANSWER)
            raise
        except BaseException:
            self._cluster.write_ended(record, RecordEvent.NO_ANSWER)
            raise
        if isinstance(step, Clear):
            self._cluster.gives_back(record)
        self._cluster.shown(stored)
        self._report(record, step)
        return None

    def _send(self, record: ClaimRecord, step: Drop | Clear | Reserve) -> ResourceClaim:
        claim = record.shown
        if isinstance(step, Clear):
            return self._claims.deallocate(claim)
        if isinstance(step, Reserve):
            return self._claims.reserve(claim, [group_consumer(claim) or pod_reference(step.pod.key, step.pod.uid)])
        return self._claims.reserve(claim, ())

    def _report(self, record: ClaimRecord, step: Drop | Clear | Reserve) -> None:
        if isinstance(step, Drop):
            log.info("reservation dropped", claim=record.key, claim_uid=record.uid, reason=record.ending)
        elif isinstance(step, Reserve):
            log.info("reservation given back", claim=record.key, claim_uid=record.uid, pod=step.pod.key)
        else:
            self._count(record, "cleared")
            self._forget_hint(record)

    def _count(self, record: ClaimRecord, end: str) -> None:
        reason = record.ending or UNUSED
        self._metrics.decisions.take_backs.labels(reason, end).inc()
        log.info("taken back", claim=record.key, claim_uid=record.uid, reason=reason, end=end)

    def _forget_hint(self, record: ClaimRecord) -> None:
        """Remove our hint from the pod that had the claim; otherwise kube-scheduler keeps CPU free for it there."""
        node = our_node(record.shown, self._driver)
        pod = self._read(record.share.pod) if record.share is not None else None
        if pod is not None and node is not None:
            self._nomination.clear(pod, node)

    def _each(self, pods: Sequence[PodIdentity], look: Callable[[PodIdentity], float | None]) -> float | None:
        waits = [wait_s for wait_s in map(look, pods) if wait_s is not None]
        if len(pods) == PROBED_AT_ONCE:
            waits.append(SHORTEST_LOOK_S)  # a claim that very many pods name must not keep a worker from the others
        return min(waits, default=None)

    def _ask(self, identity: PodIdentity) -> float | None:
        return None if self._shown_unbound(identity) is not None else AGAIN_S  # the watch will have shown it by then

    def _shown_unbound(self, identity: PodIdentity) -> Pod | None:
        """Have the server show a pod; None if it is on a node or gone."""
        requested_s = self._clock.monotonic()
        pod = self._read(identity)
        if pod is None or pod.spec.node_name:
            return None
        self._cluster.pod_was_read(pod, requested_s)
        return pod

    def _probe(self, identity: PodIdentity) -> float | None:
        """Put a probe into the pod's condition: kube-scheduler's next failing attempt removes it, even if its message
        is the same. A pod without a message is only read."""
        pod = self._shown_unbound(identity)
        if pod is None:
            return AGAIN_S  # the watch will have shown it by then
        is_spoken_of = any(condition.type == "PodScheduled" for condition in pod.status.conditions)
        if pod.spec.scheduling_gates or not is_spoken_of:
            return None
        try:
            requested_s = self._clock.monotonic()
            self._cluster.pod_was_read(self._pods.probe(pod, rfc3339(self._clock.now())), requested_s)
        except (ConflictError, NotFoundError, InvalidError) as error:
            log.info("pod not probed", pod=identity.key, again_in_s=AGAIN_S, error=str(error))
            return AGAIN_S
        return None

    def _find(self, record: ClaimRecord, doubt: Doubt) -> float | None:
        """Ask the server for a pod that our watch does not show as unbound. If it is on a node, wait for the watch to
        show that: the next step for the claim depends on it."""
        if doubt.pod is None:
            return AGAIN_S
        requested_s = self._clock.monotonic()
        pod = self._read(doubt.pod)
        if pod is None or _cannot_be_bound(pod):
            self._cluster.went(record.key, doubt)
            return None
        if not pod.spec.node_name:
            self._cluster.was_found(record.key, doubt, requested_s)
        return AGAIN_S

    def _read(self, identity: PodIdentity) -> Pod | None:
        """Read a pod from the server; None when it is gone."""
        pod = self._pods.read_pod(*identity.key.split("/", 1))
        return pod if pod is not None and pod.metadata.uid == identity.uid else None


def _cannot_be_bound(pod: Pod) -> bool:
    """Whether a pod has ended, or is being deleted without a node: the server does not bind such a pod."""
    return pod.status.phase in ENDED or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)
