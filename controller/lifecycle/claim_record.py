"""What we know about one claim: the newest state that the server showed, what we are doing about it, and which nodes
its pods will go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.podclaims import group_consumer
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.nodes.matching import NAME_FIELD, read_node_selector
from dracaena.controller.allocation.result import Allocation, ClaimAllocation
from dracaena.controller.allocation.state.node_state import held_devices, other_holdings
from dracaena.controller.lifecycle.phases import (
    OURS,
    SHOWN,
    TENDED,
    TRANSITIONS,
    UNDER_WAY,
    NotAllowedError,
    Phase,
    RecordEvent,
)
from dracaena.controller.lifecycle.versions import version_of


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """One particular pod, as opposed to another one of the same name."""

    key: str
    """`namespace/name`."""
    uid: str


@dataclass(frozen=True, slots=True)
class ClaimShare:
    """What one claim gets in a decision."""

    decision_id: str
    pod: PodIdentity
    node: str
    devices: frozenset[DeviceId]
    """Our devices that no other claim may get meanwhile."""
    others: frozenset[Holding] = frozenset()
    """Other drivers' devices, and shares of our own."""
    preempting: bool = False
    """Whether the pod fits on the node only once kube-scheduler has evicted pods of lower priority there."""

    @classmethod
    def of(cls, decision_id: str, pod: Pod, allocation: Allocation, entry: ClaimAllocation) -> ClaimShare:
        """Return what one claim gets in a decision for a pod."""
        return cls(
            decision_id,
            PodIdentity(pod.key, pod.metadata.uid),
            allocation.node,
            allocation.devices(entry),
            allocation.others(entry),
            allocation.preempting,
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """A pod that had a reservation of a claim and may still be bound with it, without another write to the claim.

    Settled by a proof (lifecycle.proof), or when the server shows a new reservation for the pod.
    """

    pod: PodIdentity | None
    """None: any pod that names the claim, because we do not know which one had the reservation."""
    since_s: float
    """When we knew for certain that the reservation was gone. Infinite while a write that drops it is under way; then
    the time at which that write ended, or at which it could no longer land."""
    is_guess: bool = False
    """Whether nothing speaks for it but that we do not know what happened before `since_s`: kube-scheduler had named no
    node in the pod by then, as it does before it binds one."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim. Records replaces it at each event; a record never changes.

    Times are readings of our own monotonic clock when we learned something, never times from other machines.
    """

    shown: ResourceClaim
    """The newest state that the server showed, in a watch, a list, a read or an answer."""
    phase: Phase
    share: ClaimShare | None = None
    """The claim's share of the decision that is being written, or that the allocation comes from."""
    guard: int = 0
    """resourceVersion that guards our last write: it cannot land on any other state."""
    last_write_s: float = 0.0
    """When our last write ended, with or without an answer."""
    allocated_s: float = 0.0
    """When the allocation was first shown, or first shown as reserved again."""
    kept_s: float = float("-inf")
    """When kube-scheduler cleared the allocation whose devices we keep (KEPT), or kept until the newest decision."""
    unreserved_s: float | None = None
    """When the allocation was first shown without a reservation; None while it is reserved."""
    doubts: tuple[Doubt, ...] = ()
    ending: str = ""
    """Why the allocation is being taken back, as a metric label; empty when it is not."""
    at_once: bool = False
    """Whether the take-back needs no proof: the pod cannot be on its way, as it cannot get another of its claims."""
    taken_from: frozenset[str] = frozenset()
    """UIDs of the pods with a reservation when the take-back was decided. A later reservation keeps the claim."""
    stale_nodes: frozenset[str] = frozenset()
    """The nodes that the pods of `stale_binds` may be bound to; without a meaning when there are none."""
    stale_binds: tuple[Doubt, ...] = ()
    """Pods that may still be bound to the node of an allocation that no longer exists, whether or not they had a
    reservation; `since_s` is when the allocation was shown to be gone. Such a bind adds its reservation to whatever
    allocation it finds (kube-scheduler's bindClaim, after a conflict), even to one on another node."""
    rested_s: float = float("-inf")
    """When the allocation was last shown to be cleared while doubts were open."""
    rest: tuple[ResourceClaim, ...] = ()
    """The claim as it was each time its allocation was cleared while doubts were open. No other claim gets those
    devices until the doubts are settled. In KEPT: the claim as it was when kube-scheduler cleared it."""

    @property
    def is_tended(self) -> bool:
        """Whether the claim may need a next step, now or later."""
        return self.phase in TENDED or bool(self.ending) or bool(self.rest) or bool(self.stale_binds)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.shown.key

    @property
    def uid(self) -> str:
        """UID of the claim."""
        return self.shown.metadata.uid

    @property
    def version(self) -> int:
        """resourceVersion of the newest state, as a number."""
        return version_of(self.shown)

    @property
    def was_kept(self) -> bool:
        """Whether the newest decision gave the claim's pod what was kept for it while others were evicted."""
        return self.phase is not Phase.KEPT and self.kept_s > float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether a decision may use this claim."""
        return self.phase not in UNDER_WAY and not self.ending

    def is_open_to(self, pod_uid: str) -> bool:
        """Whether a decision for this pod may use the claim. A late bind of the same pod does no harm: the new
        allocation is reserved for the pod from the start, and the server refuses to reserve it for one pod twice. Where
        the PodGroup holds the reservation, a bind does not write one, so nothing stops it.
        """
        if not self.is_open or self.is_held or not self.stale_binds:
            return self.is_open
        if group_consumer(self.shown) is not None:
            return False
        return all(doubt.pod is not None and doubt.pod.uid == pod_uid for doubt in self.stale_binds)

    def is_open_on(self, node: str) -> bool:
        """Whether a decision for a pod on this node may use the claim. It gets the claim there at once, although others
        may still be bound to that node with an earlier allocation; not while they may be bound to another one."""
        return self.is_open and (self.is_held or not self.stale_binds or self.stale_nodes <= {node})

    @property
    def is_open_to_all(self) -> bool:
        """Whether a decision for any pod may use this claim."""
        return self.is_open and (self.is_held or not self.stale_binds)

    @property
    def is_held(self) -> bool:
        """Whether the server shows an allocation."""
        return self.shown.status.allocation is not None

    def is_of(self, decision_id: str) -> bool:
        """Return whether this decision is being written."""
        return self.phase in OURS and self.share is not None and self.share.decision_id == decision_id

    @property
    def is_preempting(self) -> bool:
        """Whether the server shows an allocation of ours to a pod that needs others evicted, reserved for it alone."""
        users = self.shown.status.reserved_for
        if self.phase is not Phase.ALLOCATED or self.share is None or not self.share.preempting:
            return False
        return len(users) == 1 and users[0].uid == self.share.pod.uid

    def held(self, driver: str) -> tuple[frozenset[DeviceId], frozenset[Holding]]:
        """Return what no other claim may get, because it is shown, decided or at rest: our devices, and the rest."""
        devices, others = held_devices(self.shown, driver), other_holdings(self.shown, driver)
        if self.phase in OURS and self.share is not None:
            devices, others = devices | self.share.devices, others | self.share.others
        for rest in self.rest:
            devices, others = devices | held_devices(rest, driver), others | other_holdings(rest, driver)
        return devices, others


def first_record(claim: ResourceClaim, now_s: float) -> ClaimRecord:
    """Return the record of a claim of which we know only what the server shows."""
    event = _shown(claim)
    record = ClaimRecord(shown=claim, phase=_next_phase(Phase.FREE, event), allocated_s=now_s)
    if event is not RecordEvent.SHOWN_UNRESERVED:
        return record
    return replace(record, unreserved_s=now_s, doubts=(Doubt(None, now_s),))


def show(record: ClaimRecord, claim: ResourceClaim, now_s: float) -> ClaimRecord:
    """Return the record after the server showed a newer state of the same claim. Raises NotAllowedError."""
    event = _shown(claim)
    if any(doubt.since_s > now_s for doubt in record.doubts):
        known = tuple(Doubt(doubt.pod, min(doubt.since_s, now_s)) for doubt in record.doubts)
        record = replace(record, doubts=known)
    if event is RecordEvent.SHOWN_FREE:
        return _freed(record, claim, now_s)
    is_same = is_same_allocation(record.shown, claim)
    changed = replace(record, shown=claim, phase=_next_phase(record.phase, event))
    if not is_same:
        changed = replace(
            changed, allocated_s=now_s, unreserved_s=None, ending="", at_once=False, taken_from=frozenset()
        )
    if event is RecordEvent.SHOWN_ALLOCATED:
        users = {user.uid for user in claim.status.reserved_for}
        left = tuple(doubt for doubt in record.doubts if doubt.pod is None or doubt.pod.uid not in users)
        changed = _with_doubts(replace(changed, unreserved_s=None), left)
        if record.unreserved_s is None:
            return changed
        # A pod reserved it again and may be about to be bound. It keeps the allocation, and its time to get bound
        # starts fresh.
        return replace(changed, allocated_s=now_s, at_once=False, taken_from=frozenset())
    if record.unreserved_s is not None and is_same:
        return changed
    new = (Doubt(pod, now_s) for pod in users_of(record.shown)) if is_same else (Doubt(None, now_s),)
    return replace(changed, unreserved_s=now_s, doubts=_joined(record.doubts, new))


def _freed(record: ClaimRecord, claim: ResourceClaim, now_s: float) -> ClaimRecord:
    is_resting = bool(record.rest) or record.phase is Phase.RESTING
    early = bool(record.doubts) and (is_resting or record.shown.status.allocation is not None)
    event = RecordEvent.SHOWN_FREED_EARLY if early else RecordEvent.SHOWN_FREE
    if not early and record.is_preempting and not record.ending:
        event = RecordEvent.SHOWN_FREED_PREEMPTING
    phase = _next_phase(record.phase, event)
    changed = replace(
        record, shown=claim, phase=phase, unreserved_s=None, ending="", at_once=False, taken_from=frozenset()
    )
    if early:
        return replace(changed, rest=_with_rest(record), rested_s=now_s if record.is_held else record.rested_s)
    if phase is Phase.KEPT:
        is_new = event is RecordEvent.SHOWN_FREED_PREEMPTING
        return replace(changed, doubts=(), rest=(record.shown,), kept_s=now_s) if is_new else changed
    if record.is_held:
        changed = replace(changed, kept_s=float("-inf"))
    return _without_idle_share(_with_doubts(changed, ()))


def has_lost(before: ClaimRecord, after: ClaimRecord, driver: str) -> bool:
    """Return whether an allocation with our devices is gone: one that was shown, or one that our write may have made
    before the server showed it."""
    had = before.shown.status.allocation
    if had is not None:
        is_of_ours = any(result.driver == driver for result in had.devices.results)
        return is_of_ours and not is_same_allocation(before.shown, after.shown)
    return after.shown.status.allocation is None and before.phase in (Phase.WRITING, Phase.IN_DOUBT)


def doubt_stale_binds(
    before: ClaimRecord, after: ClaimRecord, unbound: Iterable[PodIdentity], now_s: float
) -> ClaimRecord:
    """Return the record of a claim that lost the allocation of `before`: each unbound pod that names the claim may
    still be bound with it."""
    known = after.stale_nodes if after.stale_binds else frozenset[str]()
    node = only_node(before.shown) or (before.share.node if before.share is not None else "")
    stale_binds = _joined(after.stale_binds, (Doubt(pod, now_s) for pod in unbound))
    return replace(after, stale_binds=stale_binds, stale_nodes=known | {node})


def heal(record: ClaimRecord, claim: ResourceClaim, now_s: float) -> ClaimRecord:
    """Return the record after the server showed a state that the table does not allow: the record starts over from that
    state, and everything held before is at rest."""
    fresh = first_record(claim, now_s)
    rest = _with_rest(record)
    known = tuple(Doubt(doubt.pod, min(doubt.since_s, now_s)) for doubt in record.doubts)
    doubts = _joined((*known, *fresh.doubts), (Doubt(pod, now_s) for pod in users_of(record.shown)))
    is_free = fresh.phase is Phase.FREE and bool(rest) and bool(doubts)
    phase = Phase.RESTING if is_free else fresh.phase
    return replace(fresh, phase=phase, doubts=doubts, rest=rest if doubts else (), rested_s=now_s)


def _with_rest(record: ClaimRecord) -> tuple[ResourceClaim, ...]:
    had = record.shown.status.allocation
    if had is None:
        return record.rest
    known = (rest.status.allocation for rest in record.rest)
    is_known = any(one is not None and one.devices.results == had.devices.results for one in known)
    return record.rest if is_known else (*record.rest, record.shown)


def _with_doubts(record: ClaimRecord, doubts: tuple[Doubt, ...]) -> ClaimRecord:
    """Once no doubt is left, nothing has to rest. A record in RESTING gets there by PROVEN, one in KEPT by RELEASE."""
    is_over = not doubts and record.phase not in (Phase.RESTING, Phase.KEPT)
    return replace(record, doubts=doubts, rest=() if is_over else record.rest)


def doubt_binds(record: ClaimRecord, pods: Iterable[Doubt]) -> ClaimRecord:
    """Return the record of a free claim that may have lost an allocation, on any node, while we were not watching:
    these pods may still be bound with it."""
    return replace(record, stale_binds=_joined(record.stale_binds, pods), stale_nodes=ANYWHERE)


def end_write(record: ClaimRecord, event: RecordEvent, now_s: float, late_write_s: float) -> ClaimRecord:
    """Return the record after a write ended with an event. An unanswered write may land until `late_write_s` from now.

    A refused drop keeps its doubts: the reason may be that an earlier, unanswered drop landed. Raises NotAllowedError.
    """
    changed = meet(record, event)
    latest_s = now_s + late_write_s if event is RecordEvent.NO_ANSWER else now_s
    doubts = tuple(Doubt(doubt.pod, min(doubt.since_s, latest_s)) for doubt in changed.doubts)
    return replace(changed, doubts=doubts, last_write_s=now_s)


def meet(record: ClaimRecord, event: RecordEvent) -> ClaimRecord:
    """Return the record after an event that carries no further information. Raises NotAllowedError."""
    phase = _next_phase(record.phase, event)
    if phase in SHOWN:  # a write failed: the phase follows from what the server shows
        phase = _next_phase(phase, _shown(record.shown))
    changed = replace(record, phase=phase)
    is_let_go = event in (RecordEvent.PROVEN, RecordEvent.RELEASE)
    return _without_idle_share(replace(changed, rest=(), doubts=(), kept_s=float("-inf")) if is_let_go else changed)


def decide(record: ClaimRecord, share: ClaimShare) -> ClaimRecord:
    """Return the record of a claim after a decision that uses it. Raises NotAllowedError."""
    rest = () if record.phase is Phase.KEPT else record.rest
    return replace(record, phase=_next_phase(record.phase, RecordEvent.DECIDE), share=share, rest=rest)


def send(record: ClaimRecord, event: RecordEvent) -> ClaimRecord:
    """Return the record while a write guarded by the newest state is under way. Raises NotAllowedError."""
    changed = replace(record, phase=_next_phase(record.phase, event), guard=record.version)
    if event is RecordEvent.SEND_DROP:  # from now on its users may have lost their reservation unknowingly
        new = (Doubt(pod, inf) for pod in users_of(record.shown))
        return replace(changed, doubts=_joined(record.doubts, new))
    if event is RecordEvent.SEND_CLEARING:  # sent only once no doubt is left, or none matters
        return replace(changed, doubts=())
    return changed


def end(record: ClaimRecord, reason: str, *, at_once: bool) -> ClaimRecord:
    """Return the record of an allocation that is to be taken back from the pods that now have it reserved. An empty
    reason cancels the take-back."""
    taken_from = frozenset(user.uid for user in record.shown.status.reserved_for) if reason else frozenset[str]()
    return replace(record, ending=reason, at_once=at_once, taken_from=taken_from)


def settle(record: ClaimRecord, doubts: Iterable[Doubt]) -> ClaimRecord:
    """Return the record without these doubts, which are settled."""
    gone = frozenset(doubts)
    stale_binds = tuple(doubt for doubt in record.stale_binds if doubt not in gone)
    left = tuple(doubt for doubt in record.doubts if doubt not in gone)
    return replace(_with_doubts(record, left), stale_binds=stale_binds)


def is_same_allocation(before: ResourceClaim, now: ResourceClaim) -> bool:
    """Return whether two states of a claim have the same allocation. Timestamps have whole seconds, so they alone
    cannot decide it."""
    had, has = before.status.allocation, now.status.allocation
    if had is None or has is None or had.allocation_timestamp != has.allocation_timestamp:
        return False
    return had.devices.results == has.devices.results and had.node_selector == has.node_selector


def means_the_same(before: ResourceClaim, now: ResourceClaim) -> bool:
    """Return whether two states of a claim differ in nothing that a decision or a next step reads: at most in the
    version and in finalizers. Of labels and most annotations nothing is kept (cache.claims)."""
    had, has = before.metadata, now.metadata
    if (had.uid, had.deletion_timestamp, had.annotations, had.owner_references, before.problem) != (
        has.uid,
        has.deletion_timestamp,
        has.annotations,
        has.owner_references,
        now.problem,
    ):
        return False
    is_same_spec = before.spec is now.spec or before.spec == now.spec
    return is_same_spec and (before.status is now.status or before.status == now.status)


def users_of(claim: ResourceClaim) -> tuple[PodIdentity, ...]:
    """Return the pods that a claim is reserved for."""
    users = claim.status.reserved_for
    namespace = claim.metadata.namespace
    pods = (user for user in users if user.resource == "pods" and not user.api_group)
    return tuple(PodIdentity(f"{namespace}/{user.name}", user.uid) for user in pods)


def _joined(old: Iterable[Doubt], new: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Join doubts; of two about the same pod, keep the later one."""
    return tuple({doubt.pod: doubt for doubt in (*old, *new)}.values())


def _next_phase(phase: Phase, event: RecordEvent) -> Phase:
    """Return the phase that an event leads to. Raises NotAllowedError when this phase does not allow it."""
    try:
        return TRANSITIONS[phase][event]
    except KeyError:
        raise NotAllowedError(phase, event) from None


def _shown(claim: ResourceClaim) -> RecordEvent:
    if claim.status.allocation is None:
        return RecordEvent.SHOWN_FREE
    return RecordEvent.SHOWN_ALLOCATED if claim.status.reserved_for else RecordEvent.SHOWN_UNRESERVED


def _without_idle_share(record: ClaimRecord) -> ClaimRecord:
    """Forget the decision once the claim is free."""
    return replace(record, share=None) if record.phase is Phase.FREE else record


ANYWHERE: Final = frozenset({""})
"""For `stale_nodes`: no decision is for a node of this name."""

NOWHERE: Final[Mapping[PodIdentity, str]] = {}


def expected_places(record: ClaimRecord | None) -> Mapping[PodIdentity, str]:
    """Return the pods that may be bound with a claim's devices, each with its node: the pod of the current decision,
    the pod that the devices are kept for, those with a reservation, and those that may still be on their way after
    losing theirs."""
    if record is None:
        return NOWHERE
    if record.phase in OURS and record.share is not None:
        return {record.share.pod: record.share.node}
    before = record.rest[0] if record.rest else record.shown
    if record.phase is Phase.KEPT and record.share is not None:
        node = only_node(before)
        return NOWHERE if node is None else {record.share.pod: node}
    places = {doubt.pod: only_node(before) for doubt in record.doubts if doubt.pod is not None}
    places |= dict.fromkeys(users_of(record.shown), only_node(record.shown))
    return {pod: node for pod, node in places.items() if node is not None}


def only_node(claim: ResourceClaim) -> str | None:
    """Return the node of an allocation; None when it names no node or several."""
    if claim.status.allocation is None:
        return None
    for term in read_node_selector(claim.status.allocation.node_selector or {}).terms:
        for rule in term.fields:
            if (rule.key, rule.operator) == (NAME_FIELD, "In"):
                return rule.values[0]
    return None
