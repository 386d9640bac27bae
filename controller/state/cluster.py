"""What we know about the cluster, the decisions made from it, and what becomes of them, all under one lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from itertools import repeat
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar
from uuid import uuid4

import structlog

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.podclaims import PodClaim
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.topology_levels import NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.explanation import Pace, Reasons
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.search import MAX_STEPS
from dracaena.controller.allocation.request import classes_asked_for, tolerates_anything
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.lifecycle.claim_record import (
    ClaimRecord,
    Doubt,
    expected_places,
    is_same_allocation,
    means_the_same,
)
from dracaena.controller.lifecycle.phases import TENDING, NotAllowedError, Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import Growth, Wait
from dracaena.controller.lifecycle.proof import last_bind_s
from dracaena.controller.lifecycle.prospects import Nudge
from dracaena.controller.lifecycle.tending import Step
from dracaena.controller.queue.time_budgets import Deadline, TurnDeadline
from dracaena.controller.queue.waiting_lines import Scope
from dracaena.controller.state.answers import Decision
from dracaena.controller.state.collisions import Collision, find_collisions
from dracaena.controller.state.decisions import Decisions
from dracaena.controller.state.group_turns import GroupTurns
from dracaena.controller.state.pod_accounting import PodAccounting
from dracaena.controller.state.quotas import Quotas, QuotaState
from dracaena.controller.state.records import Records
from dracaena.controller.state.scheduler_progress import SchedulerProgress
from dracaena.controller.state.upkeep import TakenBack, Upkeep, UpkeepRules
from dracaena.process.clock import Clock

FEW_PODS: Final = 8
"""So many pods of one claim are woken by the event itself. More of them wait until the claim's turn comes in the queue,
where all events until then count once."""

MANY_WAKES: Final = 3
MANY_PAUSE_S: Final = 1.0
"""The many pods of a claim are woken MANY_WAKES times within this time and not more often: one author can change a
claim very many times a second, and each of its pods is looked at again for that. A claim that comes, is decided and is
shown allocated wakes them as often without a pause."""

log = structlog.get_logger()

Collided = Callable[[ResourceClaim, Sequence[Collision]], None]


@dataclass(frozen=True, slots=True)
class Wakers:
    """Callbacks for what is to be done next. They may be called with the lock held, and must not call back."""

    decide: Callable[[str], None]
    """Called with the key of each pod that needs a decision."""
    decide_again: Callable[[str], None]
    """Called in the order of turns, with the key of each pod that fits nowhere and that a change may help."""
    tend: Callable[[str], None]
    """Called with the key of each claim that may need its next step."""
    tend_again: Callable[[str, float], None]
    """Called with the key of each claim whose many pods need a decision, and the seconds until they may be woken: its
    next step then wakes them. Without a delay it must not come again before they have had their turns."""
    fault: Callable[[ClaimRecord, NotAllowedError], None]
    """Called when an event is not allowed."""


class ClusterState:
    """Everything that we know, with its parts kept in step: above all, which devices each claim holds and on which node
    each pod counts. Used only under `lock`.

    The other parts follow the claims' records: a change of a record decides who holds which device, where its pods
    count, and which pods are woken (record_changed).
    """

    def __init__(
        self,
        driver: str,
        wakers: Wakers,
        rules: UpkeepRules,
        began_s: float,
        *,
        allowed_drivers: Iterable[str] = (),
        first_fit: bool = False,
        levels: TopologyLevels = NO_LEVELS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """`began_s` is Clock.monotonic() now; the parameters with defaults are for Inventory and Allocator."""
        self.driver, self.rules, self._wakers = driver, rules, wakers
        self.lock = threading.Lock()
        self.inventory = Inventory(driver, allowed_drivers, levels)
        self.records = Records(driver, rules.bounds, self.record_changed, wakers.fault)
        self._users_to_wake: set[str] = set()
        """Claims whose many pods need a decision."""
        self._many_wakes: dict[str, tuple[float, int]] = {}
        """Claim → since when its many pods were woken and how often, for MANY_PAUSE_S; in the order of these times."""
        self.progress = SchedulerProgress(began_s)
        self.groups = GroupTurns(self.inventory, self.records)
        self.upkeep = Upkeep(driver, self.records, self.progress, self.groups, rules, self._rivals_of)
        self.accounting = PodAccounting(self.inventory)
        share_ids = (str(uuid4()) for _ in repeat(None))
        self.allocator = Allocator(first_fit=first_fit, max_steps=max_steps, share_ids=share_ids)
        self.quotas = Quotas(self.inventory)
        self.decisions = Decisions(
            self.allocator, self.inventory, self.records, self.groups, self.quotas, self.wake_all, self._ask_all_again
        )

    def show(self, claim: ResourceClaim, now_s: float, now: datetime, *, watched: bool = True) -> Sequence[Collision]:
        """Take in a state of a claim; return its collisions if it is the first to show the allocation."""
        before = self.records.claim(claim.key)
        is_news = self.records.show(claim, now_s, watched=watched)
        if before is None and claim.status.allocation is None:
            self.inventory.requests.see(claim)
        was_cleared = is_news and before is not None and before.uid == claim.metadata.uid
        if was_cleared and before is not None and claim.status.allocation is None:
            for pod, node, for_s in self.upkeep.cleared(before, now_s, now):
                log.info("allocation was cleared", pod=pod, claim=claim.key, node=node, not_there_for_s=round(for_s, 1))
            if before.phase is not Phase.KEPT and self.records.is_kept(claim.key):
                kept_on = self.records.kept_on(claim.key)
                log.info("devices are kept while others are evicted", claim=claim.key, node=kept_on)
        if not is_news or not _is_newly_allocated(None if before is None else before.shown, claim):
            return ()
        collisions = self.collisions_of(claim)
        for collision in collisions:
            self.wake_users_of(collision.rival.key)
        return collisions

    def record_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        """Keep the books in step with the records, and wake the pods that a change may help."""
        subject = after or before
        assert subject is not None
        if before is not None and after is not None and _is_quiet(before, after):
            return
        holds = after.held(self.driver) if after is not None else (frozenset(), frozenset())
        freed = self.inventory.hold(claim_holder(subject.shown), *holds)
        self.decisions.other_devices_changed()
        with_room = self.accounting.claim_changed(subject.key, expected_places(before), expected_places(after))
        self.decisions.resources_freed(with_room)
        self.decisions.placement_changed(self.inventory.placed.changes())
        if before is None or after is None or not means_the_same(before.shown, after.shown):
            self.wake_users_of(subject.key)
        elif before.phase is Phase.KEPT and after.phase is Phase.FREE:
            self.wake_users_of(subject.key)  # only now does its pod learn how long it waits
        elif _may_be_decided_now(before, after):
            self._wake_of_claim(subject.key, self.records.blocked_pods(subject.key))
        if freed:
            self.decisions.devices_freed(self._nodes_of(freed), subject.shown.metadata.namespace)
        if after is not None and after.is_tended and _is_new_for_tending(before, after):
            self._wakers.tend(after.key)

    def collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        """Return which devices of a claim the server shows in another claim too."""
        return tuple(find_collisions(claim, self.inventory, self._shown))

    def wake_all(self, keys: Iterable[str]) -> None:
        """Ask for a decision about each of these pods."""
        for key in keys:
            self._wakers.decide(key)

    def wake_users_of(self, claim_key: str) -> None:
        """Ask for a decision about each pod that names a claim. Cost: O(1), however many they are."""
        is_few = self.records.naming_count(claim_key) <= FEW_PODS
        self._wake_of_claim(claim_key, self.records.naming(claim_key) if is_few else None)

    def wake_many(self, claim_key: str, now_s: float) -> None:
        """Now that it is a claim's turn, ask for the decisions about its pods that were put off until then: in the lane
        of those that are tried again, so that they do not come before all others. Cost: O(pods that name it)."""
        if claim_key not in self._users_to_wake:
            return
        while self._many_wakes and next(iter(self._many_wakes.values()))[0] + MANY_PAUSE_S <= now_s:
            del self._many_wakes[next(iter(self._many_wakes))]
        since_s, wakes = self._many_wakes.get(claim_key, (now_s, 0))
        if wakes == MANY_WAKES:
            self._wakers.tend_again(claim_key, since_s + MANY_PAUSE_S - now_s)
            return
        self._many_wakes[claim_key] = since_s, wakes + 1
        self._users_to_wake.discard(claim_key)
        self._ask_all_again(self.records.naming(claim_key))

    def _wake_of_claim(self, claim_key: str, pods: Sequence[str] | None) -> None:
        if pods is not None and len(pods) <= FEW_PODS:
            self.wake_all(pods)
        else:
            self._users_to_wake.add(claim_key)
            self._wakers.tend_again(claim_key, 0.0)

    def tend_claims_of(self, pods: Iterable[Pod | None]) -> None:
        """Tend the claims of pods: doubts and take-backs depend on what became of the pods."""
        keys = dict.fromkeys(claim.key for pod in pods if pod is not None for claim in self.records.named_by(pod))
        for key in keys:
            record = self.records.claim(key or "")
            if record is not None and record.is_tended:
                self._wakers.tend(record.key)

    def wake_rivals_of(self, pod: Pod) -> None:
        """Decide again for pods whose claims collide with those of a pod that was bound: which claim gives way depends
        on that, and a device must not be bound twice meanwhile."""
        for claim in filter(None, (self._shown(named.key or "") for named in self.records.named_by(pod))):
            for rival in self._rivals_of(claim):
                self.wake_users_of(rival.key)

    def wake_sharers_of(self, pod: Pod) -> None:
        """Decide again for pods that share a free claim with a pod that was on a node and has left it: until then they
        had to go to the same node."""
        for named in self.records.named_by(pod):
            record = self.records.claim(named.key or "")
            if record is not None and not record.is_held:
                self.wake_users_of(record.key)

    def _nodes_of(self, freed: Iterable[DeviceId | Holding]) -> Scope:
        """Return the nodes that freed devices are on; None: any, as other drivers' devices may be usable anywhere."""
        nodes = set()
        for one in freed:
            if isinstance(one, Holding) and one.device.driver != self.driver:
                return None
            pool = self.inventory.pool_named(one.device.pool if isinstance(one, Holding) else one.pool)
            if pool is not None:
                nodes.add(pool.node)
        return frozenset(nodes)

    def _ask_all_again(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._wakers.decide_again(key)

    def _shown(self, key: str) -> ResourceClaim | None:
        record = self.records.claim(key)
        return None if record is None else record.shown

    def _rivals_of(self, claim: ResourceClaim) -> Iterable[ResourceClaim]:
        return [collision.rival for collision in self.collisions_of(claim)]


def _is_newly_allocated(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    if new.status.allocation is None:
        return False
    return old is None or old.metadata.uid != new.metadata.uid or not is_same_allocation(old, new)


def _is_new_for_tending(before: ClaimRecord | None, after: ClaimRecord) -> bool:
    """Whether a change may call for another step. The end of a write or of doubts does not count: its cause knows when
    to go on, and otherwise there would be no pause after a failed write."""
    if before is None or not means_the_same(before.shown, after.shown):
        return True
    if TENDING & {before.phase, after.phase}:
        return False
    has_new_doubts = not {*after.doubts, *after.stale_binds} <= {*before.doubts, *before.stale_binds}
    return has_new_doubts or (before.phase, before.ending) != (after.phase, after.ending)


def _is_quiet(before: ClaimRecord, after: ClaimRecord) -> bool:
    """Whether only the version of what the server shows has changed."""
    is_same = means_the_same(before.shown, after.shown)
    return is_same and replace(before, shown=after.shown, guard=after.guard) == after


def _may_be_decided_now(before: ClaimRecord, after: ClaimRecord) -> bool:
    """Whether a change may help the pods that came while no decision could use the claim."""
    if after.phase is Phase.RESTING:
        return not after.doubts and bool(before.doubts)  # for a pod on a node
    return after.is_open and (after.is_open_to_all or (before.is_open, before.stale_binds) != (True, after.stale_binds))


class _UnderLock(Protocol):
    _lock: threading.Lock


S = TypeVar("S", bound=_UnderLock)
P = ParamSpec("P")
R = TypeVar("R")


def locked(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Return a method that is called under the lock. Such a method must not call another one."""

    @wraps(method)
    def under_lock(self: S, /, *args: P.args, **more: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **more)

    return under_lock


class Cluster:
    """Answers the queries of decisions and writes under the state's lock. Intake takes in what the watches report,
    under the same lock.

    Nothing changes while a decision (decisions.py) is made, and its devices are taken before the lock is released. So
    decisions must be short: they look at buckets of nodes (allocation.state.inventory), not at single nodes.
    """

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        *,
        keep: Callable[[ResourceClaim], ResourceClaim] = lambda claim: claim,
        collided: Collided = lambda claim, collisions: None,
    ) -> None:
        """`keep` trims the server's answers. `collided` is called, without the lock, with claims that collide."""
        self._state = state
        self._clock = clock
        self._keep = keep
        self._collided = collided
        self._lock = state.lock

    # Deciding

    @locked
    def pod(self, key: str) -> Pod | None:
        """Return a pod that names claims."""
        return self._state.records.pod(key)

    @locked
    def named_by(self, pod: Pod) -> tuple[PodClaim, ...]:
        """Return the claims that a pod names, in the order of its spec (Records.named_by)."""
        return self._state.records.named_by(pod)

    @locked
    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim as the server last showed it."""
        record = self._state.records.claim(key)
        return None if record is None else record.shown

    @locked
    def record(self, key: str) -> ClaimRecord | None:
        """Return the record of a claim."""
        return self._state.records.claim(key)

    @locked
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
        return self._state.decisions.decide(pod, claims, decision_id=decision_id, now_s=now_s, deadline=deadline)

    @locked
    def leave(self, key: str) -> None:
        """Note that a pod does not wait for devices now (Decisions.leave)."""
        self._state.decisions.leave(key)

    def explain(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, pace: Pace | None = None
    ) -> Reasons | None:
        """Return why a pod fits nowhere now (Decisions.explain). The lock is free between its turns.

        None if it fits after all, or if one of its claims is no longer as given: the change has the pod decided again,
        and a reason that mixes its claims of then with the cluster of now is true of neither.
        """
        pace = pace or TurnDeadline(self._clock)
        turns = self._state.decisions.explain(pod, claims, now_s=now_s, pace=pace)
        while True:
            with self._lock:
                if not all(map(self._is_unchanged, claims)):
                    return None
                try:
                    next(turns)
                except StopIteration as end:
                    reasons: Reasons | None = end.value
                    return reasons
            pace.rest()

    def _is_unchanged(self, claim: ResourceClaim) -> bool:
        record = self._state.records.claim(claim.key)
        return record is not None and means_the_same(record.shown, claim)

    def ignored(self, pod: Pod, claims: Sequence[ResourceClaim]) -> tuple[str, ...]:
        """Return what has no effect in a pod and its claims (Allocator.ignored); nothing when that takes long."""
        is_over = TurnDeadline(self._clock).begin_turn()
        with self._lock:
            others = {one.key for one in claims if self._state.records.is_shared(one.key, pod.key)}
            return self._state.allocator.ignored(self._state.inventory, pod, claims, others=others, is_over=is_over)

    @locked
    def serve(self, features: Features) -> None:
        """Decide by the cluster's features from now on (Allocator.serve), also for pods that wait already."""
        if features != self._state.allocator.features:
            self._state.allocator.serve(features)
            self._state.decisions.may_help(None)

    @locked
    def reprice(self, now_s: float) -> None:
        """Take the prices that suit what pods ask for now (Decisions.reprice)."""
        self._state.decisions.reprice(now_s)

    @locked
    def keep_for_starving(self, created_before: str, *, now_s: float, deadline: Deadline | None = None) -> None:
        """Keep a node for the first pod that has waited too long (Decisions.keep_for_starving)."""
        self._state.decisions.keep_for_starving(created_before, now_s=now_s, deadline=deadline)

    @locked
    def review_groups(self, now_s: float) -> None:
        """See which group comes first (GroupTurns.review), and retry the pods that may use what was kept for it; and
        which are larger than the cluster."""
        decisions = self._state.decisions
        self._state.wake_all(self._state.groups.look_for_room())
        decisions.may_help(self._state.groups.review(now_s, self._clock.now(), decisions.is_beyond_quota))

    @property
    @locked
    def earmark(self) -> Earmark | None:
        """The node that is kept for a pod now."""
        return self._state.decisions.earmark

    # What becomes of decisions and allocations

    def shown(self, claim: ResourceClaim) -> None:
        """Take in a claim from a read or the answer to a write, which the watch may not show yet."""
        kept = self._keep(claim)
        with self._lock:
            collisions = self._show(kept)
        self._tell_collisions(kept, collisions)

    def send_allocation(self, claim: ResourceClaim, decision_id: str) -> bool:
        """Note that this state of a claim is about to be allocated; return whether it still belongs to the decision."""
        kept = self._keep(claim)
        with self._lock:
            self._show(kept)
            sent = self._state.records.send(claim.key, RecordEvent.SEND_ALLOCATION, decision_id)
            return sent is not None and sent.shown.metadata.resource_version == claim.metadata.resource_version

    @locked
    def ended(self, claims: Iterable[ResourceClaim], decision_id: str, event: RecordEvent) -> None:
        """Note how the last write of a decision ended. Claims for which nothing was sent are free again."""
        for claim in claims:
            record = self._state.records.claim(claim.key)
            is_sent = record is not None and record.phase is Phase.WRITING
            end = event if is_sent else RecordEvent.ABANDON
            self._state.records.end_write(claim.key, end, self._clock.monotonic(), decision_id=decision_id)

    @locked
    def refused(self, claims: Iterable[ResourceClaim], why: str, growth: Growth) -> None:
        """Note that the server does not let us write claims as they are (Records.refuse)."""
        for claim in claims:
            self._state.records.refuse(claim.key, why, self._clock.monotonic(), growth)

    @locked
    def refused_until_s(self, claims: Iterable[ResourceClaim]) -> float | None:
        """Return when claims may be written again that the server refused; None: it refused none of them."""
        now_s = self._clock.monotonic()
        known = (self._state.records.refusal(claim.key, now_s) for claim in claims)
        return max((one.again_s for one in known if one is not None), default=None)

    @locked
    def next_step(self, claim_key: str) -> tuple[Step, ClaimRecord] | None:
        """Return the next step for a claim (Upkeep.next_step), and wake its pods if they are to be woken."""
        now_s = self._clock.monotonic()
        self._state.wake_many(claim_key, now_s)
        return self._state.upkeep.next_step(claim_key, now_s, self._clock.now())

    @locked
    def write_ended(self, record: ClaimRecord, event: RecordEvent) -> None:
        """Note how a write that next_step() asked for ended: REFUSED or NO_ANSWER. `record` is what it returned."""
        self._state.records.end_write(record.key, event, self._clock.monotonic(), guard=record.guard)

    @locked
    def gives_back(self, record: ClaimRecord) -> None:
        """Note that a clearing succeeded, before its answer is shown (Upkeep.gives_back)."""
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

    @locked
    def went(self, claim_key: str, doubt: Doubt) -> None:
        """Note that the server no longer has the doubt's pod unbound."""
        self._state.records.settle(claim_key, (doubt,))

    @locked
    def was_found(self, claim_key: str, doubt: Doubt, requested_s: float) -> None:
        """Note that a request sent at `requested_s` found the doubt's pod unbound. The watch does not show it."""
        if requested_s >= last_bind_s(doubt, self._state.rules.bounds):
            self._state.records.settle(claim_key, (doubt,))

    @locked
    def pod_was_read(self, pod: Pod, requested_s: float) -> None:
        """Take in the answer to a request sent at `requested_s`: the pod has no node."""
        self._state.records.pod_was_read(pod, requested_s, self._clock.monotonic())

    @locked
    def attend(self, pod: Pod) -> TakenBack | Nudge | float | None:
        """See whether a pod whose claims are all allocated gets bound (Upkeep.attend)."""
        now_s, now = self._clock.monotonic(), self._clock.now()
        return self._state.upkeep.attend(pod, now_s, now, others_wait=self._state.decisions.has_waiting_pods)

    @locked
    def only_we_can_serve(self, claims: Iterable[ResourceClaim]) -> bool:
        """Whether kube-scheduler certainly allocates one of these claims of a pod to nothing: it needs a device of
        ours, which are tainted, and tolerates nothing. Devices of other drivers kube-scheduler allocates by itself."""
        meant = self._state.inventory.requests.class_concerns_us
        return any(not tolerates_anything(one) and any(map(meant, classes_asked_for(one))) for one in claims)

    @locked
    def start_over(self, claims: Iterable[ResourceClaim], *, at_once: bool) -> tuple[str, ...]:
        """Take back allocations that are in the way of their own pod (Upkeep.start_over)."""
        return self._state.upkeep.start_over(claims, at_once=at_once)

    @locked
    def held(self, pod: Pod) -> Wait | None:
        """Return the back-off during which no node is tried for a pod; None when some node may be tried."""
        known = self._state.records.backed_off(pod.key)
        return None if known is None else known.held(self._clock.monotonic())

    @locked
    def first_left_out(self, pod: Pod, decided_s: float) -> Wait | None:
        """Return the first back-off of a pod to end after a decision, which may be over by now; None: there is none."""
        known, evicting = self._state.records.unbound(pod.key), self._state.records.is_room_being_made_for(pod)
        return None if known is None else known.first_wait(decided_s, evicting=evicting)

    @locked
    def keeps_devices(self, claims: Iterable[ResourceClaim]) -> bool:
        """Return whether devices are kept for a pod with these claims while others are evicted for it."""
        return any(self._state.records.is_kept(claim.key) for claim in claims)

    @locked
    def said(self, pod: Pod) -> str:
        """Return what kube-scheduler last said about a pod; empty when it said nothing."""
        known = self._state.records.unbound(pod.key)
        return "" if known is None or known.said is None else known.said.message

    @locked
    def to_be_tended(self) -> tuple[str, ...]:
        """Return the keys of the claims that may need tending."""
        return tuple(record.key for record in self._state.records.claims() if record.is_tended)

    @locked
    def pods_with_claims(self) -> tuple[str, ...]:
        """Return the keys of the pods that name claims."""
        return tuple(pod.key for pod in self._state.records.pods())

    @locked
    def begin(self) -> None:
        """Start to lead (Records.begin)."""
        self._state.records.begin(self._clock.monotonic())

    @locked
    def quotas(self) -> tuple[QuotaState, ...]:
        """Return the namespaces with a quota, and what they hold of it."""
        return self._state.quotas.states()

    @property
    @locked
    def node_count(self) -> int:
        """How many nodes there are."""
        return len(self._state.inventory.nodes.names)

    # What is wrong

    @locked
    def unused_levels(self) -> tuple[str, ...]:
        """Return the labels of levels that no node has, from the top."""
        return self._state.inventory.unused_levels()

    @locked
    def all_collisions(self) -> tuple[tuple[ResourceClaim, tuple[Collision, ...]], ...]:
        """Return all claims that collide now, each pair of claims once. Cost: a look at every claim."""
        found = (
            (one.shown, tuple(other for other in self._state.collisions_of(one.shown) if other.rival.key < one.key))
            for one in self._state.records.claims()
        )
        return tuple((claim, collisions) for claim, collisions in found if collisions)

    @locked
    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        self._state.inventory.check()

    def _show(self, claim: ResourceClaim) -> Sequence[Collision]:
        return self._state.show(claim, self._clock.monotonic(), self._clock.now(), watched=False)

    def _tell_collisions(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        if collisions:
            self._collided(claim, collisions)


def _id(record: ClaimRecord) -> str:
    return record.share.decision_id if record.share is not None else ""
