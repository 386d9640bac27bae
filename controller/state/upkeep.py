"""Looks after allocations: finds those that will not get their pod bound, and returns the next step for each claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.podclaims import is_for_group
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.state.gangs import may_have_a_group
from dracaena.controller.lifecycle import tending
from dracaena.controller.lifecycle.claim_record import ClaimRecord, means_the_same, users_of
from dracaena.controller.lifecycle.giving_way import Party, gives_way
from dracaena.controller.lifecycle.own_allocation import our_node
from dracaena.controller.lifecycle.phases import SHOWN, Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import (
    Growth,
    PodRecord,
    Said,
    leave_all_out,
    leave_out,
    preempt_later,
    restart_wait,
    restart_wait_to_preempt,
)
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.lifecycle.prospects import LOOK_S, PREEMPTED, LedNowhere, Nudge, Patience, Situation, verdict
from dracaena.controller.lifecycle.tending import Clear, Drop, Keep, Release, Reserve, Step
from dracaena.controller.state.group_turns import YIELDED, GroupTurns
from dracaena.controller.state.records import Records
from dracaena.controller.state.scheduler_progress import SchedulerProgress

_SENT: Final = {Drop: RecordEvent.SEND_DROP, Reserve: RecordEvent.SEND_RESERVATION, Clear: RecordEvent.SEND_CLEARING}


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """Patience, upper bounds, and how back-offs grow."""

    bounds: Bounds
    patience: Patience
    growth: Growth
    """Of the back-off for a node that is left out."""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Allocations of a pod that are being taken back."""

    reason: str
    """Label of the metric."""
    node: str
    claims: tuple[str, ...]
    for_s: float
    """Seconds for which the node, or every node, is left out for the pod; 0 when none is."""
    node_matters: bool
    said: Said | None


