"""The cluster as the watches show it, decisions over it, and which change wakes which pods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Final
from uuid import uuid4

import structlog

from dracaena.api.objects import DeviceClass, DeviceTaintRule, Node, Pod, ResourceClaim, ResourceSlice
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.demands import RefusalKind, Refused
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.effort import OverdueError, never
from dracaena.controller.allocation.holdings import claim_holder, claim_of
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.node_resources import pod_name
from dracaena.controller.allocation.pool import held_devices, other_holdings
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.shape import shape
from dracaena.controller.allocation.structured.search import MAX_STEPS
from dracaena.controller.allocation.turn import turn
from dracaena.controller.assumed import AssumedAllocation, AssumedAllocations
from dracaena.controller.collisions import Collision, find_collisions
from dracaena.controller.deadline import Deadline
from dracaena.controller.earmark_keeper import QUESTIONS, EarmarkKeeper
from dracaena.controller.explanations import Explanations
from dracaena.controller.pod_places import PodPlaces
from dracaena.controller.waiting_line import WaitingLines

NO_BARS: Final[Mapping[str, str]] = MappingProxyType({})
"""Nothing keeps a pod from any node beside what its spec says."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class InProgress:
    """A claim is just being allocated, for this pod or another: its next change wakes the pod, and so does a write that
    came to nothing."""

    claim_key: str


@dataclass(frozen=True, slots=True)
class Behind:
    """An equal pod with an earlier turn waits because it fits on no node now, and so this one needs no look."""


