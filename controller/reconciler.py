"""One pod key → one written decision, one reason why it waits, or one retry later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.decision import describe
from dracaena.api.objects import Pod, ResourceClaim
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.allocator import NoFit, Settled
from dracaena.controller.allocation.demands import Refused
from dracaena.controller.allocation.pool import held_devices
from dracaena.controller.allocation.result import Allocation, decision_of
from dracaena.controller.claim_writer import ClaimWriter, Lost
from dracaena.controller.cluster import Cluster, InProgress
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import ClaimApi, EventSink
from dracaena.controller.take_back import TakeBack, was_allocated_by_us
from dracaena.controller.waiting import WaitingPods
from dracaena.controller.workqueue import WorkQueue
from dracaena.kube.client import WRITE_TIMEOUT_S
from dracaena.kube.errors import KubeError
from dracaena.process.clock import Clock

DOUBT_S: Final = WRITE_TIMEOUT_S + 2.0
"""A write without an answer may still land until the server's own time-out is over; until then its devices rest."""

MISSING_CLAIM_S: Final = 5.0
"""Claims are made from templates within moments, and the watch of claims may be behind that of pods: until then a
missing claim is nothing to tell."""

EVENT_REASON: Final = "GPUsAllocated"

log = structlog.get_logger()

Decision = Allocation | NoFit | Refused | Settled


@dataclass(frozen=True, slots=True)
class _Missing:
    """A claim that the pod names does not exist: soon it will, or somebody has to make it."""

    why: str


@dataclass(frozen=True, slots=True)
class _Later:
    """Nothing can be decided now; a change of the pod or of a claim will wake the pod."""

    why: str