class Upkeep:
    """Part of its owner, and used under the owner's lock. It changes records and calls nothing else.

    `rivals_of` returns the other claims that hold a device of a claim.
    """

    def __init__(
        self,
        driver: str,
        records: Records,
        progress: SchedulerProgress,
        groups: GroupTurns,
        rules: UpkeepRules,
        rivals_of: Callable[[ResourceClaim], Iterable[ResourceClaim]],
    ) -> None:
        self._driver = driver
        self._records = records
        self._progress = progress
        self._groups = groups
        self._rules = rules
        self._rivals_of = rivals_of
        self._gave_back_s = float("-inf")  # when a pod last gave its devices back because kube-scheduler was silent

    def next_step(self, claim_key: str, now_s: float, now: datetime) -> tuple[Step, ClaimRecord] | None:
        """Return the next step for a claim, with its record; None when there is nothing to do until something changes.

        A write that is returned counts as sent, so the caller must report its end (Records.end_write).
        """
        record = self._records.settle_what_is_proven(claim_key, now_s)
        if record is None or not record.is_tended:  # any user may call for this very often: its pods are not listed
            return None
        if record.phase is Phase.RESTING and record.rest and not self._is_ours_at_rest(record):
            self._records.prove(claim_key)
            return Release(), record
        ours = our_node(record.shown, self._driver) is not None
        naming = self._records.pods_of(claim_key)
        step = tending.next_step(record, naming, now_s, self._rules.bounds, ours=ours)
        is_left_alone = record.shown.problem or record.shown.metadata.deletion_timestamp is not None
        if is_left_alone and isinstance(step, Drop | Reserve | Clear):
            return None
        if isinstance(step, Keep):
            self._records.end(claim_key, "")
        elif isinstance(step, Release):
            if record.phase is Phase.KEPT:
                self._restart_wait_to_preempt(record, now_s, now)
                self._records.release(claim_key)
            else:
                self._records.prove(claim_key)
        elif isinstance(step, Drop | Reserve | Clear):
            sent = self._records.send(claim_key, _SENT[type(step)])
            return None if sent is None else (step, sent)
        return None if step is None else (step, record)

    def attend(self, pod: Pod, now_s: float, now: datetime, *, others_wait: bool) -> TakenBack | Nudge | float | None:
        """Look at a pod whose claims are all allocated; return what is taken back, or that kube-scheduler must be made
        to try the pod, or the seconds until the next look, or None when the pod's next change will bring one."""
        known = self._records.unbound(pod.key)
        if known is None or known.uid != pod.metadata.uid:
            return None
        named = dict.fromkeys(claim.key or "" for claim in self._records.named_by(pod))
        claims = [self._records.claim(key) for key in named]
        there = [claim for claim in claims if claim is not None]
        alone = [claim for claim in there if self._is_alone(claim, known)]
        if not alone:
            return None
        node = our_node(alone[0].shown, self._driver)
        assert node is not None
        colliding = tuple(claim for claim in alone if self._gives_way(claim))
        if colliding:
            self._end(colliding, "collision")
            return TakenBack("collision", node, tuple(c.key for c in colliding), 0.0, True, None)
        if self._groups.yields(pod, node, now_s):
            self._end(alone, YIELDED)
            return TakenBack(YIELDED, node, tuple(c.key for c in alone), 0.0, True, None)
        if self._groups.keeps(pod):
            return LOOK_S
        whole = len(there) == len(claims) and all(claim.shown.status.allocation is not None for claim in there)
        found = self._judge(pod, known, tuple(alone), node, now_s, now, whole=whole, others_wait=others_wait)
        if isinstance(found, float) and may_have_a_group(pod):
            return min(found, LOOK_S)  # another group may come first meanwhile
        return found

    def start_over(self, claims: Iterable[ResourceClaim], *, at_once: bool) -> tuple[str, ...]:
        """Take allocations back from a pod that cannot get the rest of what it needs in addition. Return the keys of
        the claims that were not being taken back already and have not changed since this was found.

        `at_once`: kube-scheduler cannot have allocated what we could not. The pod is then not on its way to a node, and
        nothing has to be proven unless another pod that shares the claim may be on its way.
        """
        found = ((claim, self._records.claim(claim.key)) for claim in claims)
        begun = tuple(record for claim, record in found if record is not None and means_the_same(record.shown, claim))
        begun = tuple(record for record in begun if not record.ending and record.phase in SHOWN)
        for record in begun:
            self._records.end(record.key, "half-written", at_once=at_once and not record.doubts)
        return tuple(record.key for record in begun)

    def gives_back(self, record: ClaimRecord, now_s: float, now: datetime) -> None:
        """Restart the back-off of the pods from which we cleared an allocation. A proof can take longer than the
        back-off, and otherwise the pod would get the same devices again at once, over and over."""
        node = our_node(record.shown, self._driver)
        growth = self._rules.growth
        for pod in self._records.pods_of(record.key).unbound:
            if node is None or pod.uid not in record.taken_from:
                continue
            changed = pod if record.ending == PREEMPTED else restart_wait(pod, node, now_s, now, growth)
            if record.ending == PREEMPTED or record.was_kept:
                changed = restart_wait_to_preempt(changed, now_s, now, growth)
            self._records.change_pod(changed)

    def cleared(self, before: ClaimRecord, now_s: float, now: datetime) -> Sequence[tuple[str, str, float]]:
        """Leave out the node of an allocation of ours that kube-scheduler cleared because it led nowhere (PostFilter).

        Otherwise we would allocate the claim on that node again, a dozen times a second. Return (pod, node, seconds).
        """
        node = our_node(before.shown, self._driver)
        known = self._records.claim(before.key)
        is_kept = known is not None and known.phase is Phase.KEPT
        if is_kept and before.phase is not Phase.KEPT:
            self._preempts_later(before, now_s, now)
        if node is None or before.phase is Phase.CLEARING or is_kept:
            return ()
        found = []
        for pod in self._unbound_users(before):
            changed = leave_out(pod, node, now_s, now, self._rules.growth)
            if before.was_kept:  # the room that was made for it went to another pod
                changed = restart_wait_to_preempt(changed, now_s, now, self._rules.growth)
            self._records.change_pod(changed)
            found.append((pod.key, node, changed.left_out[node].again_s - now_s))
        return found

    def _unbound_users(self, record: ClaimRecord) -> Sequence[PodRecord]:
        """Return the unbound pods that have a reservation; if the PodGroup has it, all that name the claim."""
        unbound = self._records.pods_of(record.key).unbound
        users = {user.uid for user in record.shown.status.reserved_for}
        return [pod for pod in unbound if pod.uid in users or is_for_group(record.shown)]

    def _is_ours_at_rest(self, record: ClaimRecord) -> bool:
        """Whether devices of our driver rest. Other drivers' devices are not ours to hold back."""
        allocations = (rest.status.allocation for rest in record.rest)
        results = (result for one in allocations if one is not None for result in one.devices.results)
        return any(result.driver == self._driver for result in results)

    def _is_alone(self, claim: ClaimRecord, pod: PodRecord) -> bool:
        users = claim.shown.status.reserved_for
        is_on_its_way = bool(claim.ending) or claim.phase not in (Phase.ALLOCATED, Phase.UNRESERVED)
        if is_on_its_way or our_node(claim.shown, self._driver) is None:
            return False
        return all(user.uid == pod.uid for user in users)

    def _judge(
        self,
        pod: Pod,
        known: PodRecord,
        ours: tuple[ClaimRecord, ...],
        node: str,
        now_s: float,
        now: datetime,
        *,
        whole: bool,
        others_wait: bool,
    ) -> TakenBack | Nudge | float:
        patience = self._rules.patience
        situation = Situation(
            known,
            node,
            nominated=pod.status.nominated_node_name == node,
            ours=ours,
            whole=whole,
            passed_over=self._progress.passed_over(pod, max(claim.allocated_s for claim in ours)),
            quiet_s=self._progress.quiet_s(pod.spec.scheduler_name, now_s),
            others_wait=others_wait and now_s - self._gave_back_s >= patience.passed_over_s,
        )
        found = verdict(situation, now_s, patience)
        if isinstance(found, Nudge):
            self._records.change_pod(replace(known, nudged_s=now_s))
        if not isinstance(found, LedNowhere):
            return found
        if found.reason == "passed-over" and not situation.passed_over:
            # One at a time, so that an absent kube-scheduler does not make every pod give its devices back.
            self._gave_back_s = now_s
        if found.reason == PREEMPTED:
            changed = preempt_later(known, now_s, now, self._rules.growth)
            for_s = changed.no_preemption.again_s - now_s
        elif found.node_matters:
            changed = leave_out(known, node, now_s, now, self._rules.growth)
            for_s = changed.left_out[node].again_s - now_s
        else:
            changed = leave_all_out(known, now_s, now, self._rules.growth)
            for_s = changed.all_left_out.again_s - now_s
        self._records.change_pod(changed)
        claims = self._end(ours, found.reason)
        return TakenBack(found.reason, node, claims, for_s, found.node_matters, known.said)

    def _preempts_later(self, before: ClaimRecord, now_s: float, now: datetime) -> None:
        """Begin the back-off of the pod of a claim that was cleared while others are, or may be, evicted for it."""
        for pod in self._unbound_owner(before):
            self._records.change_pod(preempt_later(pod, now_s, now, self._rules.growth))

    def _restart_wait_to_preempt(self, record: ClaimRecord, now_s: float, now: datetime) -> None:
        """Restart the back-off before preemption: the evictions were waited for, which may have taken longer, and led
        nowhere."""
        for pod in self._unbound_owner(record):
            self._records.change_pod(restart_wait_to_preempt(pod, now_s, now, self._rules.growth))

    def _unbound_owner(self, record: ClaimRecord) -> Iterator[PodRecord]:
        """Yield the pod for which a claim was allocated, if it is there and unbound."""
        unbound = self._records.pods_of(record.key).unbound
        return (pod for pod in unbound if record.share is not None and pod.uid == record.share.pod.uid)

    def _end(self, claims: Iterable[ClaimRecord], reason: str) -> tuple[str, ...]:
        keys = tuple(claim.key for claim in claims)
        for key in keys:
            self._records.end(key, reason)
        return keys

    def _gives_way(self, claim: ClaimRecord) -> bool:
        party = self._party(claim.shown)
        return any(gives_way(party, self._party(rival)) for rival in self._rivals_of(claim.shown))

    def _party(self, claim: ResourceClaim) -> Party:
        allocation = claim.status.allocation
        is_bound = any(self._records.is_bound_user(claim.key, user) for user in users_of(claim))
        return Party(
            claim.metadata.uid,
            (allocation.allocation_timestamp or "") if allocation is not None else "",
            is_ours=our_node(claim, self._driver) is not None,
            is_used=is_bound
            or (is_for_group(claim) and self._records.has_bound(claim.key))
            or len(claim.status.reserved_for) > 1,
        )
