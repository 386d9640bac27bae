"""Faults of the past, put back into the code that runs: the interleaver has to find each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from math import inf
from typing import Any
from unittest import mock

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Pod
from dracaena.api.packed import unpacked
from dracaena.api.resource_objects import Device, ResourceClaim
from dracaena.controller import program, reconciler
from dracaena.controller.allocation.state import partition_kinds
from dracaena.controller.allocation.walk.lasting import LastingLacks
from dracaena.controller.cache import claims
from dracaena.controller.lifecycle import claim_record, proof, tending
from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt
from dracaena.controller.lifecycle.giving_way import Party
from dracaena.controller.lifecycle.own_allocation import our_node
from dracaena.controller.lifecycle.phases import OURS, Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import PodRecord, Wait
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.lifecycle.tending import Naming, Step
from dracaena.controller.queue.work import LeaderQueue
from dracaena.controller.state import upkeep
from dracaena.controller.state.cluster import Cluster, ClusterState
from dracaena.controller.state.decisions import Decisions
from dracaena.controller.state.group_turns import GroupTurns
from dracaena.controller.state.intake import Intake
from dracaena.controller.state.records import Records
from dracaena.controller.write import claim_tender
from dracaena.controller.write.gatekeeper import Gatekeeper, Ungated
from support.allocation import holding
from support.interleaver.world import NOTE

Fault = Callable[[], AbstractContextManager[None]]


@contextmanager
def acts_by_claim() -> Iterator[None]:
    """What is told of a decision is taken for the claim, whoever it is decided for by now."""

    def is_of(record: ClaimRecord, decision_id: str) -> bool:
        return record.phase in OURS and record.share is not None

    with mock.patch.object(ClaimRecord, "is_of", is_of):
        yield


@contextmanager
def clears_after_two_seconds() -> Iterator[None]:
    """An allocation is cleared a fixed time after its reservation was dropped, whatever is known of binds."""

    next_step = tending.next_step

    def after_a_time(record: ClaimRecord, naming: Naming, now_s: float, bounds: Bounds, **rest: Any) -> Step | None:
        left = tuple(doubt for doubt in record.doubts if now_s < doubt.since_s + 2.0)
        return next_step(replace(record, doubts=left), naming, now_s, bounds, **rest)

    with mock.patch.object(tending, "next_step", after_a_time):
        yield


@contextmanager
def doubts_since_the_decision() -> Iterator[None]:
    """How long a write without an answer may land is counted from the decision."""
    decided_s: dict[str, float] = {}
    decide, end_write = Cluster.decide, Records.end_write

    def note(self: Cluster, *args: Any, decision_id: str, now_s: float, **rest: Any) -> Any:
        decided_s[decision_id] = now_s
        return decide(self, *args, decision_id=decision_id, now_s=now_s, **rest)

    def end(
        self: Records, claim_key: str, event: RecordEvent, now_s: float, *, guard: int = 0, decision_id: str = ""
    ) -> None:
        end_write(self, claim_key, event, decided_s.get(decision_id, now_s), guard=guard, decision_id=decision_id)

    with mock.patch.object(Cluster, "decide", note), mock.patch.object(Records, "end_write", end):
        yield


@contextmanager
def only_the_later_gives_way() -> Iterator[None]:
    """Of two claims with one device the earlier one never gives way."""

    def gives_way(party: Party, rival: Party) -> bool:
        can = party.is_ours and not party.is_used
        return can and (party.allocated_at, party.uid) > (rival.allocated_at, rival.uid)

    with mock.patch.object(upkeep, "gives_way", gives_way):
        yield


@contextmanager
def forgets_binds_without_a_reservation() -> Iterator[None]:
    """Only who had a reservation is asked about before a claim is allocated on another node."""
    with mock.patch.object(ClaimRecord, "is_open_to", lambda self, pod_uid: self.is_open):
        yield


@contextmanager
def asks_only_about_pods_with_a_node() -> Iterator[None]:
    """A new leader doubts no bind but those whose node is in the pod by then."""
    doubt_binds = claim_record.doubt_binds

    def of_named(record: ClaimRecord, pods: Sequence[Doubt]) -> ClaimRecord:
        return doubt_binds(record, [doubt for doubt in pods if not doubt.is_guess])

    with mock.patch.object(claim_record, "doubt_binds", of_named):
        yield


@contextmanager
def trusts_gates_of_the_watch() -> Iterator[None]:
    """A pod that the watch shows gated counts as one that was never tried."""
    is_proven = proof._is_proven

    def or_gated(pod: PodRecord, doubt: Doubt, bounds: Bounds) -> bool:
        return pod.is_gated or is_proven(pod, doubt, bounds)

    with mock.patch.object(proof, "_is_proven", or_gated):
        yield


@contextmanager
def keeps_nothing_while_others_are_evicted() -> Iterator[None]:
    """What kube-scheduler clears while it evicts others for its pod is free at once."""
    show = claim_record.show

    def free(record: ClaimRecord, claim: ResourceClaim, now_s: float) -> ClaimRecord:
        shown = show(record, claim, now_s)
        return replace(shown, phase=Phase.FREE, rest=(), share=None) if shown.phase is Phase.KEPT else shown

    with mock.patch.object(claim_record, "show", free):
        yield


@contextmanager
def never_allocates_for_preemption() -> Iterator[None]:
    """A node that is short of what pods of lower priority hold is not allocated."""
    with mock.patch.object(Decisions, "_preempting", return_value=None):
        yield


@contextmanager
def evicts_for_a_pod_only_once() -> Iterator[None]:
    """Once others were, or may have been, evicted for a pod, it waits for room that comes by itself."""

    def never(record: PodRecord, *_: Any) -> PodRecord:
        return replace(record, no_preemption=Wait(1, inf))

    with (
        mock.patch.object(upkeep, "preempt_later", never),
        mock.patch.object(upkeep, "restart_wait_to_preempt", never),
    ):
        yield


@contextmanager
def never_tends(phase: Phase) -> Iterator[None]:
    """Nothing is done about claims of a phase."""
    next_step = tending.next_step

    def but_not(record: ClaimRecord, *args: Any, **rest: Any) -> Step | None:
        return None if record.phase is phase else next_step(record, *args, **rest)

    with mock.patch.object(tending, "next_step", but_not):
        yield


@contextmanager
def wakes_nobody() -> Iterator[None]:
    """Who fits nowhere is told of no change."""
    with mock.patch.object(Decisions, "may_help"):
        yield


@contextmanager
def forgets_ends_without_an_answer() -> Iterator[None]:
    """A write that gets no answer is never told to have ended."""
    end_write = Records.end_write

    def end(self: Records, claim_key: str, event: RecordEvent, now_s: float, **rest: Any) -> None:
        if event is not RecordEvent.NO_ANSWER:
            end_write(self, claim_key, event, now_s, **rest)

    with mock.patch.object(Records, "end_write", end):
        yield


@contextmanager
def mixes_states() -> Iterator[None]:
    """A record takes the version of a newer state, and goes on to show what was there before."""
    put = Records._put

    def keep_users(self: Records, before: ClaimRecord | None, after: ClaimRecord) -> None:
        had = None if before is None else before.shown
        if had is not None and had.status.reserved_for and len(after.shown.status.reserved_for) > 1:
            after = replace(after, shown=msgspec.structs.replace(after.shown, status=had.status))
        put(self, before, after)

    with mock.patch.object(Records, "_put", keep_users):
        yield


@contextmanager
def takes_older_states() -> Iterator[None]:
    """Whatever is shown last counts as the newest."""
    with mock.patch.object(ClaimRecord, "version", 0):
        yield


@contextmanager
def keeps_books_of_its_own() -> Iterator[None]:
    """What a decision that was refused had is not given back in the books."""
    changed = ClusterState.record_changed

    def but_not(self: ClusterState, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        if before is None or after is None or not (before.phase in OURS and after.phase is Phase.FREE):
            changed(self, before, after)

    with mock.patch.object(ClusterState, "record_changed", but_not):
        yield


@contextmanager
def counts_quotas_without_decisions() -> Iterator[None]:
    """A quota counts what the server shows, and nothing that is decided and still being written."""
    changed = ClusterState.record_changed

    def uncounted(self: ClusterState, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        holdings = self.inventory.holdings
        follow = holdings.follow
        if after is not None and after.phase in OURS:
            holdings.follow = None
        try:
            changed(self, before, after)
        finally:
            holdings.follow = follow

    with mock.patch.object(ClusterState, "record_changed", uncounted):
        yield


@contextmanager
def counts_no_shares() -> Iterator[None]:
    """What a decided share takes of its GPU counts only once the server shows it."""
    held = ClaimRecord.held

    def shown_only(self: ClaimRecord, driver: str) -> Any:
        devices, others = held(self, driver)
        decided = self.share.others if self.share is not None and not self.is_held else frozenset()
        return devices, (others - decided) | {replace(one, consumed=()) for one in decided}

    with mock.patch.object(ClaimRecord, "held", shown_only):
        yield


@contextmanager
def believes_a_made_up_note() -> Iterator[None]:
    """A new leader holds back what a free claim's annotation names, if several pods wait for the claim."""
    begin = Records.begin

    def believing(self: Records, now_s: float) -> None:
        begin(self, now_s)
        for record in list(self.claims()):
            text = record.shown.metadata.annotations.get(NOTE)
            if text is None or record.phase is not Phase.FREE or len(self.pods_of(record.key).unbound) < 2:
                continue
            note = json.loads(text)
            had = holding(record.shown, note["node"], *note["devices"])
            resting = replace(record, phase=Phase.RESTING, rest=(had,), doubts=(Doubt(None, now_s),))
            self._put(record, resting)

    with (
        mock.patch.object(claims, "_kept_annotations", lambda annotations: annotations),
        mock.patch.object(Records, "begin", believing),
    ):
        yield


