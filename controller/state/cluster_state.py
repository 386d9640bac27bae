"""Everything that is known about the cluster, and what keeps its parts in step with each other: above all, which device
each claim holds, and on which node each pod counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Final
from uuid import uuid4

import structlog

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.search import MAX_STEPS
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.nodes.pod_resources import ENDED
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder
from dracaena.controller.lifecycle.claim_record import ClaimRecord, PodIdentity, expected_places, is_same_allocation
from dracaena.controller.lifecycle.phases import TENDING, NotAllowedError, Phase
from dracaena.controller.queue.waiting_lines import Scope
from dracaena.controller.state.collisions import Collision, find_collisions
from dracaena.controller.state.decisions import Decisions
from dracaena.controller.state.group_turns import GroupTurns
from dracaena.controller.state.records import Records
from dracaena.controller.state.scheduler_progress import SchedulerProgress
from dracaena.controller.state.upkeep import Upkeep, UpkeepRules

Places = Mapping[PodIdentity, str]
"""The nodes that unbound pods will go to, according to one claim."""


class PodAccounting:
    """Keeps it in step with pods and the records of claims on which node each pod counts (Inventory.place).

    A pod counts on its node (spec.nodeName) or, before it has one, on the node that one of its claims implies
    (expected_places). So a decision counts from the start until the pod is bound, gone, or has lost its claim, and for
    a new leader too. All calls return the nodes that have more left than before. Part of its owner, and used under the
    owner's lock.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._waiting: dict[str, Pod] = {}  # pods with claims and without a node, by key
        self._expected: dict[str, dict[tuple[str, str], str]] = {}  # pod → its UID, claim → node

    def pod_changed(self, old: Pod | None, new: Pod | None) -> frozenset[str]:
        """Take in a change of a pod."""
        gaining: set[str | None] = set()
        if old is not None and (new is None or pod_name(new) != pod_name(old)):
            gaining.add(self._inventory.place(old, None))
            self._waiting.pop(old.key, None)
            self._inventory.resources.forget(pod_name(old))
        if new is not None:
            if new.spec.resource_claims and not new.spec.node_name:
                self._waiting[new.key] = new
                self._inventory.resources.expect(new)
            else:
                self._waiting.pop(new.key, None)
                self._inventory.resources.forget(pod_name(new))
            gaining.add(self._put(new))
        return _named(gaining)

    def claim_changed(self, claim_key: str, before: Places, after: Places) -> frozenset[str]:
        """Take in a change of the nodes that a claim's pods will go to."""
        if before == after:
            return frozenset()
        for pod in before:
            claims = self._expected.get(pod.key, {})
            claims.pop((pod.uid, claim_key), None)
            if not claims:
                self._expected.pop(pod.key, None)
        for pod, node in after.items():
            self._expected.setdefault(pod.key, {})[pod.uid, claim_key] = node
        return self._put_again(pod.key for pod in (*before, *after))

    def _put_again(self, pods: Iterable[str]) -> frozenset[str]:
        known = (self._waiting.get(key) for key in sorted(set(pods)))
        return _named({self._put(pod) for pod in known if pod is not None})

    def _put(self, pod: Pod) -> str | None:
        node: str | None = pod.spec.node_name or None
        if node is None:
            places = self._expected.get(pod.key, {}).items()
            node = next((node for (uid, _), node in places if uid == pod.metadata.uid), None)
        return self._inventory.place(pod, None if pod.status.phase in ENDED else node)


def _named(nodes: Iterable[str | None]) -> frozenset[str]:
    return frozenset(node for node in nodes if node is not None)


