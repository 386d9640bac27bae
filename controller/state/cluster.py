"""What is known about the cluster, under one lock: decisions over it, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from dracaena.api.objects import Pod
from dracaena.api.podclaims import PodClaim
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.explanation import Pace
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt
from dracaena.controller.lifecycle.phases import Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import Wait
from dracaena.controller.lifecycle.proof import last_bind_s
from dracaena.controller.lifecycle.prospects import Nudge
from dracaena.controller.lifecycle.tending import Step
from dracaena.controller.queue.time_budgets import Deadline, TurnDeadline
from dracaena.controller.state.cluster_state import ClusterState, is_tended
from dracaena.controller.state.collisions import Collision
from dracaena.controller.state.decisions import Decision
from dracaena.controller.state.intake import Collided, Intake, ProblemsChanged
from dracaena.controller.state.upkeep import TakenBack
from dracaena.process.clock import Clock


class Cluster:
    """Answers what decisions and writes ask, over a state that it owns. One lock guards all of it.

    While a decision (decisions.py) is made, nothing changes, and its devices are taken before the lock is released. So
    decisions must be short: they look at buckets of nodes (allocation.state.inventory), not at single nodes. `intake`
    takes in what the watches tell, under the same lock.
    """

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        *,
        keep: Callable[[ResourceClaim], ResourceClaim] = lambda claim: claim,
        problems_changed: ProblemsChanged = lambda unusable, updating: None,
        collided: Collided = lambda claim, collisions: None,
    ) -> None:
        """`keep` cuts down a claim from an answer of the server; claims from the watch are cut down already.
        `problems_changed` is called with the number of lasting problems and of pools that are just being written,
        `collided` with a claim that was shown to hold what other claims hold too: both without the lock."""
        self._state = state
        self._clock = clock
        self._keep = keep
        self._collided = collided
        self._lock = threading.Lock()
        self.intake = Intake(state, self._lock, clock, problems_changed, collided)

    # Deciding

    def pod(self, key: str) -> Pod | None:
        """Return a pod that names claims."""
        with self._lock:
            return self._state.records.pod(key)

    def named_by(self, pod: Pod) -> tuple[PodClaim, ...]:
        """Return the claims that a pod names, in the order of its spec (Records.named_by)."""
        with self._lock:
            return self._state.records.named_by(pod)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim as the server last showed it."""
        with self._lock:
            record = self._state.records.claim(key)
            return None if record is None else record.shown

    def record(self, key: str) -> ClaimRecord | None:
        """Return the record of a claim."""
        with self._lock:
            return self._state.records.claim(key)

    def decide(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        decision_id: str,
        now_s: float,
        deadline: Deadline | None = None,
    ) -> Decision:
        """Decide for a pod and its claims, as claim() returned them (Decisions.decide)."""
        with self._lock:
            return self._state.decisions.decide(pod, claims, decision_id=decision_id, now_s=now_s, deadline=deadline)

    def leave(self, key: str) -> None:
        """Note that a pod does not wait for devices now (Decisions.leave)."""
        with self._lock:
            self._state.decisions.leave(key)

    def explain(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, pace: Pace | None = None
    ) -> str | None:
        """Say why a pod fits nowhere now (Decisions.explain). Others have the lock between its turns."""
        pace = pace or TurnDeadline(self._clock)
        turns = self._state.decisions.explain(pod, claims, now_s=now_s, pace=pace)
        while True:
            with self._lock:
                try:
                    next(turns)
                except StopIteration as end:
                    text: str | None = end.value
                    return text
            pace.rest()

    def serve(self, features: Features) -> None:
        """Decide by what the cluster has (Allocator.serve), also for who waits already."""
        with self._lock:
            if features != self._state.allocator.features:
                self._state.allocator.serve(features)
                self._state.decisions.may_help(None)

    def reprice(self, now_s: float) -> None:
        """Take the prices that suit what pods ask for now (Decisions.reprice)."""
        with self._lock:
            self._state.decisions.reprice(now_s)

    def keep_for_starving(self, created_before: str, *, now_s: float, deadline: Deadline | None = None) -> None:
        """Keep a node for the first pod that has waited too long (Decisions.keep_for_starving)."""
        with self._lock:
            self._state.decisions.keep_for_starving(created_before, now_s=now_s, deadline=deadline)

    def review_groups(self, now_s: float) -> None:
        """See which PodGroup comes first (GroupTurns.review), and ask those again who may use what was kept for it."""
        with self._lock:
            self._state.decisions.may_help(self._state.groups.review(now_s))

    @property
    def earmark(self) -> Earmark | None:
        """The node that is kept for a pod now."""
        with self._lock:
            return self._state.decisions.earmark

    # What becomes of decisions and of what was allocated

    def shown(self, claim: ResourceClaim) -> None:
        """Take in a claim from a read or the answer to a write, which the watch may not show yet."""
        kept = self._keep(claim)
        with self._lock:
            collisions = self._show(kept)
        self._tell_collisions(kept, collisions)

    def send_allocation(self, claim: ResourceClaim, decision_id: str) -> bool:
        """Note that an allocation is about to be written to this state of a claim; return whether it may be, because
        the claim still belongs to the decision."""
        kept = self._keep(claim)
        with self._lock:
            self._show(kept)
            sent = self._state.records.send(claim.key, RecordEvent.SEND_ALLOCATION, decision_id)
            return sent is not None and sent.shown.metadata.resource_version == claim.metadata.resource_version

    def ended(self, claims: Iterable[ResourceClaim], decision_id: str, event: RecordEvent) -> None:
        """Note that a decision is written no further, and how its last write ended: REFUSED, NO_ANSWER or ANSWERED.
        Claims for which nothing was sent are free again."""
        with self._lock:
            for claim in claims:
                record = self._state.records.claim(claim.key)
                is_sent = record is not None and record.phase is Phase.WRITING
                end = event if is_sent else RecordEvent.ABANDON
                self._state.records.end_write(claim.key, end, self._clock.monotonic(), decision_id=decision_id)

    def next_step(self, claim_key: str) -> tuple[Step, ClaimRecord] | None:
        """Return the next step for a claim (Upkeep.next_step)."""
        with self._lock:
            return self._state.upkeep.next_step(claim_key, self._clock.monotonic(), self._clock.now())

    def write_ended(self, record: ClaimRecord, event: RecordEvent) -> None:
        """Note how a write that next_step() asked for ended: REFUSED or NO_ANSWER. `record` is what it returned."""
        with self._lock:
            self._state.records.end_write(record.key, event, self._clock.monotonic(), guard=record.guard)

    def gives_back(self, record: ClaimRecord) -> None:
        """Note that a clearing which next_step() asked for succeeded, before its answer is shown
        (Upkeep.gives_back)."""
        with self._lock:
            self._state.upkeep.gives_back(record, self._clock.monotonic(), self._clock.now())

    def was_read(self, claim: ResourceClaim | None, record: ClaimRecord, *, after_doubt: bool = False) -> None:
        """Take in the server's answer about the claim of a record; None: there is no such claim. `after_doubt`: the
        request was sent when a write without an answer could no longer land."""
        kept = None if claim is None else self._keep(claim)
        with self._lock:
            if kept is None or kept.metadata.uid != record.uid:
                self._state.records.gone(record.key, self._clock.monotonic(), record.uid)
                return
            collisions = self._show(kept)
            known = self._state.records.claim(record.key)
            if after_doubt and known is not None and known.phase is Phase.IN_DOUBT and known.guard == record.guard:
                self._state.records.end_write(
                    record.key, RecordEvent.EXPIRED, known.last_write_s, decision_id=_id(known)
                )
        self._tell_collisions(kept, collisions)

    def went(self, claim_key: str, doubt: Doubt) -> None:
        """Note that the server no longer has the pod of a doubt unbound."""
        with self._lock:
            self._state.records.settle(claim_key, (doubt,))

    def was_found(self, claim_key: str, doubt: Doubt, requested_s: float) -> None:
        """Note that a request sent at `requested_s` found the pod of a doubt without a node, although the watch does
        not show that pod."""
        with self._lock:
            if requested_s >= last_bind_s(doubt, self._state.rules.bounds):
                self._state.records.settle(claim_key, (doubt,))

    def pod_was_read(self, pod: Pod, requested_s: float) -> None:
        """Take in the answer to a request sent at `requested_s`: the pod has no node."""
        with self._lock:
            self._state.records.pod_was_read(pod, requested_s, self._clock.monotonic())

    def attend(self, pod: Pod) -> TakenBack | Nudge | float | None:
        """See whether a pod whose claims are all allocated gets bound (Upkeep.attend)."""
        with self._lock:
            now_s, now = self._clock.monotonic(), self._clock.now()
            return self._state.upkeep.attend(pod, now_s, now, others_wait=self._state.decisions.anybody_waits)

    def begin_anew(self, claims: Iterable[ResourceClaim], *, at_once: bool) -> tuple[str, ...]:
        """Take back allocations that are in the way of their own pod (Upkeep.begin_anew)."""
        with self._lock:
            return self._state.upkeep.begin_anew(claims, at_once=at_once)

    def held(self, pod: Pod) -> Wait | None:
        """Return the back-off during which no node is tried for a pod, None when some may be."""
        with self._lock:
            known = self._state.records.backed_off(pod.key)
            return None if known is None else known.held(self._clock.monotonic())

    def first_left_out(self, pod: Pod, decided_s: float) -> Wait | None:
        """Return the back-off that ended first after a decision: of the nodes left out for a pod then, and of nodes on
        which others would have had to be evicted; None when there was none. It may be over by now."""
        with self._lock:
            known = self._state.records.unbound(pod.key)
            waits = [] if known is None else [*known.nodes_left_out(decided_s).values()]
            if known is not None and known.no_preemption.again_s > decided_s:
                waits.append(known.no_preemption)
            return min(waits, key=lambda wait: wait.again_s, default=None)

    def keeps_devices(self, claims: Iterable[ResourceClaim]) -> bool:
        """Return whether devices are kept for a pod with these claims while others are evicted for it."""
        with self._lock:
            return any(self._state.records.is_kept(claim.key) for claim in claims)

    def said(self, pod: Pod) -> str:
        """Return what kube-scheduler last said about a pod; empty when it said nothing."""
        with self._lock:
            known = self._state.records.unbound(pod.key)
            return "" if known is None or known.said is None else known.said.message

    def to_be_tended(self) -> tuple[str, ...]:
        """Return the keys of the claims that may need tending."""
        with self._lock:
            return tuple(record.key for record in self._state.records.claims() if is_tended(record))

    def pods_with_claims(self) -> tuple[str, ...]:
        """Return the keys of the pods that name claims."""
        with self._lock:
            return tuple(pod.key for pod in self._state.records.pods())

    def begin(self) -> None:
        """Start to lead (Upkeep.begin)."""
        with self._lock:
            self._state.upkeep.begin(self._state.pool_of, self._clock.monotonic())

    def _pool_of(self, node: str) -> str | None:
        pool = self._state.inventory.pool(node)
        return None if pool is None else pool.pool

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        with self._lock:
            return len(self._state.inventory.nodes.names)

    # What is wrong

    def collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        """Return which devices of a claim the server shows in another claim too (collisions)."""
        with self._lock:
            return self._state.collisions_of(claim)

    def all_collisions(self) -> tuple[tuple[ResourceClaim, tuple[Collision, ...]], ...]:
        """Return all claims that collide now, each pair of claims once. Cost: a look at every claim."""
        with self._lock:
            found = (
                (one.shown, tuple(other for other in self._state.collisions_of(one.shown) if other.rival.key < one.key))
                for one in self._state.records.claims()
            )
            return tuple((claim, collisions) for claim, collisions in found if collisions)

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        with self._lock:
            self._state.inventory.check()

    def _show(self, claim: ResourceClaim) -> Sequence[Collision]:
        return self._state.show(claim, self._clock.monotonic(), self._clock.now(), watched=False)

    def _tell_collisions(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        if collisions:
            self._collided(claim, collisions)


def _id(record: ClaimRecord) -> str:
    return record.share.decision_id if record.share is not None else ""