@contextmanager
def owns_only_what_users_leave_as_it_was() -> Iterator[None]:
    """An allocation is ours as long as the metadata of its claim still has what we wrote there."""

    def still_marked(claim: ResourceClaim, driver: str) -> str | None:
        is_marked = DELETE_PROTECTION_FINALIZER in unpacked(claim.metadata.finalizers)
        return our_node(claim, driver) if is_marked else None

    with (
        mock.patch.object(upkeep, "our_node", still_marked),
        mock.patch.object(reconciler, "our_node", still_marked),
        mock.patch.object(claim_tender, "our_node", still_marked),
    ):
        yield


@contextmanager
def remembers_gates_by_name() -> Iterator[None]:
    """A pod of whose name one was to be ungated before counts as ungated."""
    ungate = Gatekeeper.ungate

    def once(self: Gatekeeper, pod: Pod, reason: Ungated) -> None:
        known = self._known.get(pod.key)
        if known is None or known.reason is None:
            ungate(self, pod, reason)

    with mock.patch.object(Gatekeeper, "ungate", once):
        yield


@contextmanager
def wakes_nobody_for(change: str) -> Iterator[None]:
    """Who fits nowhere is not told of changes of one kind of what is around: a method of Intake."""
    take_in = getattr(Intake, change)

    def quietly(self: Intake, old: Any, new: Any) -> None:
        with mock.patch.object(Decisions, "may_help"), mock.patch.object(Decisions, "may_help_all", return_value=()):
            take_in(self, old, new)

    with mock.patch.object(Intake, change, quietly):
        yield


