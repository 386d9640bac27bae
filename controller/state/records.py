"""The records of all claims and pods: the only place that keeps the state of allocations (lifecycle)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from dracaena.api.objects import ENDED, Pod
from dracaena.api.podclaims import PodClaim, is_for_group, pod_claims
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.state.gangs import may_have_a_group
from dracaena.controller.lifecycle import claim_record
from dracaena.controller.lifecycle.claim_record import ClaimRecord, ClaimShare, Doubt, PodIdentity, only_node
from dracaena.controller.lifecycle.phases import TENDING, NotAllowedError, Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import Growth, PodRecord, is_unbound, read_unbound, see
from dracaena.controller.lifecycle.proof import Bounds, by_uid, standing
from dracaena.controller.lifecycle.refusals import WriteRefusal, refuse
from dracaena.controller.lifecycle.tending import Naming
from dracaena.controller.lifecycle.versions import version_of
from dracaena.controller.state.pod_groups import PodGroups

Changed = Callable[[ClaimRecord | None, ClaimRecord | None], None]

NO_DECISION: Final = ""


class Records:
    """One record per claim, and one per pod without a node. Part of its owner, and used under the owner's lock.

    Each change of a claim's record is passed to `changed` with the record before and after. An event that a record's
    phase does not allow is passed to `fault`: it changes nothing, and the step that it would have allowed is not taken.
    A caller that acts for a decision names it, so an old decision cannot change a claim that has a newer one, or that
    was deleted and created again. Times are readings of our monotonic clock. Cost: a few look-ups per event, and one
    for each pod that names the claim.
    """

    def __init__(
        self, driver: str, bounds: Bounds, changed: Changed, fault: Callable[[ClaimRecord, NotAllowedError], None]
    ) -> None:
        self._driver = driver
        self._bounds = bounds
        self._changed = changed
        self._fault = fault
        self._claims: dict[str, ClaimRecord] = {}
        self._pods: dict[str, Pod] = {}  # those that name claims
        self._named_by: dict[str, tuple[PodClaim, ...]] = {}  # of these without a node → their claims
        self._unbound: dict[str, PodRecord] = {}  # those without a node, also without claims
        self._naming: dict[str, dict[str, None]] = {}  # claim → pods, in the order in which they were shown
        self._bound: dict[str, dict[str, str]] = {}  # claim → pods of these that are on a node → the node
        self._bound_nodes: dict[str, Counter[str]] = {}  # claim → these nodes → how many of the pods are there
        self._refusals: dict[str, WriteRefusal] = {}  # claim that the server does not let us write
        self._blocked: dict[str, dict[str, None]] = {}  # claim that not every pod's decision may use → pods that asked
        self.groups = PodGroups(self._lacks_devices)
        """Read only."""
        self._last_named_s: dict[str, float] = {}  # claim that no pod names → when the last one went

    # What is known

    def claim(self, key: str) -> ClaimRecord | None:
        """Return the record of a claim."""
        return self._claims.get(key)

    def claims(self) -> Iterator[ClaimRecord]:
        """Yield all records, by key. Cost: O(claims × log claims)."""
        for key in sorted(self._claims):
            yield self._claims[key]

    def kept_on(self, claim_key: str) -> str | None:
        """Return the node on which devices are kept for the pod of a claim while others are evicted for it."""
        return only_node(self._claims[claim_key].rest[0]) if self.is_kept(claim_key) else None

    def is_kept(self, claim_key: str) -> bool:
        """Return whether devices are kept for the pod of a claim while others are evicted for it."""
        record = self._claims.get(claim_key)
        return record is not None and record.phase is Phase.KEPT

    def pod(self, key: str) -> Pod | None:
        """Return a pod that names claims."""
        return self._pods.get(key)

    def pods(self) -> Iterator[Pod]:
        """Yield all pods that name claims, by key."""
        for key in sorted(self._pods):
            yield self._pods[key]

    def named_by(self, pod: Pod) -> tuple[PodClaim, ...]:
        """Return the claims that a pod names, in the order of its spec. For a pod without a node they were read when
        the watch delivered it."""
        known = self._named_by.get(pod.key) if self._pods.get(pod.key) is pod else None
        return pod_claims(pod) if known is None else known

    def unbound(self, key: str) -> PodRecord | None:
        """Return the record of a pod that has no node."""
        return self._unbound.get(key)

    def backed_off(self, key: str) -> PodRecord | None:
        """Return the record of an unbound pod that ever had a back-off. None: any node may be tried for it, and others
        may be evicted for it. A pod whose devices are kept has had one."""
        known = self._unbound.get(key)
        if known is None:
            return None
        return known if known.left_out or known.all_left_out.tries or known.no_preemption.tries else None

    def must_not_preempt(self, pod: Pod, now_s: float) -> bool:
        """Return whether no pod is to be evicted for an unbound pod now: it has to wait (PodRecord.may_preempt), or
        others are being evicted for it."""
        known = self.backed_off(pod.key)
        return known is not None and (not known.may_preempt(now_s) or self.is_room_being_made_for(pod))

    def is_room_being_made_for(self, pod: Pod) -> bool:
        """Return whether devices are kept for a pod while others are evicted for it."""
        return any(self.is_kept(claim.key or "") for claim in self.named_by(pod))

    def naming(self, claim_key: str) -> tuple[str, ...]:
        """Return the keys of the pods that name a claim, in the order in which they were shown. Cost: O(pods), so do
        not ask it for each of them."""
        return tuple(self._naming.get(claim_key, ()))

    def naming_count(self, claim_key: str) -> int:
        """Return how many pods name a claim."""
        return len(self._naming.get(claim_key, ()))

    def is_shared(self, claim_key: str, pod_key: str) -> bool:
        """Return whether a pod other than this one names a claim."""
        pods = self._naming.get(claim_key, {})
        return len(pods) > (pod_key in pods)

    def is_bound_user(self, claim_key: str, pod: PodIdentity) -> bool:
        """Return whether a pod that names a claim is on a node and has not ended."""
        return pod.key in self._bound.get(claim_key, {}) and self._pods[pod.key].metadata.uid == pod.uid

    def has_bound(self, claim_key: str) -> bool:
        """Return whether some pod that names a claim is on a node and has not ended."""
        return bool(self._bound.get(claim_key))

    def pods_of(self, claim_key: str) -> Naming:
        """Return the pods that name a claim."""
        unbound = (self._unbound.get(key) for key in self.naming(claim_key) if not _is_going(self._pods[key]))
        bound = sorted(self._bound.get(claim_key, ()))
        record = self._claims.get(claim_key)
        node = only_node(record.shown) if bound and record is not None else None
        in_place = [key for key in bound if node is None or self._pods[key].spec.node_name == node]
        return Naming(
            tuple(record for record in unbound if record is not None),
            tuple(map(self._identity, bound)),
            tuple(map(self._identity, in_place)),
            self._last_named_s.get(claim_key, float("-inf")),
        )

    def _identity(self, pod_key: str) -> PodIdentity:
        return PodIdentity(pod_key, self._pods[pod_key].metadata.uid)

    def nodes_of(self, claim_key: str) -> frozenset[str]:
        """Return the nodes of the pods that name a claim. Cost: one step per node."""
        return frozenset(self._bound_nodes.get(claim_key, ()))

    def deciding_for(self, pod_key: str) -> tuple[ClaimRecord, ...]:
        """Return the records of a pod's claims that are being decided or written for it."""
        pod = self._pods.get(pod_key)
        keys = dict.fromkeys(claim.key or "" for claim in self.named_by(pod)) if pod is not None else ()
        return tuple(
            record
            for record in map(self._claims.get, keys)
            if record is not None and record.share is not None and record.is_of(record.share.decision_id)
            if record.share.pod.key == pod_key
        )

    # What the server shows

    def show(self, claim: ResourceClaim, now_s: float, *, watched: bool = True) -> bool:
        """Take in a state of a claim, wherever it comes from; return whether it was newer than what we had.

        `watched`: whether it comes from the watch or its list. Only these may introduce a claim: an answer to a request
        may be about a claim that has been deleted since.
        """
        record = self._claims.get(claim.key)
        if record is None or record.uid != claim.metadata.uid:
            if not watched or (record is not None and version_of(claim) < record.version):
                return False
            self.gone(claim.key, now_s)
            self._put(None, claim_record.first_record(claim, now_s))
            return True
        if version_of(claim) <= record.version and record.version:
            return False
        is_news = not claim_record.means_the_same(record.shown, claim)
        if is_news:
            self._refusals.pop(claim.key, None)
        else:  # what one author changes many times a second must not cost a look at all pods of the claim
            claim = msgspec.structs.replace(claim, spec=record.shown.spec, status=record.shown.status)
        try:
            changed = claim_record.show(self._settled(record, now_s) if is_news else record, claim, now_s)
        except NotAllowedError as error:
            self._fault(record, error)
            changed = claim_record.heal(record, claim, now_s)
        changed = self._settled(changed, now_s) if is_news else changed
        if claim_record.has_lost(record, changed, self._driver):
            unbound = (PodIdentity(pod.key, pod.uid) for pod in self.pods_of(claim.key).unbound)
            changed = claim_record.doubt_stale_binds(record, changed, unbound, now_s)
        self._put(record, changed)
        return True

    def gone(self, key: str, now_s: float, uid: str = "") -> None:
        """A claim was deleted. With a UID nothing happens if another claim has taken its name."""
        record = self._claims.get(key)
        if record is None or uid not in ("", record.uid):
            return
        del self._claims[key]
        self._blocked.pop(key, None)
        self._refusals.pop(key, None)
        self._last_named_s.pop(key, None)
        self._look_again_at_groups(record, None)
        self._changed(record, None)

    def see(self, old: Pod | None, new: Pod | None, now_s: float) -> None:
        """Take in a change of a pod. A pod that is bound, has ended or is gone settles the doubts about it."""
        subject = new or old
        if subject is None:
            return
        key = subject.key
        known = self._pods.get(key)
        for claim in self.named_by(known) if known is not None else ():
            self._unname(claim.key, key, now_s)
        self._pods.pop(key, None)
        self._named_by.pop(key, None)
        if new is not None and new.spec.resource_claims:
            self._pods[key] = new
            named = pod_claims(new)
            if not new.spec.node_name:
                self._named_by[key] = named
            for claim in named:
                if claim.key is not None:
                    self._name(claim.key, new)
        before = self._unbound.get(key)
        if before is not None and (new is None or before.uid != new.metadata.uid):
            del self._unbound[key]
            before = None
        if new is not None and is_unbound(new):
            self._unbound[key] = see(before, new, now_s)
        else:
            self._unbound.pop(key, None)
        self.groups.change(key, new)
        self._settle_doubts_about(known, new)

    def pod_was_read(self, pod: Pod, requested_s: float, now_s: float) -> None:
        """Take in the answer to a request sent at `requested_s`: the pod has no node."""
        known = self._unbound.get(pod.key)
        if known is not None and known.uid == pod.metadata.uid:
            self._unbound[pod.key] = read_unbound(known, pod, requested_s, now_s)

    def change_pod(self, record: PodRecord) -> None:
        """Replace the record of an unbound pod; do nothing if the pod has been bound or is gone."""
        known = self._unbound.get(record.key)
        if known is not None and known.uid == record.uid:
            self._unbound[record.key] = record

    # What we do

    def decide(self, claim_key: str, share: ClaimShare) -> bool:
        """Note that a decision uses a claim."""
        return self._apply(claim_key, lambda record: claim_record.decide(record, share))

    def send(self, claim_key: str, event: RecordEvent, decision_id: str = NO_DECISION) -> ClaimRecord | None:
        """Note that a write guarded by the newest state is about to be sent; return the record. None: it must not be
        sent, because the claim has another decision by now, or its phase does not allow it."""
        record = self._claims.get(claim_key)
        if record is None or (decision_id and not record.is_of(decision_id)):
            return None
        if not self._apply(claim_key, lambda known: claim_record.send(known, event)):
            return None
        return self._claims[claim_key]

    def end_write(
        self, claim_key: str, event: RecordEvent, now_s: float, *, guard: int = 0, decision_id: str = ""
    ) -> None:
        """Note how a write ended, identified by its decision or by the version that guarded it. Ignored when the record
        has moved on."""
        record = self._claims.get(claim_key)
        if record is None or (decision_id and not record.is_of(decision_id)):
            return
        if guard and (record.guard != guard or record.phase not in TENDING):
            return
        late_write_s = self._bounds.late_write_s
        self._apply(claim_key, lambda known: claim_record.end_write(known, event, now_s, late_write_s))

    def note_blocked_pod(self, claim_key: str, pod_key: str) -> None:
        """Remember a pod that needs a claim that no decision may use now."""
        record = self._claims.get(claim_key)
        if record is not None and not record.is_open_to_all:
            self._blocked.setdefault(claim_key, {})[pod_key] = None

    def blocked_pods(self, claim_key: str) -> tuple[str, ...]:
        """Return the pods whose turn came while no decision could use a claim, or none of theirs. They are to be tried
        again when one can, and are forgotten once any pod's decision may use it."""
        return tuple(self._blocked.get(claim_key, ()))

    def refuse(self, claim_key: str, why: str, now_s: float, growth: Growth) -> None:
        """Note that the server does not let us write a claim as it is."""
        if claim_key in self._claims:
            self._refusals[claim_key] = refuse(self._refusals.get(claim_key), why, now_s, growth)

    def refusal(self, claim_key: str, now_s: float) -> WriteRefusal | None:
        """Return why a claim cannot be written, for as long as no other attempt is due. A change of it ends that."""
        known = self._refusals.get(claim_key)
        return known if known is not None and now_s < known.again_s else None

    def end(self, claim_key: str, reason: str, *, at_once: bool = False) -> None:
        """Begin to take an allocation back, without a proof if `at_once`; an empty reason cancels the take-back."""
        record = self._claims.get(claim_key)
        if record is not None and (record.ending, record.at_once) != (reason, at_once):
            self._put(record, claim_record.end(record, reason, at_once=at_once))

    def prove(self, claim_key: str) -> None:
        """Note that no pod can be bound any more with what rests."""
        self._apply(claim_key, lambda record: claim_record.meet(record, RecordEvent.PROVEN))

    def release(self, claim_key: str) -> None:
        """Stop keeping the devices of a cleared allocation for its pod."""
        self._apply(claim_key, lambda record: claim_record.meet(record, RecordEvent.RELEASE))

    def settle(self, claim_key: str, doubts: tuple[Doubt, ...]) -> None:
        """Settle doubts about a claim."""
        record = self._claims.get(claim_key)
        if record is not None and doubts:
            self._put(record, claim_record.settle(record, doubts))

    def settle_what_is_proven(self, claim_key: str, now_s: float) -> ClaimRecord | None:
        """Settle the doubts about a claim that no longer stand; return its record."""
        record = self._claims.get(claim_key)
        if record is not None and (record.doubts or record.stale_binds):
            self._put(record, self._settled(record, now_s))
        return self._claims.get(claim_key)

    def prove_for_bound(self, claim_keys: Iterable[str], now_s: float) -> None:
        """Release the resting devices of a bound pod's claims right before the decision for it, if no doubt is left
        about any of them, so that no other pod gets them first."""
        found = [self.settle_what_is_proven(key, now_s) for key in dict.fromkeys(claim_keys)]
        known = [record for record in found if record is not None]
        if len(known) < len(found) or not all(record.is_open or _has_rested(record) for record in known):
            return
        for record in known:
            if _has_rested(record):
                self.prove(record.key)

    def begin(self, now_s: float) -> None:
        """Start to lead, right after everything was listed after the last write of an earlier leader.

        We do not know what it did, or which pods lost a reservation to it: any pod that names an allocated claim and
        has no reservation now may be one. A claim without an allocation may have been cleared for a pod, which may be
        gone, while another was being bound with it. Then no other pod gets the claim until that is settled; which
        devices it had, nothing shows, so none rest.
        """
        for record in list(self._claims.values()):
            if record.phase is Phase.UNRESERVED:
                self._put(record, replace(record, doubts=(Doubt(None, now_s),), unreserved_s=now_s))
            elif record.phase is Phase.ALLOCATED and self._has_others_waiting(record):
                self._put(record, replace(record, doubts=(Doubt(None, now_s),)))
            elif record.phase is Phase.FREE:
                self._doubt_binds(record, now_s)

    # Inside

    def _doubt_binds(self, record: ClaimRecord, now_s: float) -> None:
        """A claim that was generated for its one pod goes to no other: it costs no questions about that pod."""
        if _is_of_a_pod(record.shown) and self.naming_count(record.key) < 2:
            return
        known = {doubt.pod for doubt in record.stale_binds}
        pods = ((PodIdentity(pod.key, pod.uid), pod.nominated) for pod in self.pods_of(record.key).unbound)
        doubts = [Doubt(pod, now_s, is_guess=not node and pod not in known) for pod, node in pods]
        if doubts:
            self._put(record, claim_record.doubt_binds(record, doubts))

    def _has_others_waiting(self, record: ClaimRecord) -> bool:
        if is_for_group(record.shown):
            return False
        users = {user.uid for user in record.shown.status.reserved_for}
        return any(pod.uid not in users for pod in self.pods_of(record.key).unbound)

    def _apply(self, claim_key: str, change: Callable[[ClaimRecord], ClaimRecord]) -> bool:
        record = self._claims.get(claim_key)
        if record is None:
            return False
        try:
            self._put(record, change(record))
        except NotAllowedError as error:
            self._fault(record, error)
            return False
        return True

    def _put(self, before: ClaimRecord | None, after: ClaimRecord) -> None:
        if after is before:
            return
        self._claims[after.key] = after
        self._look_again_at_groups(before, after)
        self._changed(before, after)
        if after.is_open_to_all:
            self._blocked.pop(after.key, None)

    def _settled(self, record: ClaimRecord, now_s: float) -> ClaimRecord:
        doubts = {*record.doubts, *record.stale_binds}
        if not doubts:
            return record
        open_ones = [doubt for doubt in doubts if doubt.pod is None or not self._is_known_over(doubt.pod)]
        stand = standing(open_ones, by_uid(self._may_be_about(open_ones, record.key)), now_s, self._bounds)
        over = doubts - {*stand}
        return claim_record.settle(record, over) if over else record

    def _may_be_about(self, doubts: Sequence[Doubt], claim_key: str) -> Iterable[PodRecord]:
        """Return the unbound pods of a claim that doubts may be about. Cost: O(doubts), unless one is about any pod."""
        pods = [doubt.pod for doubt in doubts if doubt.pod is not None]
        if len(pods) < len(doubts):
            return self.pods_of(claim_key).unbound
        naming = self._naming.get(claim_key, {})
        known = (self._unbound.get(pod.key) for pod in pods if pod.key in naming and not _is_going(self._pods[pod.key]))
        return [record for record in known if record is not None]

    def _is_known_over(self, pod: PodIdentity) -> bool:
        """Whether the watch had shown the pod on a node, ended or being deleted before the doubt about it arose."""
        known = self._pods.get(pod.key)
        return known is not None and known.metadata.uid == pod.uid and (not is_unbound(known) or _is_going(known))

    def _settle_doubts_about(self, known: Pod | None, new: Pod | None) -> None:
        """Settle the doubts about a pod that is no longer on its way."""
        pods = [pod for pod in (known, new) if pod is not None]
        for pod in pods:
            record = self._unbound.get(pod.key)
            if record is not None and record.uid == pod.metadata.uid and pod.metadata.deletion_timestamp is None:
                continue
            for claim in pod_claims(pod):
                self._forget_doubts(claim.key or "", pod.metadata.uid)

    def _forget_doubts(self, claim_key: str, pod_uid: str) -> None:
        record = self._claims.get(claim_key)
        about = () if record is None else (*record.doubts, *record.stale_binds)
        self.settle(claim_key, tuple(doubt for doubt in about if doubt.pod is not None and doubt.pod.uid == pod_uid))

    def _look_again_at_groups(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        subject = after or before
        if subject is None or _has_nothing(before) == _has_nothing(after):
            return
        pods = (self._pods[key] for key in self._naming.get(subject.key, ()))
        if in_groups := [pod for pod in pods if may_have_a_group(pod)]:
            self.groups.look_again(in_groups)

    def _lacks_devices(self, pod: Pod) -> bool:
        return any(_has_nothing(self._claims.get(claim.key or "")) for claim in self.named_by(pod))

    def _name(self, claim_key: str, pod: Pod) -> None:
        known, node = self._naming.setdefault(claim_key, {}), pod.spec.node_name
        is_first_entry = pod.key not in known  # a pod may name a claim twice
        known[pod.key] = None
        self._last_named_s.pop(claim_key, None)
        if node and pod.status.phase not in ENDED and is_first_entry:
            self._bound.setdefault(claim_key, {})[pod.key] = node
            self._bound_nodes.setdefault(claim_key, Counter())[node] += 1

    def _unname(self, claim_key: str | None, pod_key: str, now_s: float) -> None:
        pods, bound = self._naming.get(claim_key or "", {}), self._bound.get(claim_key or "", {})
        pods.pop(pod_key, None)
        node = bound.pop(pod_key, None)
        if node is not None:
            self._bound_nodes[claim_key or ""] -= Counter((node,))
        if not bound:
            self._bound.pop(claim_key or "", None)
            self._bound_nodes.pop(claim_key or "", None)
        if claim_key is not None and not pods:
            self._naming.pop(claim_key, None)
            if claim_key in self._claims:
                self._last_named_s[claim_key] = now_s


def _has_nothing(record: ClaimRecord | None) -> bool:
    """Whether a claim has no devices, and none were decided for it."""
    return record is None or (not record.is_held and record.share is None)


def _is_of_a_pod(claim: ResourceClaim) -> bool:
    return any(owner.controller and owner.kind == "Pod" for owner in claim.metadata.owner_references)


def _is_going(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _has_rested(record: ClaimRecord) -> bool:
    """Whether what a claim had rests and no doubt is left."""
    return record.phase is Phase.RESTING and not record.doubts