TENDED: Final = frozenset({Phase.IN_DOUBT, Phase.UNRESERVED, Phase.RESTING})
"""Phases in which a claim needs tending, now or later."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wakers:
    """Who is told what is to be done next. They may be called with the lock held, and must not call back."""

    decide: Callable[[str], None]
    """Called with the key of each pod that needs a decision."""
    decide_again: Callable[[str], None]
    """Called with the key of each pod that fits nowhere and that a change may help, in the order of turns."""
    tend: Callable[[str], None]
    """Called with the key of each claim that may need its next step."""
    fault: Callable[[ClaimRecord, NotAllowedError], None]
    """Called when an event is not allowed."""


class ClusterState:
    """The tables of a Cluster, used under its lock alone.

    A change of a claim's record is the one thing that others have to follow: who holds which device, where its pods
    count, who is woken by it (record_changed).
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
        max_steps: int = MAX_STEPS,
    ) -> None:
        """`began_s` is Clock.monotonic() now. For `allowed_drivers`, `first_fit` and `max_steps` see Inventory and
        Allocator."""
        self.driver = driver
        self.rules = rules
        self._wakers = wakers
        self.inventory = Inventory(driver, allowed_drivers)
        self.records = Records(driver, rules.bounds, self.record_changed, wakers.fault)
        self.progress = SchedulerProgress(began_s)
        self.groups = GroupTurns(self.inventory, self.records)
        self.upkeep = Upkeep(driver, self.records, self.progress, self.groups, rules, self._rivals_of)
        self.accounting = PodAccounting(self.inventory)
        share_ids = (str(uuid4()) for _ in repeat(None))
        self.allocator = Allocator(first_fit=first_fit, max_steps=max_steps, share_ids=share_ids)
        self.decisions = Decisions(
            self.allocator, self.inventory, self.records, self.groups, self.wake_all, self._ask_all_again
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
            self.wake_all(self.records.naming(collision.rival.key))
        return collisions

    def record_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        """Keep the books in step with the records, and wake the pods that a change may help."""
        subject = after or before
        assert subject is not None
        holds = after.held(self.driver) if after is not None else (frozenset(), frozenset())
        freed = self.inventory.hold(claim_holder(subject.shown), *holds)
        with_room = self.accounting.claim_changed(subject.key, expected_places(before), expected_places(after))
        self.decisions.resources_freed(with_room)
        self.decisions.placement_changed(self.inventory.placed.changes())
        if before is None or after is None or before.shown is not after.shown:
            self.wake_all(self.records.naming(subject.key))
        elif before.phase is Phase.KEPT and after.phase is Phase.FREE:
            self.wake_all(self.records.naming(subject.key))  # that is when its pod learns how long it waits
        elif _may_be_decided_now(before, after):
            self.wake_all(sorted(before.blocked_pods))
        if freed:
            self.decisions.may_help(self._nodes_of(freed))
        if after is not None and is_tended(after) and _is_new_for_tending(before, after):
            self._wakers.tend(after.key)

    def collisions_of(self, claim: ResourceClaim) -> tuple[Collision, ...]:
        """Return which devices of a claim the server shows in another claim too."""
        return tuple(find_collisions(claim, self.inventory, self._shown))

    def pool_of(self, node: str) -> str | None:
        """Return the name of a node's pool, None when it has none."""
        pool = self.inventory.pool(node)
        return None if pool is None else pool.pool

    def wake_all(self, keys: Iterable[str]) -> None:
        """Have each of these pods decided for."""
        for key in keys:
            self._wakers.decide(key)

    def tend_claims_of(self, pods: Iterable[Pod | None]) -> None:
        """Tend the claims of pods: doubts and take-backs depend on what became of the pods."""
        keys = dict.fromkeys(claim.key for pod in pods if pod is not None for claim in self.records.named_by(pod))
        for key in keys:
            record = self.records.claim(key or "")
            if record is not None and is_tended(record):
                self._wakers.tend(record.key)

    def wake_rivals_of(self, pod: Pod) -> None:
        """Have the pods decided for whose claims collide with those of a pod that was bound: which of two gives way
        depends on that, and a device must not be bound twice meanwhile."""
        for claim in filter(None, (self._shown(named.key or "") for named in self.records.named_by(pod))):
            for rival in self._rivals_of(claim):
                self.wake_all(self.records.naming(rival.key))

    def _nodes_of(self, freed: Iterable[DeviceId | Holding]) -> Scope:
        """Return the nodes that freed devices are on; None: devices of other drivers may be of use to any node."""
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


def _may_be_decided_now(before: ClaimRecord, after: ClaimRecord) -> bool:
    """Whether a change may be what the pods waited for that came while no decision could use the claim."""
    if after.phase is Phase.RESTING:
        return not after.doubts and bool(before.doubts)  # for a pod on a node
    return after.is_open and (after.is_open_to_all or (before.is_open, before.stale_binds) != (True, after.stale_binds))


def is_tended(record: ClaimRecord) -> bool:
    """Whether a claim may need a next step, now or later."""
    return record.phase in TENDED or bool(record.ending) or bool(record.rest) or bool(record.stale_binds)


def _is_new_for_tending(before: ClaimRecord | None, after: ClaimRecord) -> bool:
    """Whether a change may call for another step. Whoever writes for the claim, or settles its doubts, knows when to go
    on: if that counted, there would be no pause after a failed write."""
    if before is None or before.shown is not after.shown:
        return True
    if TENDING & {before.phase, after.phase}:
        return False
    has_new_doubts = not {*after.doubts, *after.stale_binds} <= {*before.doubts, *before.stale_binds}
    return has_new_doubts or (before.phase, before.ending) != (after.phase, after.ending)
