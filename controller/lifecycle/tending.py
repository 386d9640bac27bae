"""The next step for a claim, apart from decisions: a pure function of its record and its pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt, PodIdentity, only_node
from dracaena.controller.lifecycle.phases import SHOWN, Phase
from dracaena.controller.lifecycle.pod_record import PodRecord
from dracaena.controller.lifecycle.proof import (
    BEHIND_S,
    Bounds,
    all_known_s,
    by_uid,
    earliest_request_s,
    is_known,
    last_bind_s,
    standing,
    unproven,
)
from dracaena.controller.lifecycle.prospects import PREEMPTION_S, SETTLE_S

UNUSED_S: Final = BEHIND_S
"""How long a claim must be unused before it is cleared. Pods and claims come by separate watches, so a pod may still
come: it then finds its devices on the node chosen for it."""


UNRESERVED_THOUGH_NAMED_S: Final = 60.0
"""How long a claim that pods name must be without a reservation before it is cleared. Twice the patience with pods that
are judged (prospects.UNRESERVED_S), so that those are judged first and their node is left out for them."""


PROBED_AT_ONCE: Final = 20
"""Pods of one step. Each step looks at all pods of its claim once, and each pod costs two requests."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The pods that name a claim, as the watch shows them."""

    unbound: Sequence[PodRecord] = ()
    bound: Sequence[PodIdentity] = ()
    """Pods on a node that have not ended, sorted. A pod being deleted counts, as its containers may still run."""
    in_place: Sequence[PodIdentity] = ()
    """Those of them that the claim's allocation serves: they are on its node, or it names none."""
    last_s: float = 0.0
    """When the last of them went, if none is left."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the claim: the write that got no answer can no longer land."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Cancel the take-back: the pod is bound, or others reserved the claim."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the reservation: a bind that starts later has to write one."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Give a bound pod its reservation back."""

    pod: PodIdentity


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the server for pods, and mark their conditions so that we can see kube-scheduler's next failing attempts."""

    pods: tuple[PodIdentity, ...]
    """At most PROBED_AT_ONCE."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the server for pods, whose conditions stay as they are: for a guess (Doubt.is_guess) that is enough as a
    rule."""

    pods: tuple[PodIdentity, ...]
    """At most PROBED_AT_ONCE."""