class Reconciler:
    """Brings pods to their devices. Safe from many workers as long as no two have the same pod.

    Decisions are made one at a time, by the cluster, each knowing all decisions before it; writes run side by side.
    Which scheduler a pod names does not matter: whoever binds it keeps to the claims' node.
    """

    def __init__(
        self,
        driver: str,
        *,
        cluster: Cluster,
        claims: ClaimApi,
        writer: ClaimWriter,
        take_back: TakeBack,
        waiting: WaitingPods,
        queue: WorkQueue,
        events: EventSink,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._driver = driver
        self._cluster = cluster
        self._claims = claims
        self._writer = writer
        self._take_back = take_back
        self._waiting = waiting
        self._queue = queue
        self._events = events
        self._clock = clock
        self._metrics = metrics

    def reconcile(self, key: str) -> bool:
        """Do the next thing for a pod; return whether it went well, else try again after a growing wait.

        Raises KubeError when the server does not answer, with the same meaning.
        """
        wait_s = self._take_back.advance(key)
        if wait_s is None:
            wait_s = self._clear_doubts(key)
        if wait_s is not None:
            self._queue.add_after(key, wait_s)
            return True
        pod = self._cluster.pod(key)
        if pod is None or not _wants_devices(pod):
            self._waiting.forget(key)
            return True
        claims = self._ready_claims(pod)
        if isinstance(claims, _Missing):
            self._waiting.report(pod, "claim-missing", claims.why, tell=True, patience_s=MISSING_CLAIM_S)
            return True
        changes = self._cluster.changes
        decision = claims if isinstance(claims, _Later) else self._decide(pod, claims)
        if isinstance(decision, NoFit | Refused):
            assert not isinstance(claims, _Later)
            self._wait(pod, claims, decision, changes)
            return True
        self._waiting.forget(key)
        if isinstance(decision, _Later):
            log.debug("nothing to decide yet", why=decision.why)
        return self._write(pod, decision) if isinstance(decision, Allocation) else True

    def _clear_doubts(self, key: str) -> float | None:
        """Find out what became of writes for a pod that got no answer; return the seconds until that can be known.

        Only one worker has this pod, so nobody is writing for it now.
        """
        waits = []
        for entry in self._cluster.assumed_of(key):
            left_s = entry.since_s + DOUBT_S - self._clock.monotonic()
            if entry.allocation_timestamp is not None and left_s > 0:
                continue  # written; the watch will show it
            fresh = self._claims.read_claim(*entry.claim_key.split("/", 1))
            if fresh is not None and fresh.metadata.uid == entry.claim_uid:
                if held_devices(fresh, self._driver) == entry.devices:
                    self._cluster.stored(fresh)
                    continue
                if fresh.status.allocation is None and left_s > 0:
                    waits.append(left_s)
                    continue
            self._cluster.forget(entry.claim_uid)
            self._cluster.wake_pods_of(entry.claim_key, but=key)
            self._cluster.wake_waiting()
        return min(waits, default=None)

    def _ready_claims(self, pod: Pod) -> tuple[ResourceClaim, ...] | _Missing | _Later:
        """Return all claims of a pod, in the order of its spec, when all are there and none is going.

        Two entries may name one claim: it comes once.
        """
        claims: dict[str, ResourceClaim] = {}
        for reference in pod_claims(pod):
            if reference.key is None:
                return _Missing(f"the claim for {reference.alias} is not generated from its template yet")
            claim = self._cluster.claim(reference.key)
            if claim is None:
                return _Missing(f"claim {reference.key} does not exist")
            if reference.generated and not _owned_by(claim, pod):
                return _Later(f"claim {reference.key} was not generated for this pod")
            if claim.metadata.deletion_timestamp is not None:
                return _Later(f"claim {reference.key} is being deleted")
            claims[reference.key] = claim
        return tuple(claims.values())

    def _decide(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Decision | _Later:
        began_s = self._clock.monotonic()
        decision = self._cluster.decide(pod, claims, now_s=began_s)
        self._metrics.decision_seconds.observe(self._clock.monotonic() - began_s)
        if isinstance(decision, InProgress):
            return _Later(f"claim {decision.claim_key} is just being allocated")
        self._metrics.decisions.labels(_RESULTS[type(decision)]).inc()
        return decision

    def _write(self, pod: Pod, allocation: Allocation) -> bool:
        try:
            marked = self._writer.mark(allocation)
        except KubeError:
            self._not_written(pod, allocation)  # no allocation was tried, so none can land later
            raise
        outcome = marked if isinstance(marked, Lost) else self._writer.allocate(allocation, marked, pod)
        if isinstance(outcome, Lost):
            self._lost(pod, allocation, outcome)
            # The watch has to show what changed before a new decision can be a better one.
            return False
        for claim in outcome.claims:
            self._cluster.stored(claim)
        text = describe(decision_of(allocation, allocation.claims[0]))
        log.info(
            "allocated",
            pod_uid=pod.metadata.uid,
            node=allocation.node,
            links=allocation.links,
            claims=[entry.claim.key for entry in allocation.claims],
            devices=[result.device for entry in allocation.claims for result in entry.results],
            **dict(allocation.choice.score.parts()),
        )
        for subject in (pod, *(entry.claim for entry in allocation.claims)):
            self._events.record(subject, "Normal", EVENT_REASON, text)
        return True

    def _lost(self, pod: Pod, allocation: Allocation, outcome: Lost) -> None:
        """Forget what was not written, take back what was, and decide again."""
        log.warning("decision could not be written whole", claim=outcome.claim_key, why=outcome.why)
        self._not_written(pod, allocation, frozenset(claim.metadata.uid for claim in outcome.written))
        self._take_back.begin(pod, outcome.written)
        if outcome.refused:
            self._waiting.report(pod, "refused-write", f"claim {outcome.claim_key} {outcome.why}", tell=True)

    def _not_written(self, pod: Pod, allocation: Allocation, written: frozenset[str] = frozenset()) -> None:
        """Give back the devices of claims that did not get them."""
        for entry in allocation.claims:
            if entry.claim.metadata.uid not in written:
                self._cluster.forget(entry.claim.metadata.uid)
                self._cluster.wake_pods_of(entry.claim.key, but=pod.key)
        self._cluster.wake_waiting()  # devices are free again that looked taken

    def _wait(self, pod: Pod, claims: Sequence[ResourceClaim], decision: NoFit | Refused, changes: int) -> None:
        half_written = [claim for claim in claims if self._is_half_written(pod, claim)]
        if half_written:
            # A write that was cut off, and what is left does not fit beside it any more: begin anew.
            log.warning("half-written decision is taken back", claims=[c.key for c in half_written])
            self._take_back.begin(pod, half_written)
            self._queue.add(pod.key)
        if isinstance(decision, Refused):
            self._waiting.report(pod, decision.kind.value, decision.text, tell=decision.concerns_us)
        else:
            self._waiting.report(pod, "no-node", lambda: self._cluster.explain(pod, claims), tell=True)
        if self._cluster.changes != changes:
            self._queue.add(pod.key)  # something changed between the decision and now

    def _is_half_written(self, pod: Pod, claim: ResourceClaim) -> bool:
        users = {consumer.uid for consumer in claim.status.reserved_for}
        return not pod.spec.node_name and users <= {pod.metadata.uid} and was_allocated_by_us(claim, self._driver)


_RESULTS: Final = {
    Allocation: "allocated",
    NoFit: "unsatisfied",
    Refused: "refused",
    Settled: "settled",
}


def _wants_devices(pod: Pod) -> bool:
    """Whether a pod may wait for its claims. One that names its node (scheduler passed by) waits for them there."""
    return (
        pod.metadata.deletion_timestamp is None
        and pod.status.phase in ("", "Pending")
        and not pod.spec.scheduling_gates
    )


def _owned_by(claim: ResourceClaim, pod: Pod) -> bool:
    return any(owner.controller and owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references)
