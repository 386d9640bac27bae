"""The cluster as the watches show it, decisions over it, and which change wakes which pods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final
from uuid import uuid4

import structlog

from dracaena.api.objects import (
    DeviceClass,
    DeviceTaintRule,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceClaim,
    ResourceSlice,
    StorageClass,
)
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.search import MAX_STEPS
from dracaena.controller.allocation.nodes.placement.placed_pods import Change, ClaimUse, OfClass
from dracaena.controller.allocation.nodes.placement.storage import class_of
from dracaena.controller.allocation.state.holdings import claim_holder
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.pool import DeviceId, held_devices, other_holdings
from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt, is_same_allocation
from dracaena.controller.lifecycle.phases import TENDING, Event, NotAllowedError, Phase
from dracaena.controller.lifecycle.places import expected_places
from dracaena.controller.lifecycle.pod_record import Wait
from dracaena.controller.lifecycle.proof import last_bind_s
from dracaena.controller.lifecycle.tending import Step
from dracaena.controller.queue.deadline import Deadline
from dracaena.controller.queue.waiting_lines import Scope
from dracaena.controller.state.collisions import Collision, find_collisions
from dracaena.controller.state.decisions import Decision, Decisions
from dracaena.controller.state.pod_accounting import PodAccounting
from dracaena.controller.state.records import Records
from dracaena.controller.state.scheduler_progress import SchedulerProgress
from dracaena.controller.state.upkeep import Rules, TakenBack, Upkeep
from dracaena.process.clock import Clock

TENDED: Final = frozenset({Phase.IN_DOUBT, Phase.UNRESERVED, Phase.RESTING})
"""Phases in which a claim needs tending, now or later."""

log = structlog.get_logger()


class Cluster:
    """Takes in changes from the reflectors' threads, and decides. One lock guards all of it.

    While a decision (decisions.py) is made, nothing changes, and its devices are taken before the lock is released. So
    decisions must be short: they look at buckets of nodes (allocation.inventory), not at single nodes. A freed device,
    or a change of a node or slice, wakes the first pod of each waiting line that it may help. A change of a class wakes
    all waiting pods, because the person who made it wants to see what it did.
    """

    def __init__(
        self,
        driver: str,
        *,
        wake: Callable[[str], None],
        ask_again: Callable[[str], None] | None = None,
        tend: Callable[[str], None],
        rules: Rules,
        clock: Clock,
        fault: Callable[[ClaimRecord, NotAllowedError], None],
        keep: Callable[[ResourceClaim], ResourceClaim] = lambda claim: claim,
        problems_changed: Callable[[int, int], None] = lambda unusable, updating: None,
        collided: Callable[[ResourceClaim, Sequence[Collision]], None] = lambda claim, collisions: None,
        allowed_drivers: Iterable[str] = (),
        first_fit: bool = False,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """`wake` is called with the key of each pod that needs a decision; `ask_again` (by default `wake`) with that of
        each pod that fits nowhere and that a change may help, in the order of turns; `tend` with that of each claim
        that may need its next step; `fault` when an event is not allowed. All of these are called with the lock held
        and must not call back. `keep` cuts down a claim from an answer of the server; claims from the watch are cut
        down already. `problems_changed` is called with the number of lasting problems and of pools that are just being
        written, `collided` with a claim that was shown to hold what other claims hold too. For `allowed_drivers`,
        `first_fit` and `max_steps` see Inventory and Allocator.
        """
        self._driver = driver
        self._wake = wake
        self._ask_again = ask_again or wake
        self._tend = tend
        self._clock = clock
        self._keep = keep
        self._problems_changed = problems_changed
        self._collided = collided
        self._lock = threading.Lock()
        self._inventory = Inventory(driver, allowed_drivers)
        self._rules = rules
        self._records = Records(driver, rules.bounds, self._record_changed, fault)
        self._progress = SchedulerProgress(clock.monotonic())
        self._upkeep = Upkeep(driver, self._records, self._progress, rules, self._rivals_of)
        self._accounting = PodAccounting(self._inventory.resources, self._inventory.placed)
        share_ids = (str(uuid4()) for _ in repeat(None))
        allocator = Allocator(first_fit=first_fit, max_steps=max_steps, share_ids=share_ids)
        self._decisions = Decisions(
            allocator, self._inventory, self._records, self._upkeep, self._wake_all, self._ask_all_again
        )

    # Deciding

    def pod(self, key: str) -> Pod | None:
        """Return a pod that names claims."""
        with self._lock:
            return self._records.pod(key)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim as the server last showed it."""
        with self._lock:
            record = self._records.claim(key)
            return None if record is None else record.shown

    def record(self, key: str) -> ClaimRecord | None:
        """Return the record of a claim."""
        with self._lock:
            return self._records.claim(key)

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
            return self._decisions.decide(pod, claims, decision_id=decision_id, now_s=now_s, deadline=deadline)

    def leave(self, key: str) -> None:
        """Note that a pod does not wait for devices now (Decisions.leave)."""
        with self._lock:
            self._decisions.leave(key)

    def explain(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, deadline: Deadline | None = None
    ) -> str | None:
        """Say why a pod fits nowhere now (Decisions.explain)."""
        with self._lock:
            return self._decisions.explain(pod, claims, now_s=now_s, deadline=deadline)

    def keep_for_starving(self, created_before: str, *, now_s: float, deadline: Deadline | None = None) -> None:
        """Keep a node for the first pod that has waited too long (Decisions.keep_for_starving)."""
        with self._lock:
            self._decisions.keep_for_starving(created_before, now_s=now_s, deadline=deadline)

    @property
    def earmark(self) -> Earmark | None:
        """The node that is kept for a pod now."""
        with self._lock:
            return self._decisions.earmark

    # What becomes of decisions and of what was allocated

    def shown(self, claim: ResourceClaim) -> None:
        """Take in a claim from a read or the answer to a write, which the watch may not show yet."""
        kept = self._keep(claim)
        with self._lock:
            collisions = self._show(kept, watched=False)
        self._tell_collisions(kept, collisions)

    def send_allocation(self, claim: ResourceClaim, decision_id: str) -> bool:
        """Note that an allocation is about to be written to this state of a claim; return whether it may be, because
        the claim still belongs to the decision."""
        kept = self._keep(claim)
        with self._lock:
            self._show(kept, watched=False)
            sent = self._records.send(claim.key, Event.SEND_ALLOCATION, decision_id)
            return sent is not None and sent.shown.metadata.resource_version == claim.metadata.resource_version

    def ended(self, claims: Iterable[ResourceClaim], decision_id: str, event: Event) -> None:
        """Note that nothing more is written for a decision, and how its last write ended: REFUSED, NO_ANSWER or
        ANSWERED. Claims for which nothing was sent are free again."""
        with self._lock:
            for claim in claims:
                record = self._records.claim(claim.key)
                is_sent = record is not None and record.phase is Phase.WRITING
                end = event if is_sent else Event.ABANDON
                self._records.end_write(claim.key, end, self._clock.monotonic(), decision_id=decision_id)

    def next_step(self, claim_key: str) -> tuple[Step, ClaimRecord] | None:
        """Return the next step for a claim (Upkeep.next_step)."""
        with self._lock:
            return self._upkeep.next_step(claim_key, self._clock.monotonic())

    def write_ended(self, record: ClaimRecord, event: Event) -> None:
        """Note how a write that next_step() asked for ended: REFUSED or NO_ANSWER. `record` is what it returned."""
        with self._lock:
            self._records.end_write(record.key, event, self._clock.monotonic(), guard=record.guard)

    def gives_back(self, record: ClaimRecord) -> None:
        """Note that a clearing which next_step() asked for succeeded, before its answer is shown
        (Upkeep.gives_back)."""
        with self._lock:
            self._upkeep.gives_back(record, self._clock.monotonic(), self._clock.now())

    def was_read(self, claim: ResourceClaim | None, record: ClaimRecord, *, after_doubt: bool = False) -> None:
        """Take in the server's answer about the claim of a record; None: there is no such claim. `after_doubt`: it was
        asked when a write that got no answer could no longer land."""
        kept = None if claim is None else self._keep(claim)
        with self._lock:
            if kept is None or kept.metadata.uid != record.uid:
                self._records.gone(record.key, self._clock.monotonic(), record.uid)
                return
            collisions = self._show(kept, watched=False)
            known = self._records.claim(record.key)
            if after_doubt and known is not None and known.phase is Phase.IN_DOUBT and known.guard == record.guard:
                self._records.end_write(record.key, Event.EXPIRED, known.last_write_s, decision_id=_id(known))
        self._tell_collisions(kept, collisions)

    def went(self, claim_key: str, doubt: Doubt) -> None:
        """Note that the server no longer has the pod of a doubt unbound."""
        with self._lock:
            self._records.settle(claim_key, (doubt,))

    def was_found(self, claim_key: str, doubt: Doubt, asked_s: float) -> None:
        """Note that the server, asked at this time, had the pod of a doubt without a node, which the watch does not
        show."""
        with self._lock:
            if asked_s >= last_bind_s(doubt, self._rules.bounds):
                self._records.settle(claim_key, (doubt,))

    def pod_was_asked(self, pod: Pod, asked_s: float) -> None:
        """Take in the answer to a request sent at `asked_s`: the pod has no node."""
        with self._lock:
            self._records.was_asked(pod, asked_s, self._clock.monotonic())

    def attend(self, pod: Pod) -> TakenBack | float | None:
        """See whether a pod whose claims are all allocated gets bound (Upkeep.attend)."""
        with self._lock:
            now_s, now = self._clock.monotonic(), self._clock.now()
            return self._upkeep.attend(pod, now_s, now, others_wait=self._decisions.anybody_waits)

    def begin_anew(self, claims: Iterable[ResourceClaim], *, at_once: bool) -> tuple[str, ...]:
        """Take back allocations that are in the way of their own pod (Upkeep.begin_anew)."""
        with self._lock:
            return self._upkeep.begin_anew(claims, at_once=at_once)

    def held(self, pod: Pod) -> Wait | None:
        """Return the back-off during which no node is tried for a pod, None when some may be."""
        with self._lock:
            known = self._records.unbound(pod.key)
            return None if known is None else known.held(self._clock.monotonic())

    def first_left_out(self, pod: Pod) -> Wait | None:
        """Return the back-off that ends first among the nodes left out for a pod, None when none is left out."""
        with self._lock:
            known = self._records.unbound(pod.key)
            waits = [] if known is None else known.nodes_left_out(self._clock.monotonic()).values()
            return min(waits, key=lambda wait: wait.again_s, default=None)

    def said(self, pod: Pod) -> str:
        """Return what kube-scheduler last said about a pod; empty when it said nothing."""
        with self._lock:
            known = self._records.unbound(pod.key)
            return "" if known is None or known.said is None else known.said.message

    def to_be_tended(self) -> tuple[str, ...]:
        """Return the keys of the claims that may need tending."""
        with self._lock:
            return tuple(record.key for record in self._records.claims() if _is_tended(record))

    def pods_with_claims(self) -> tuple[str, ...]:
        """Return the keys of the pods that name claims."""
        with self._lock:
            return tuple(pod.key for pod in self._records.pods())

    def begin(self) -> None:
        """Start to lead (Upkeep.begin)."""
        with self._lock:
            self._upkeep.begin(self._pool_of, self._clock.monotonic())

    def _pool_of(self, node: str) -> str | None:
        pool = self._inventory.pool(node)
        return None if pool is None else pool.pool

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        with self._lock:
            return len(self._inventory.nodes.names)

    # What is wrong

    def collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        """Return which devices of a claim the server shows in another claim too (collisions)."""
        with self._lock:
            return self._collisions_of(claim)

    def all_collisions(self) -> tuple[tuple[ResourceClaim, tuple[Collision, ...]], ...]:
        """Return all claims that collide now, each pair of claims once. Cost: a look at every claim."""
        with self._lock:
            found = (
                (one.shown, tuple(other for other in self._collisions_of(one.shown) if other.rival.key < one.key))
                for one in self._records.claims()
            )
            return tuple((claim, collisions) for claim, collisions in found if collisions)

    def _collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        return tuple(find_collisions(claim, self._inventory, self._shown))

    def _shown(self, key: str) -> ResourceClaim | None:
        record = self._records.claim(key)
        return None if record is None else record.shown

    def _rivals_of(self, claim: ResourceClaim) -> Iterable[ResourceClaim]:
        return [collision.rival for collision in self._collisions_of(claim)]

    # What the watches tell

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a change of a pod: it counts on its node. Pods without claims are not kept."""
        subject = new or old
        if subject is None:
            return
        key, now_s = subject.key, self._clock.monotonic()
        with self._lock:
            self._decisions.has_room(self._accounting.pod_changed(old, new))
            self._decisions.pods_moved(self._inventory.placed.changes())
            before = self._records.unbound(key)
            known = self._records.pod(key)
            self._records.see(old, new, now_s)
            self._progress.see(before, new, self._records.unbound(key), now_s)
            if known is None and not subject.spec.resource_claims:
                return
            is_another = known is not None and new is not None and known.metadata.uid != new.metadata.uid
            if new is None or not new.spec.resource_claims or is_another:
                self._decisions.leave(
                    key
                )  # a pod of the same name, made between two looks, is not to stand behind itself
            self._tend_those_of((known, new))
        self._wake(key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a change of a claim: it wakes its pods and, when it releases devices, the pods that these may
        help."""
        if new is None:
            if old is not None:
                with self._lock:
                    self._records.gone(old.key, self._clock.monotonic(), old.metadata.uid)
            return
        with self._lock:
            collisions = self._show(new)
        self._tell_collisions(new, collisions)

    def claim_set_aside(self, claim: ResourceClaim) -> None:
        """Reserve what a claim holds now, because its change could not be taken in and will come again.

        It also keeps holding what was taken in before.
        """
        held, others = held_devices(claim, self._driver), other_holdings(claim, self._driver)
        with self._lock:
            before = self._inventory.holdings.held_by(claim_holder(claim))
            self._inventory.hold(claim_holder(claim), held | before[0], others | before[1])

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a change of a slice; only its pool is read again."""
        with self._lock:
            change = self._inventory.change_slice(old, new)
            lasting, passing = self._inventory.problem_counts()
            if change.offer_changed:
                self._decisions.may_help(change.nodes, devices_differ=True)
        for problem in change.new_problems:
            say = log.info if problem.passing else log.warning
            say("left out of the choice", pool=problem.pool, device=problem.device, problem=problem.text)
        self._problems_changed(lasting, passing)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take in a change of a node. Kubelets write its status all the time; only what is allocatable counts."""
        subject = new or old
        if subject is None:
            return
        is_heartbeat = old is not None and new is not None and _without_status(old) == _without_status(new)
        if is_heartbeat and old is not None and new is not None and old.status == new.status:
            return
        with self._lock:
            if new is None:
                self._inventory.remove_node(subject.key)
            elif self._inventory.set_node(new):
                self._decisions.has_room([subject.key])
            if not is_heartbeat:
                self._decisions.may_help(frozenset((subject.key,)), devices_differ=old is None or new is None)

    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Take in a change of a device class."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._inventory.remove_class(subject.key)
            else:
                self._inventory.set_class(new)
            # Also who waits in no line: what is left for kube-scheduler to allocate depends on classes, too.
            unbound = (pod.key for pod in self._records.pods() if not pod.spec.node_name)
            self._wake_all(dict.fromkeys((*self._decisions.may_help_all(), *unbound)))

    def taint_rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """Take in a change of a DeviceTaintRule."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._inventory.remove_taint_rule(subject.key)
            else:
                self._inventory.set_taint_rule(new)
            self._decisions.may_help(None, devices_differ=True)

    def namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        """Take in a change of a namespace: affinity terms may select it by its labels."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            self._inventory.placed.set_namespace(subject.key, None if new is None else new.metadata.labels)
            self._decisions.pods_moved(self._inventory.placed.changes())

    def volume_claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Take in a change of a PersistentVolumeClaim."""
        subject = new or old
        if subject is None:
            return
        use = ClaimUse(subject.metadata.namespace, subject.metadata.name)
        with self._lock:
            self._inventory.storage.set_claim(subject.key, new)
            self._decisions.pods_moved([Change(use, is_more=False)])

    def volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Take in a change of a PersistentVolume."""
        changes = [change for item in (old, new) if item is not None for change in _changes_with(item)]
        with self._lock:
            for item in (old, new):
                if item is not None:
                    self._inventory.storage.set_volume(item.key, new)
            self._decisions.pods_moved(changes)

    def storage_class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """Take in a change of a StorageClass."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            self._inventory.storage.set_class(subject.key, new)
            self._decisions.pods_moved([Change(OfClass(subject.key), is_more=False)])

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        with self._lock:
            self._inventory.check()

    def _tell_collisions(self, claim: ResourceClaim, collisions: Sequence[Collision]) -> None:
        if collisions:
            self._collided(claim, collisions)

    def _show(self, claim: ResourceClaim, *, watched: bool = True) -> Sequence[Collision]:
        """Take in a state of a claim; return its collisions if it is the first to show the allocation."""
        now_s = self._clock.monotonic()
        before = self._records.claim(claim.key)
        is_news = self._records.show(claim, now_s, watched=watched)
        if before is None and claim.status.allocation is None:
            self._inventory.requests.see(claim)
        was_cleared = is_news and before is not None and before.uid == claim.metadata.uid
        if was_cleared and before is not None and claim.status.allocation is None:
            for pod, node, for_s in self._upkeep.cleared(before, now_s, self._clock.now()):
                log.info("allocation was cleared", pod=pod, claim=claim.key, node=node, not_there_for_s=round(for_s, 1))
        if not is_news or not _is_newly_allocated(None if before is None else before.shown, claim):
            return ()
        collisions = self._collisions_of(claim)
        for collision in collisions:
            self._wake_all(self._records.naming(collision.rival.key))
        return collisions

    def _record_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        """Keep the books in step with the records, and wake the pods that a change may help."""
        subject = after or before
        assert subject is not None
        holds = after.held(self._driver) if after is not None else (frozenset(), frozenset())
        freed = self._inventory.hold(claim_holder(subject.shown), *holds)
        with_room = self._accounting.claim_changed(subject.key, expected_places(before), expected_places(after))
        self._decisions.has_room(with_room)
        self._decisions.pods_moved(self._inventory.placed.changes())
        if before is None or after is None or before.shown is not after.shown:
            self._wake_all(self._records.naming(subject.key))
        elif _may_be_decided_now(before, after):
            self._wake_all(sorted(before.came))
        if freed:
            self._decisions.may_help(self._nodes_of(freed))
        if after is not None and _is_tended(after) and _is_new_for_tending(before, after):
            self._tend(after.key)

    def _nodes_of(self, freed: Iterable[DeviceId | Holding]) -> Scope:
        """Return the nodes that freed devices are on; None: devices of other drivers may be of use to any node."""
        nodes = set()
        for one in freed:
            if isinstance(one, Holding) and one.device.driver != self._driver:
                return None
            pool = self._inventory.pool_named(one.device.pool if isinstance(one, Holding) else one.pool)
            if pool is not None:
                nodes.add(pool.node)
        return frozenset(nodes)

    def _ask_all_again(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask_again(key)

    def _wake_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._wake(key)

    def _tend_those_of(self, pods: Iterable[Pod | None]) -> None:
        """Tend the claims of pods: doubts and take-backs depend on what became of the pods."""
        keys = dict.fromkeys(claim.key for pod in pods if pod is not None for claim in pod_claims(pod))
        for key in keys:
            record = self._records.claim(key or "")
            if record is not None and _is_tended(record):
                self._tend(record.key)


def _changes_with(volume: PersistentVolume) -> Iterator[Change]:
    """Yield what those wait for whom a change of a volume may help."""
    yield Change(OfClass(class_of(volume)), is_more=False)
    claim = volume.spec.claim_ref
    if claim is not None:
        yield Change(ClaimUse(claim.namespace, claim.name), is_more=False)


def _without_status(node: Node) -> tuple[object, ...]:
    return node.spec, node.metadata.labels


def _id(record: ClaimRecord) -> str:
    return record.share.decision_id if record.share is not None else ""


def _is_newly_allocated(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    if new.status.allocation is None:
        return False
    return old is None or old.metadata.uid != new.metadata.uid or not is_same_allocation(old, new)


def _may_be_decided_now(before: ClaimRecord, after: ClaimRecord) -> bool:
    """Whether a change may be what the pods waited for that came while no decision could use the claim."""
    if after.phase is Phase.RESTING:
        return not after.doubts and bool(before.doubts)  # for a pod on a node
    return after.is_open and (after.is_open_to_all or (before.is_open, before.astray) != (True, after.astray))


def _is_tended(record: ClaimRecord) -> bool:
    return record.phase in TENDED or bool(record.ending) or bool(record.rest) or bool(record.astray)


def _is_new_for_tending(before: ClaimRecord | None, after: ClaimRecord) -> bool:
    """Whether a change may call for another step. Whoever writes for the claim, or settles its doubts, knows when to go
    on: if that counted, there would be no pause after a failed write."""
    if before is None or before.shown is not after.shown:
        return True
    if TENDING & {before.phase, after.phase}:
        return False
    has_new_doubts = not {*after.doubts, *after.astray} <= {*before.doubts, *before.astray}
    return has_new_doubts or (before.phase, before.ending) != (after.phase, after.ending)