class Cluster:
    """Takes in changes from the reflectors' threads, and decides. One lock of its own for all of it.

    A decision is made while nothing changes, and what it takes is taken before the lock is let go. So decisions have to
    be short: they look at buckets of nodes (allocation.inventory), not at nodes.
    Pods that fitted nowhere stand in lines (waiting_line): a freed device and a change of nodes and slices wakes the
    first of each, a change of a class all of them, for a person made it and wants to see what it did.
    """

    def __init__(
        self,
        driver: str,
        *,
        wake: Callable[[str], None],
        barred: Callable[[Pod], Mapping[str, str]] = lambda pod: NO_BARS,
        problems_changed: Callable[[int, int], None] = lambda unusable, updating: None,
        collided: Callable[[ResourceClaim, Sequence[Collision]], None] = lambda claim, collisions: None,
        allowed_drivers: Iterable[str] = (),
        first_fit: bool = False,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """`wake` is called with the key of each pod that a change may help, in the order of their turns; `barred` with
        a pod for the nodes that it must not use, with reasons that follow a count of nodes. Both are called with the
        lock held and must not call back. `problems_changed` is called with the number of problems that last, and of
        pools that are just being written; `collided` with a claim that was shown to have what others have too.
        `allowed_drivers`, `first_fit` and `max_steps` are what Inventory and Allocator say of them.
        """
        self._driver = driver
        self._wake = wake
        self._barred = barred
        self._problems_changed = problems_changed
        self._collided = collided
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._pods_of_claim: dict[str, set[str]] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._unreserved: set[str] = set()
        self._inventory = Inventory(driver, allowed_drivers)
        self._assumed = AssumedAllocations(self._inventory)
        self._kept_back: dict[str, set[str]] = {}  # UID of an assumed claim → pods that came to it meanwhile
        self._places = PodPlaces(self._inventory.resources)
        share_ids = (str(uuid4()) for _ in repeat(None))
        self._allocator = Allocator(first_fit=first_fit, max_steps=max_steps, share_ids=share_ids)
        self._lines = WaitingLines()
        self._short: set[str] = set()  # waiting pods that more cpu and the like on some node may help
        self._keeper = EarmarkKeeper(self._allocator, self._inventory, self._pods_holding)
        self._explanations = Explanations()

    # Deciding

    def pod(self, key: str) -> Pod | None:
        """Return a pod that has claims."""
        with self._lock:
            return self._pods.get(key)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim."""
        with self._lock:
            return self._claims.get(key)

    def decide(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, deadline: Deadline | None = None
    ) -> Allocation | NoFit | Behind | Refused | Settled | InProgress:
        """Decide for a pod and its claims, as claim() returned them; what it gets is assumed to be taken from now on.

        A pod that fits nowhere is woken when something changed that may help it. `now_s` is Clock.monotonic(). A claim
        can be shared: it is decided for once. When the deadline is over the answer is the best found until then, or a
        refusal of the kind TOO_LONG: then changes wake the pod as if it fitted nowhere.
        """
        with self._lock, _within(deadline) as is_over:
            for claim in claims:
                is_assumed = self._assumed.of_claim(claim.metadata.uid) is not None
                if is_assumed:
                    self._kept_back.setdefault(claim.metadata.uid, set()).add(pod.key)
                if is_assumed or self._claims.get(claim.key) is not claim:
                    self._leave(pod.key)
                    return InProgress(claim.key)
            barred = self._barred(pod)
            asked, place = self._shape(pod, claims, barred, is_over), turn(pod)
            kept = self._keeper.bars(place, claims)
            if self._lines.is_behind(asked, place):
                self._wake_all(self._lines.put(pod.key, asked, place, ""))
                return Behind()
            decision = self._allocator.allocate(
                self._inventory, pod, claims, barred={**kept, **barred}, is_over=is_over
            )
            if isinstance(decision, NoFit):
                with suppress(OverdueError):  # the next keep_for_starving() has a deadline of its own
                    self._consider(pod, claims, asked, barred, now_s)
            if isinstance(decision, NoFit | Refused):
                answer = decision.kind.value if isinstance(decision, Refused) else ""
                self._wake_all(self._lines.put(pod.key, asked, place, answer))
                may_be_short = isinstance(decision, Refused) or decision.short
                (self._short.add if may_be_short else self._short.discard)(pod.key)
            else:
                self._leave(pod.key)
            if isinstance(decision, Allocation):
                self._assumed.add(_assumptions(pod, decision, now_s))
                self._places.decided(pod, [entry.claim.metadata.uid for entry in decision.claims], decision.node)
            return decision

    def leave(self, key: str) -> None:
        """A pod does not wait for devices now, or something else comes first: no change of the cluster wakes it."""
        with self._lock:
            self._leave(key)

    def explain(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float, deadline: Deadline | None = None
    ) -> str | None:
        """Say why a pod fits nowhere now; None when it does not look like that any more. Cost: one step a node, once
        for all equal pods that ask within EXPLANATION_S. `now_s` is Clock.monotonic(). When the deadline is over it
        says that, and what took so long.
        """
        with self._lock, _within(deadline) as is_over:
            barred = self._barred(pod)
            asked = self._shape(pod, claims, barred, is_over)
            barred = {**self._keeper.bars(turn(pod), claims), **barred}

            def work_out() -> str | None:
                found = self._allocator.explain(self._inventory, pod, claims, barred=barred, is_over=is_over)
                if isinstance(found, Refused):
                    return found.text if found.kind is RefusalKind.TOO_LONG else None
                return None if found is None else str(found)

            names = (pod.key, *(claim.key for claim in claims))
            text = self._explanations.get((asked, tuple(barred)), names, work_out, now_s=now_s)
            mark = self._keeper.earmark
        if text is not None and mark is not None and mark.pod_key == pod.key:
            return f"{text}; node {mark.node} is being kept free for it"
        return text

    def keep_for_starving(self, created_before: str, *, now_s: float, deadline: Deadline | None = None) -> None:
        """Keep a node for the first pod that was created before a time (RFC 3339, UTC; empty: none was) and waits only
        because devices are taken, until it waits no more. Call it about once a second, and before the first decision.
        When the deadline is over the rest is left to the next call.
        """
        with self._lock, _within(deadline) as is_over:
            self._keeper.created_before = created_before
            mark = self._keeper.earmark
            if mark is not None and not (created_before and self._still_waits(mark)):
                self._keeper.clear("the pod waits no more")
                self._may_help()
            questions = 0
            self._allocator.effort.begin(is_over)
            for key in self._lines.first_before(created_before):
                found = self._reconsider(key, now_s)
                questions += found is False
                if found or questions == QUESTIONS:
                    break

    @property
    def earmark(self) -> Earmark | None:
        """The node that is kept for a pod now."""
        with self._lock:
            return self._keeper.earmark

    # What became of decisions

    def stored(self, claim: ResourceClaim) -> None:
        """A write was answered with this claim. It is assumed to be allocated until the watch shows the same."""
        with self._lock:
            entry = self._assumed.of_claim(claim.metadata.uid)
            shown = self._claims.get(claim.key)
            self._assumed.stored(claim)
            self._assumed.observe(None, shown)
            if entry is None or self._assumed.of_claim(entry.claim_uid) is not None:
                return
            self._settle(entry.claim_uid)
            if shown is None or held_devices(shown, self._driver) != entry.devices:
                self._may_help()  # it was cleared before the answer came, and nobody got them yet

    def forget(self, claim_uid: str) -> None:
        """A decision was not written, or was undone: devices are free again that looked taken."""
        with self._lock:
            entry = self._assumed.of_claim(claim_uid)
            if entry is None:
                return
            self._assumed.drop(claim_uid)
            self._settle(claim_uid)
            self._may_help()

    def assumed_of(self, pod_key: str) -> tuple[AssumedAllocation, ...]:
        """Return what was decided for a pod and is not shown by the watch, in the order of the claims' keys."""
        with self._lock:
            return self._assumed.of_pod(pod_key)

    def assumed_before(self, monotonic_s: float) -> frozenset[str]:
        """Return the pods for which something was decided before a time that the watch does not show."""
        with self._lock:
            return self._assumed.older_than(monotonic_s)

    @property
    def node_count(self) -> int:
        """How many nodes there are."""
        with self._lock:
            return len(self._inventory.nodes.names)

    def anybody_waits(self) -> bool:
        """Return whether some pod fitted nowhere and waits for a change."""
        with self._lock:
            return len(self._lines) > 0

    # What is wrong

    def unused(self) -> tuple[ResourceClaim, ...]:
        """Return the claims that are allocated, reserved for nobody, and named by no pod that is there to stay."""
        with self._lock:
            return tuple(
                self._claims[key]
                for key in sorted(self._unreserved)
                if not any(_may_use_claims(self._pods[pod]) for pod in self._pods_of_claim.get(key, ()))
            )

    def collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        """Return which devices of a claim another claim has too, as the watch shows it (collisions)."""
        with self._lock:
            return self._collisions_of(claim)

    def all_collisions(self) -> tuple[tuple[ResourceClaim, tuple[Collision, ...]], ...]:
        """Return all claims that collide now, each pair of claims once. Cost: a look at every claim."""
        with self._lock:
            found = (
                (claim, tuple(one for one in self._collisions_of(claim) if one.rival.key < key))
                for key, claim in sorted(self._claims.items())
            )
            return tuple((claim, collisions) for claim, collisions in found if collisions)

    def _collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        return tuple(find_collisions(claim, self._inventory, self._claims))

    # What the watches tell

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a pod: it counts on its node. Pods without claims are not kept."""
        subject = new or old
        if subject is None:
            return
        key = subject.key
        with self._lock:
            self._has_room(self._places.pod_changed(old, new))
            if not subject.spec.resource_claims and key not in self._pods:
                return
            known = self._pods.pop(key, None)
            self._unlink(known)
            if new is not None and new.spec.resource_claims:
                self._pods[key] = new
                for claim in pod_claims(new):
                    if claim.key is not None:
                        self._pods_of_claim.setdefault(claim.key, set()).add(key)
            else:
                self._leave(key)
        self._wake(key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a claim: its pods are woken, and when it let go of devices those whom they may help."""
        subject = new or old
        if subject is None:
            return
        key = subject.key
        held = held_devices(new, self._driver) if new is not None else frozenset()
        others = other_holdings(new, self._driver) if new is not None else frozenset()
        with self._lock:
            if new is None:
                self._claims.pop(key, None)
            else:
                self._claims[key] = new
            is_unreserved = (
                new is not None
                and new.status.allocation is not None
                and not new.status.reserved_for
                and not new.problem  # what cannot be read is for nobody to free
            )
            (self._unreserved.add if is_unreserved else self._unreserved.discard)(key)
            freed = self._inventory.hold(claim_holder(subject), held, others)
            # A claim can go while a decision for it is being written: what was assumed for it is free again, too.
            went = old.metadata.uid if old is not None and (new is None or new.metadata.uid != old.metadata.uid) else ""
            forgotten = self._assumed.of_claim(went) is not None
            self._assumed.observe(old, new)
            self._has_room(self._places.claim_changed(old, new))
            for claim in (old, new):
                self._settle("" if claim is None else claim.metadata.uid)
            collisions = self._collisions_of(new) if new is not None and _is_newly_allocated(old, new) else ()
            keys = {key, *(collision.rival.key for collision in collisions)}
            self._wake_all(sorted(pod for name in keys for pod in self._pods_of_claim.get(name, ())))
            if freed or forgotten:
                self._may_help()
        if new is not None and collisions:
            self._collided(new, collisions)

    def claim_set_aside(self, claim: ResourceClaim) -> None:
        """A change of a claim could not be taken in, and will come again: what it has now is nobody else's till then.

        Beside that it goes on to hold what was taken in of it before.
        """
        held, others = held_devices(claim, self._driver), other_holdings(claim, self._driver)
        with self._lock:
            before = self._inventory.holdings.held_by(claim_holder(claim))
            self._inventory.hold(claim_holder(claim), held | before[0], others | before[1])

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a slice of our driver; only its pool is read again."""
        with self._lock:
            change = self._inventory.change_slice(old, new)
            lasting, passing = self._inventory.problem_counts()
            if change.offer_changed:
                self._may_help()
        for problem in change.new_problems:
            say = log.info if problem.passing else log.warning
            say("left out of the choice", pool=problem.pool, device=problem.device, problem=problem.text)
        self._problems_changed(lasting, passing)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take in a node. Kubelets write its status all the time; what is allocatable is the one part that counts."""
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
                self._has_room([subject.key])
            if not is_heartbeat:
                self._may_help()

    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Take in a device class."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._inventory.remove_class(subject.key)
            else:
                self._inventory.set_class(new)
            # Also who waits in no line: what is left for kube-scheduler to allocate depends on classes, too.
            unbound = (key for key, pod in self._pods.items() if not pod.spec.node_name)
            self._wake_all(dict.fromkeys((*self._lines.all(), *sorted(unbound))))

    def taint_rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """Take in a DeviceTaintRule."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._inventory.remove_taint_rule(subject.key)
            else:
                self._inventory.set_taint_rule(new)
            self._may_help()

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        with self._lock:
            self._inventory.check()

    def _shape(
        self, pod: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str], is_over: Callable[[int], bool]
    ) -> bytes:
        self._allocator.effort.begin(is_over)
        try:
            return shape(pod, claims, apart=bool(barred), effort=self._allocator.effort)
        except OverdueError:
            return shape(pod, (), apart=True)  # then allocate() is overdue too, and says why

    def _pods_holding(self, holder: str) -> Iterable[str]:
        """Name the pods that go when a holder of devices lets go of them, as the inventory does."""
        return [pod_name(self._pods[key]) for key in self._pods_of_claim.get(claim_of(holder), ())]

    def _still_waits(self, mark: Earmark) -> bool:
        """Whether the pod of a mark, and no later one of its name, fits nowhere, or what was decided for it is not
        shown yet, and may still be lost."""
        pod = self._pods.get(mark.pod_key)
        if pod is None or turn(pod) != mark.turn:
            return False
        return self._lines.fits_nowhere(pod.key) or bool(self._assumed.of_pod(pod.key))

    def _reconsider(self, key: str, now_s: float) -> bool | None:
        """Look whether a node has to be kept for a pod that waits; then tell it. See EarmarkKeeper.consider()."""
        pod, standing = self._pods.get(key), self._lines.standing(key)
        if pod is None or standing is None:
            return None
        claims = [self._claims.get(key) for key in dict.fromkeys(claim.key or "" for claim in pod_claims(pod))]
        there = [claim for claim in claims if claim is not None]
        if len(there) < len(claims):
            return None
        before = self._keeper.earmark
        try:
            found = self._consider(pod, there, standing.shape, self._barred(pod), now_s)
        except OverdueError:
            # It had all the time there is, and would have it again each second.
            self._keeper.give_up(standing.shape, now_s)
            return False
        if found and self._keeper.earmark != before:
            self._wake(key)
        return found

    def _consider(
        self, pod: Pod, claims: Sequence[ResourceClaim], asked: bytes, barred: Mapping[str, str], now_s: float
    ) -> bool | None:
        before = self._keeper.earmark
        found = self._keeper.consider(pod, claims, turn(pod), asked, barred, now_s)
        if before is not None and self._keeper.earmark != before:
            self._may_help()
        return found

    def _may_help(self) -> None:
        """Wake whom a change may help. Under the lock of the change, so that nobody is decided for in between."""
        self._wake_all(self._lines.firsts())

    def _has_room(self, nodes: Iterable[str]) -> None:
        """Wake whom it may help that nodes have more left of cpu and the like: a cluster has many pods that end."""
        if self._short and any(map(self._inventory.offers, nodes)):
            self._wake_all(key for key in self._lines.firsts() if key in self._short)

    def _settle(self, claim_uid: str) -> None:
        """If a decision is assumed no longer, let its pod count where the API shows it, if anywhere, and wake those who
        share the claim and came while it was written."""
        if self._assumed.of_claim(claim_uid) is None:
            self._has_room(self._places.settled(claim_uid))
            self._wake_all(sorted(self._kept_back.pop(claim_uid, ())))

    def _leave(self, key: str) -> None:
        self._short.discard(key)
        self._wake_all(self._lines.leave(key))

    def _wake_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._wake(key)

    def _unlink(self, pod: Pod | None) -> None:
        for claim in pod_claims(pod) if pod is not None else ():
            pods = self._pods_of_claim.get(claim.key or "", set())
            pods.discard(pod.key if pod is not None else "")
            if not pods:
                self._pods_of_claim.pop(claim.key or "", None)


@contextmanager
def _within(deadline: Deadline | None) -> Iterator[Callable[[int], bool]]:
    if deadline is None:
        yield never
        return
    try:
        yield deadline.begin()
    finally:
        deadline.end()


def _without_status(node: Node) -> tuple[object, ...]:
    return node.spec, node.metadata.labels


def _may_use_claims(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in ("Succeeded", "Failed")


def _is_newly_allocated(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    if new.status.allocation is None:
        return False
    if old is None or old.metadata.uid != new.metadata.uid or old.status.allocation is None:
        return True
    return old.status.allocation.allocation_timestamp != new.status.allocation.allocation_timestamp


def _assumptions(pod: Pod, allocation: Allocation, now_s: float) -> list[AssumedAllocation]:
    return [
        AssumedAllocation(
            claim_uid=entry.claim.metadata.uid,
            claim_key=entry.claim.key,
            pod_key=pod.key,
            devices=allocation.devices(entry),
            since_s=now_s,
            others=allocation.others(entry),
        )
        for entry in allocation.claims
    ]