@dataclass(frozen=True, slots=True)
class Find:
    """Ask the server for a pod that the watch does not show."""

    doubt: Doubt


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear the allocation: no pod can be bound with it any more."""


@dataclass(frozen=True, slots=True)
class Release:
    """Release what rests, because no pod can be bound with it any more; or what is kept, because it helps no pod."""


@dataclass(frozen=True, slots=True)
class Look:
    """Look again after this time; until then there is nothing to do."""

    in_s: float


Step = Read | Keep | Drop | Reserve | Probe | Ask | Find | Clear | Release | Look


def next_step(record: ClaimRecord, naming: Naming, now_s: float, bounds: Bounds, *, ours: bool) -> Step | None:
    """Return the next step for a claim, None when there is nothing to do until something changes.

    `ours`: whether the allocation is a decision of ours.
    """
    if record.phase is Phase.IN_DOUBT:
        left_s = record.last_write_s + bounds.late_write_s - now_s
        return Look(left_s) if left_s > 0 else Read()
    if record.phase is Phase.RESTING:
        step = _settle(record.doubts, naming, now_s, bounds)
        if step is None and naming.bound:
            # The decision for that pod releases what rests, so that nobody else gets it first. It may never come, for
            # example because another claim of the pod does not exist.
            left_s = record.rested_s + bounds.settle_s + bounds.longest_bind_s + UNRESERVED_THOUGH_NAMED_S - now_s
            return Look(left_s) if left_s > 0 else Release()
        return step or Release()
    if record.phase is Phase.KEPT:
        return _while_others_are_evicted(record, naming, now_s)
    if record.phase is Phase.FREE and _keeps_a_pod_waiting(record, naming):
        return _settle(record.stale_binds, naming, now_s, bounds)
    step = _about_what_is_shown(record, naming, now_s, bounds, ours=ours)
    if not record.rest or record.phase not in SHOWN or not (step is None or isinstance(step, Look)):
        return step
    rests = _settle(record.doubts, naming, now_s, bounds)  # the claim was allocated again while something rests
    if isinstance(step, Look) and isinstance(rests, Look):
        return Look(min(step.in_s, rests.in_s))
    return rests or step


def _while_others_are_evicted(record: ClaimRecord, naming: Naming, now_s: float) -> Step:
    """kube-scheduler cleared the allocation, and names its node in the pod if it evicts others there; the pod comes by
    another watch. When the others are gone the pod fits, and the next decision gives it the devices."""
    pods = (pod for pod in naming.unbound if record.share is not None and pod.uid == record.share.pod.uid)
    pod = next(pods, None)
    if pod is None:
        return Release()
    if pod.nominated == only_node(record.rest[0]):
        left_s = record.kept_s + PREEMPTION_S - now_s
    else:
        left_s = max(record.kept_s, pod.nominated_s) + SETTLE_S - now_s
    return Look(left_s) if left_s > 0 else Release()


def _about_what_is_shown(
    record: ClaimRecord, naming: Naming, now_s: float, bounds: Bounds, *, ours: bool
) -> Step | None:
    if record.phase is Phase.ALLOCATED and record.ending:
        if not _is_alone(record, naming):
            return Keep()
        if record.at_once and not record.rest:
            return Clear()
        # The reservation keeps an older bind of the same pod from mistaking this allocation for the old one.
        return _settle(record.stale_binds, naming, now_s, bounds) or Drop()
    if record.phase is Phase.ALLOCATED:
        # We ask early, so that whatever kube-scheduler says from now on counts if this must be taken back.
        return _settle(record.stale_binds, naming, now_s, bounds)
    if record.phase is Phase.UNRESERVED and ours:
        return _unreserved(record, naming, now_s, bounds)
    return None


def _is_alone(record: ClaimRecord, naming: Naming) -> bool:
    """Whether the pod that loses the allocation is the only one with a reservation, and is not bound."""
    users = record.shown.status.reserved_for
    if len(users) != 1 or users[0].uid not in record.taken_from:
        return False
    return any(pod.uid == users[0].uid for pod in naming.unbound)


def _unreserved(record: ClaimRecord, naming: Naming, now_s: float, bounds: Bounds) -> Step | None:
    if naming.in_place:
        # A pod on another node never gets these devices: with its reservation kube-controller-manager would clear the
        # allocation when that pod ends, while kube-scheduler may be binding another one with it.
        return Reserve(naming.in_place[0])
    if not record.ending:
        # kube-scheduler may reserve it any moment. A pod that waits too long is judged (prospects), unless another of
        # its claims is missing or being deleted.
        wait_s = UNRESERVED_THOUGH_NAMED_S if naming.unbound else UNUSED_S
        assert record.unreserved_s is not None
        left_s = max(record.unreserved_s, naming.last_s, *(pod.first_seen_s for pod in naming.unbound)) + wait_s - now_s
        if left_s > 0:
            return Look(left_s)
    if record.at_once and not record.rest:
        return Clear()
    return _settle(record.doubts, naming, now_s, bounds) or Clear()


def _keeps_a_pod_waiting(record: ClaimRecord, naming: Naming) -> bool:
    return bool(record.stale_binds and naming.bound) or any(not record.is_open_to(pod.uid) for pod in naming.unbound)


def _settle(about: Iterable[Doubt], naming: Naming, now_s: float, bounds: Bounds) -> Step | None:
    """Return the step that brings a proof nearer, None when no doubt is left."""
    unbound = by_uid(naming.unbound)
    doubts = standing(about, unbound, now_s, bounds)
    if not doubts:
        return None
    looks, probed, asked = [], dict[PodIdentity, None](), dict[PodIdentity, None]()
    for doubt in doubts:
        if not is_known(doubt, unbound):
            return Find(doubt)
        from_s = earliest_request_s(doubt, now_s, bounds)
        if from_s > now_s:
            looks.append(from_s - now_s)
            continue
        pods = unproven(doubt, unbound, bounds)
        for pod in pods:
            if doubt.is_guess and pod.requested_s < from_s:
                asked[PodIdentity(pod.key, pod.uid)] = None
            elif pod.requested_s < from_s or (pod.said is not None and not pod.probed):
                probed[PodIdentity(pod.key, pod.uid)] = None
        if max(len(probed), len(asked)) >= PROBED_AT_ONCE:
            break
        looks.append((last_bind_s(doubt, bounds) if pods else all_known_s(doubt)) - now_s)
    if asked:
        return Ask((*asked,)[:PROBED_AT_ONCE])
    return Probe((*probed,)[:PROBED_AT_ONCE]) if probed else Look(min(looks))
