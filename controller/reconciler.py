"""One pod key → one written decision, one reason why it waits, or one retry later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

import structlog

from dracaena.api.decision import describe
from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import Pod, ResourceClaim
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.allocator import NoFit, Settled
from dracaena.controller.allocation.demands import RefusalKind, Refused
from dracaena.controller.allocation.pool import held_devices
from dracaena.controller.allocation.result import Allocation, decision_of
from dracaena.controller.claim_writer import ClaimWriter, Lost
from dracaena.controller.cluster import Behind, Cluster, InProgress
from dracaena.controller.collisions import Collisions
from dracaena.controller.deadline import Deadline
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.nomination import Nomination, earlier_nodes
from dracaena.controller.ports import ClaimApi, EventSink
from dracaena.controller.slow_pods import DECISION_S, IDLE, SlowPods
from dracaena.controller.take_back import TakeBack, was_allocated_by_us
from dracaena.controller.unbound_pods import UnboundPods
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

DECISION_ID_LENGTH: Final = 12
"""Hexadecimal digits: of a million decisions two share one with a chance of 1 in 500."""

log = structlog.get_logger()

Decision = Allocation | NoFit | Behind | Refused | Settled | InProgress


@dataclass(frozen=True, slots=True)
class Tidy:
    """Writes of before are in doubt, or are being taken back: that comes first."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A claim that the pod names does not exist: soon it will, or somebody has to make it."""

    why: str
    pod: Pod | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Allocations for the pod led nowhere wherever it was: nothing is allocated for a while."""

    pod: Pod
    for_s: float


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to decide; a change of the pod or of a claim will wake the pod."""

    why: str


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided for a pod and its claims."""

    decision_id: str
    """Stands in every log line of this decision, from here to the last write."""
    pod: Pod
    claims: tuple[ResourceClaim, ...]
    decision: Decision


Step = Tidy | Missing | Held | Nothing | Decided


class Reconciler:
    """Brings pods to their devices. Safe from many workers as long as no two have the same pod.

    Decisions are made one at a time, each knowing all decisions before it (plan); writes run side by side (carry_out).
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
        unbound: UnboundPods,
        nomination: Nomination,
        collisions: Collisions,
        waiting: WaitingPods,
        queue: WorkQueue,
        slow: SlowPods,
        events: EventSink,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._driver = driver
        self._cluster = cluster
        self._claims = claims
        self._writer = writer
        self._take_back = take_back
        self._unbound = unbound
        self._nomination = nomination
        self._collisions = collisions
        self._waiting = waiting
        self._queue = queue
        self._slow = slow
        self._events = events
        self._clock = clock
        self._metrics = metrics

    def plan(self, key: str) -> Step:
        """Find out what is next for a pod, and decide if that is next. Writes nothing and asks no server.

        Call it for one pod at a time, in the order of their turns, and then carry_out(): a device goes to whom it is
        decided for first.
        """
        if self._take_back.has(key) or self._has_doubts(key):
            self._cluster.leave(key)
            return Tidy()
        pod = self._cluster.pod(key)
        if pod is None or not _wants_devices(pod):
            self._slow.forget(key)
            self._cluster.leave(key)
            return Nothing("wants no devices")
        claims = self._ready_claims(pod)
        if isinstance(claims, Missing | Nothing):
            self._cluster.leave(key)
            return replace(claims, pod=pod) if isinstance(claims, Missing) else claims
        held_s = self._unbound.held(pod) if any(claim.status.allocation is None for claim in claims) else None
        if held_s is not None:
            self._cluster.leave(key)
            return Held(pod, held_s)
        decision_id = uuid4().hex[:DECISION_ID_LENGTH]
        with structlog.contextvars.bound_contextvars(decision=decision_id):
            return Decided(decision_id, pod, claims, self._decide(pod, claims))

    def carry_out(self, key: str, step: Step) -> bool:
        """Do what was planned for a pod; return whether it went well, else try again after a growing wait.

        Raises KubeError when the server does not answer, with the same meaning.
        """
        if isinstance(step, Tidy):
            self._tidy(key)
            return True
        if isinstance(step, Missing):
            assert step.pod is not None
            self._waiting.report(step.pod, "claim-missing", step.why, tell=True, patience_s=MISSING_CLAIM_S)
            return True
        if isinstance(step, Held):
            self._waiting.report(step.pod, "held", self._unbound.why_held(step.pod), tell=True)
            self._queue.add_after(key, step.for_s)
            return True
        if isinstance(step, Nothing):
            self._waiting.forget(key)
            log.debug("nothing to decide", why=step.why)
            return True
        with structlog.contextvars.bound_contextvars(decision=step.decision_id):
            return self._carry_out(step)

    def _carry_out(self, step: Decided) -> bool:
        decision = step.decision
        if isinstance(decision, NoFit | Behind | Refused):
            self._wait(step.pod, step.claims, decision)
            return True
        self._waiting.forget(step.pod.key)
        if isinstance(decision, InProgress):
            log.debug("nothing to decide yet", why=f"claim {decision.claim_key} is just being allocated")
        if isinstance(decision, Settled):
            self._attend(step.pod, step.claims)
        return self._write(step.pod, decision) if isinstance(decision, Allocation) else True

    def _attend(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """A pod has all that it needs from us: see whether it gets bound."""
        if self._collisions.resolve(pod, claims):
            self._queue.add(pod.key)
            return
        look_s = self._unbound.attend(pod, claims)
        if look_s is not None:
            self._queue.add_after(pod.key, look_s)

    def _tidy(self, key: str) -> None:
        """Finish what was begun for a pod before; then it is decided for again."""
        wait_s = self._take_back.advance(key)
        if wait_s is None:
            wait_s = self._clear_doubts(key)
        if wait_s is not None:
            self._queue.add_after(key, wait_s)
        elif not self._cluster.assumed_of(key):  # else the watch shows it soon, and that wakes the pod
            self._queue.add(key)

    def _has_doubts(self, key: str) -> bool:
        """Whether it is not known what became of some write for a pod, or the watch has not shown it for long."""
        now_s = self._clock.monotonic()
        return any(
            entry.allocation_timestamp is None or entry.since_s + DOUBT_S <= now_s
            for entry in self._cluster.assumed_of(key)
        )

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
                if fresh.status.allocation is None:  # asked first: admin access holds no device
                    if left_s > 0:
                        waits.append(left_s)
                        continue
                elif held_devices(fresh, self._driver) == entry.devices:
                    self._cluster.stored(fresh)
                    continue
            self._cluster.forget(entry.claim_uid)
        return min(waits, default=None)

    def _ready_claims(self, pod: Pod) -> tuple[ResourceClaim, ...] | Missing | Nothing:
        """Return all claims of a pod, in the order of its spec, when all are there and none is going.

        Two entries may name one claim: it comes once.
        """
        claims: dict[str, ResourceClaim] = {}
        for reference in pod_claims(pod):
            if reference.key is None:
                return Missing(f"the claim for {reference.alias} is not generated from its template yet")
            claim = self._cluster.claim(reference.key)
            if claim is None:
                return Missing(f"claim {reference.key} does not exist")
            if claim.problem:
                return Missing(f"claim {reference.key} cannot be read: {claim.problem}")
            if reference.generated and not _owned_by(claim, pod):
                return Nothing(f"claim {reference.key} was not generated for this pod")
            if EXTENDED_RESOURCE_ANNOTATION in claim.metadata.annotations:
                return Nothing(f"claim {reference.key} is kube-scheduler's own, for an extended resource")
            if claim.metadata.deletion_timestamp is not None:
                return Nothing(f"claim {reference.key} is being deleted")
            claims[reference.key] = claim
        return tuple(claims.values())

    def _decide(self, pod: Pod, claims: Sequence[ResourceClaim]) -> Decision:
        began_s = self._clock.monotonic()
        is_behind_others = self._slow.behind_others(pod.key) is not None
        deadline = self._slow.deadline(pod.key)
        decision = self._cluster.decide(pod, claims, now_s=began_s, deadline=deadline)
        took_s = self._clock.monotonic() - began_s
        overdue = isinstance(decision, Refused) and decision.kind is RefusalKind.TOO_LONG
        goes_on = isinstance(decision, Refused) and decision.goes_on
        result = "too-long" if overdue else _RESULTS[type(decision)]
        rest_s = self._slow.decided(pod.key, deadline.used_s, overdue=overdue, goes_on=goes_on)
        if rest_s:
            self._queue.rest(pod.key, rest_s)
        if is_behind_others:
            self._queue.rest_behind_others(IDLE * deadline.used_s)
        if not isinstance(decision, Behind | InProgress):
            self._metrics.decision_seconds.observe(took_s)
        self._metrics.decisions.labels(result).inc()
        log.debug("decided", result=result, took_ms=round(took_s * 1e3, 3))
        return decision

    def _write(self, pod: Pod, allocation: Allocation) -> bool:
        try:
            marked = self._writer.mark(allocation)
        except KubeError:
            self._not_written(pod, allocation)  # no allocation was tried, so none can land later
            raise
        if isinstance(marked, Lost):
            self._lost(pod, allocation, marked)
            return False
        nominated = self._nomination.set(pod, allocation.node, earlier=self._hinted(pod, allocation))
        outcome = self._writer.allocate(allocation, marked, pod)
        if isinstance(outcome, Lost):
            self._nomination.clear(nominated, allocation.node)
            self._lost(pod, allocation, outcome)
            # The watch has to show what changed before a new decision can be a better one.
            return False
        for claim in outcome.claims:
            self._cluster.stored(claim)
        self._metrics.allocations.inc()
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
        self._take_back.begin(pod, outcome.written, "lost-write")
        if outcome.refused:
            self._waiting.report(pod, "refused-write", f"claim {outcome.claim_key} {outcome.why}", tell=True)

    def _hinted(self, pod: Pod, allocation: Allocation) -> frozenset[str]:
        """Return where a hint of the pod may be an old one of ours. The claims are those from before this decision."""
        if not pod.status.nominated_node_name:
            return frozenset()
        return earlier_nodes((entry.claim for entry in allocation.claims), self._driver)

    def _not_written(self, pod: Pod, allocation: Allocation, written: frozenset[str] = frozenset()) -> None:
        """Give back the devices of claims that did not get them."""
        for entry in allocation.claims:
            if entry.claim.metadata.uid not in written:
                self._cluster.forget(entry.claim.metadata.uid)

    def _wait(self, pod: Pod, claims: Sequence[ResourceClaim], decision: NoFit | Behind | Refused) -> None:
        half_written = [claim for claim in claims if self._is_half_written(pod, claim)]
        if half_written and self._take_back.begin(pod, half_written, "half-written"):
            # A write that was cut off, and what is left does not fit beside it any more: begin anew.
            log.warning("half-written decision is taken back", claims=[c.key for c in half_written])
            self._queue.add(pod.key)
        if isinstance(decision, Refused):
            self._waiting.report(pod, decision.kind.value, decision.text, tell=decision.concerns_us)
        else:
            self._waiting.report(pod, "no-node", lambda: self._explain(pod, claims), tell=True)
        if pod.status.nominated_node_name:
            for node in sorted(earlier_nodes(claims, self._driver)):
                self._nomination.clear(pod, node)
        again_s = self._unbound.next_try_s(pod)
        if again_s is not None:
            self._queue.add_after(pod.key, again_s)

    def _explain(self, pod: Pod, claims: Sequence[ResourceClaim]) -> str | None:
        deadline = Deadline(self._clock, DECISION_S)
        text = self._cluster.explain(pod, claims, now_s=self._clock.monotonic(), deadline=deadline)
        return text and text + self._unbound.when_again(pod)

    def _is_half_written(self, pod: Pod, claim: ResourceClaim) -> bool:
        users = {consumer.uid for consumer in claim.status.reserved_for}
        return not pod.spec.node_name and users <= {pod.metadata.uid} and was_allocated_by_us(claim, self._driver)


_RESULTS: Final = {
    Allocation: "allocated",
    NoFit: "unsatisfied",
    Refused: "refused",
    Settled: "settled",
    Behind: "behind",
    InProgress: "in-progress",
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