@contextmanager
def takes_claims_that_were_made_for_others() -> Iterator[None]:
    """A claim from a template is a pod's once its status names it, whoever it was made for."""
    with mock.patch.object(reconciler, "is_made_for", return_value=True):
        yield


@contextmanager
def overlaps_parts() -> Iterator[None]:
    """Parts of a GPU take nothing of what it has."""
    takes = partition_kinds._takes

    def nothing(device: Device, counters: Sequence[str]) -> tuple[int, ...]:
        return tuple(0 for _ in takes(device, counters))

    with mock.patch.object(partition_kinds, "_takes", nothing):
        yield


@contextmanager
def wakes_nobody_for_other_devices() -> Iterator[None]:
    """Who waits for another driver's devices is told of none that come."""
    with mock.patch.object(Decisions, "other_devices_changed"):
        yield


@contextmanager
def calls_missing_what_is_in_use() -> Iterator[None]:
    """A node whose GPUs are in use is said to have fewer than it has."""
    with mock.patch.object(LastingLacks, "_not_now", lambda self, name, _: f"with fewer than {self.gpus(name)} GPUs"):
        yield


@contextmanager
def lets_no_group_come_first() -> Iterator[None]:
    """Gangs lose and regain their parts in turns."""
    with mock.patch.object(GroupTurns, "review", return_value=frozenset()):
        yield


@contextmanager
def leads_without_a_list() -> Iterator[None]:
    """A new leader begins with what its watch has shown by then."""
    with mock.patch.object(program, "wait_to_lead", return_value=True):
        yield


@contextmanager
def queues_while_standing_by() -> Iterator[None]:
    """A stand-by queues work."""
    with mock.patch.object(LeaderQueue, "add_pod", lambda self, key: self._queue.add(key)):
        yield
