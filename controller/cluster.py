"""The cluster as the watches show it, decisions over it, and which change wakes which pods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from uuid import uuid4

import structlog

from dracaena.api.objects import DeviceClass, DeviceTaintRule, Node, Pod, ResourceClaim, ResourceSlice
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.demands import Refused
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.inventory import Inventory, claim_holder
from dracaena.controller.allocation.pool import held_devices, other_holdings
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.structured.search import MAX_STEPS
from dracaena.controller.assumed import AssumedAllocation, AssumedAllocations

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class InProgress:
    """A claim is just being allocated, for this pod or another: its next change wakes the pod."""

    claim_key: str


class Cluster:
    """Takes in changes from the reflectors' threads, and decides. One lock of its own for all of it.

    A decision is made while nothing changes, and what it takes is taken before the lock is let go. So decisions have to
    be short: they look at buckets of nodes (allocation.inventory), not at nodes.
    `wake` is called with the key of each pod that a change may help; `waiting` names the pods that fitted nowhere,
    which every freed device and every change of nodes, slices and classes may help. `problems_changed` is called with
    the number of problems that last, and of pools that are just being written.
    """

    def __init__(
        self,
        driver: str,
        *,
        wake: Callable[[str], None],
        waiting: Callable[[], Iterable[str]],
        problems_changed: Callable[[int, int], None] = lambda unusable, updating: None,
        allowed_drivers: Iterable[str] = (),
        first_fit: bool = False,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """`allowed_drivers`, `first_fit` and `max_steps` are what Inventory and Allocator say of them."""
        self._driver = driver
        self._wake = wake
        self._waiting = waiting
        self._problems_changed = problems_changed
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._pods_of_claim: dict[str, set[str]] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._inventory = Inventory(driver, allowed_drivers)
        self._assumed = AssumedAllocations(self._inventory)
        share_ids = (str(uuid4()) for _ in repeat(None))
        self._allocator = Allocator(first_fit=first_fit, max_steps=max_steps, share_ids=share_ids)
        self._changes = 0

    # Deciding

    def pod(self, key: str) -> Pod | None:
        """Return a pod that has claims."""
        with self._lock:
            return self._pods.get(key)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim."""
        with self._lock:
            return self._claims.get(key)

    @property
    def changes(self) -> int:
        """A number that grows with each change that may help a waiting pod.

        Read before a decision and again after the pod was put down as waiting: when it grew, the pod may have missed
        the change.
        """
        with self._lock:
            return self._changes

    def decide(
        self, pod: Pod, claims: Sequence[ResourceClaim], *, now_s: float
    ) -> Allocation | NoFit | Refused | Settled | InProgress:
        """Decide for a pod and its claims, as claim() returned them; what it gets is assumed to be taken from now on.

        `now_s` is Clock.monotonic(). A claim can be shared: it is decided for once.
        """
        with self._lock:
            for claim in claims:
                if self._assumed.of_claim(claim.metadata.uid) or self._claims.get(claim.key) is not claim:
                    return InProgress(claim.key)
            decision = self._allocator.allocate(self._inventory, pod, claims)
            if isinstance(decision, Allocation):
                self._assumed.add(_assumptions(pod, decision, now_s))
            return decision

    def explain(self, pod: Pod, claims: Sequence[ResourceClaim]) -> str | None:
        """Say why a pod fits nowhere now; None when it does not look like that any more. Cost: one step a node."""
        with self._lock:
            found = self._allocator.explain(self._inventory, pod, claims)
        return str(found) if isinstance(found, Unsatisfied) else None

    # What became of decisions

    def stored(self, claim: ResourceClaim) -> None:
        """A write was answered with this claim. It is assumed to be allocated until the watch shows the same."""
        with self._lock:
            self._assumed.stored(claim)
            self._assumed.observe(None, self._claims.get(claim.key))

    def forget(self, claim_uid: str) -> None:
        """A decision was not written, or was undone."""
        with self._lock:
            self._assumed.drop(claim_uid)

    def assumed_of(self, pod_key: str) -> tuple[AssumedAllocation, ...]:
        """Return what was decided for a pod and is not shown by the watch, in the order of the claims' keys."""
        with self._lock:
            return self._assumed.of_pod(pod_key)

    def assumed_before(self, monotonic_s: float) -> frozenset[str]:
        """Return the pods for which something was decided before a time that the watch does not show."""
        with self._lock:
            return self._assumed.older_than(monotonic_s)

    # What the watches tell

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a pod. Pods without claims are not kept."""
        subject = new or old
        if subject is None or not subject.spec.resource_claims:
            return
        key = subject.key
        with self._lock:
            known = self._pods.pop(key, None)
            self._unlink(known)
            if new is not None:
                self._pods[key] = new
                for claim in pod_claims(new):
                    if claim.key is not None:
                        self._pods_of_claim.setdefault(claim.key, set()).add(key)
        self._wake(key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a claim: its pods are woken, and all waiting pods when it let go of devices."""
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
            freed = self._inventory.hold(claim_holder(subject), held, others)
            self._assumed.observe(old, new)
            pods = sorted(self._pods_of_claim.get(key, ()))
        for pod in pods:
            self._wake(pod)
        if freed:
            self.wake_waiting()

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a slice of our driver; only its pool is read again."""
        with self._lock:
            change = self._inventory.change_slice(old, new)
            lasting, passing = self._inventory.problem_counts()
        for problem in change.new_problems:
            say = log.info if problem.passing else log.warning
            say("left out of the choice", pool=problem.pool, device=problem.device, problem=problem.text)
        self._problems_changed(lasting, passing)
        if change.offer_changed:
            self.wake_waiting()

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take in a node. Status alone helps nobody, and kubelets write it all the time."""
        subject = new or old
        if subject is None:
            return
        if old is not None and new is not None and (old.spec, old.metadata.labels) == (new.spec, new.metadata.labels):
            return
        with self._lock:
            if new is None:
                self._inventory.remove_node(subject.key)
            else:
                self._inventory.set_node(new)
        self.wake_waiting()

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
        self.wake_waiting()

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
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake all pods that fitted nowhere."""
        with self._lock:
            self._changes += 1
        for key in sorted(self._waiting()):
            self._wake(key)

    def wake_pods_of(self, claim_key: str, *, but: str) -> None:
        """Wake the pods that name a claim, all but the one that the caller is at work on."""
        with self._lock:
            pods = sorted(self._pods_of_claim.get(claim_key, set()) - {but})
        for pod in pods:
            self._wake(pod)

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        with self._lock:
            self._inventory.check()

    def _unlink(self, pod: Pod | None) -> None:
        for claim in pod_claims(pod) if pod is not None else ():
            pods = self._pods_of_claim.get(claim.key or "", set())
            pods.discard(pod.key if pod is not None else "")
            if not pods:
                self._pods_of_claim.pop(claim.key or "", None)


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
