"""Which pods may still be bound with devices that are about to go to another pod.

kube-scheduler works on a pod in one attempt at a time: it looks at the claims, and either reports that no node fits or
binds in the background, for as long as volumes, Permit plugins and other drivers take. An attempt that saw a
reservation for the pod writes nothing more to the claim. So after a reservation is gone, such a bind may be under way
without a trace. It is over, or there was none, when

* the pod is bound, ended or gone, or was never tried because a scheduling gate still held it: none can be added later;
* kube-scheduler ended an attempt for this pod so long after the reservation was lost that its next attempt sees that;
* more time has passed than any bind takes, and the server, asked after that, has the pod without a node;
* the doubt is a guess (Doubt.is_guess), and the server, asked once every attempt that had looked at the claims must
  have named its node in the pod, shows none there.

Our watch of pods may lag by any amount of time, so it cannot tell when a message was written, nor that a pod has no
node now. So we first ask the server for the pod, at the time that matters, and compare later states with the answer.

A bind that starts later has to write a reservation first, and we see that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dracaena.controller.lifecycle.claim_record import Doubt
from dracaena.controller.lifecycle.pod_record import PodRecord


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds, in seconds."""

    longest_bind_s: float
    """From the moment an attempt looks at the claims until its bind."""
    late_write_s: float
    """From the time we give up waiting for an answer to a write until it can no longer land."""
    settle_s: float = 2.0
    """Until kube-scheduler has seen a change to a claim. The latest message in which it did not know of a change yet
    came after 0.3 s, and 0.7 s on a busy machine."""


BEHIND_S: Final = 15.0
"""How far our watch of pods may lag where we do not know which pods to ask the server for: longer than any watch of a
live server lags."""


Unbound = Mapping[str, PodRecord]
"""UID → each pod without a node that names a claim. By UID, because there may be a doubt about each of them."""


def by_uid(pods: Iterable[PodRecord]) -> Unbound:
    """Return pods as the functions here look them up."""
    return {pod.uid: pod for pod in pods}


def standing(doubts: Iterable[Doubt], unbound: Unbound, now_s: float, bounds: Bounds) -> tuple[Doubt, ...]:
    """Return which of a claim's doubts still stand. Cost: a step for each doubt, and one for each pod if there is one
    about any of them.

    Because our watch of pods may lag, a doubt about any other pod stands too, until the claim's record learns that the
    pod is gone (claim_record.settle). A doubt about no pod in particular stands until the watch must have shown all
    pods that it may be about.
    """
    return tuple(
        doubt
        for doubt in doubts
        if now_s < all_known_s(doubt) or not is_known(doubt, unbound) or unproven(doubt, unbound, bounds)
    )


def last_bind_s(doubt: Doubt, bounds: Bounds) -> float:
    """Return the time by which the last attempt that may have seen the reservation has bound its pod, or never will."""
    return doubt.since_s + bounds.settle_s + bounds.longest_bind_s


def all_known_s(doubt: Doubt) -> float:
    """Return the time by which our watch must have shown all pods that a doubt may be about."""
    return doubt.since_s + BEHIND_S if doubt.pod is None else float("-inf")


def earliest_request_s(doubt: Doubt, now_s: float, bounds: Bounds) -> float:
    """Return the earliest time of a request for a pod whose answer can settle the doubt."""
    over_s = last_bind_s(doubt, bounds)
    return over_s if now_s >= over_s else doubt.since_s + bounds.settle_s


def unproven(doubt: Doubt, unbound: Unbound, bounds: Bounds) -> tuple[PodRecord, ...]:
    """Return the unbound pods of a doubt that are not proven safe yet."""
    return tuple(pod for pod in _about(doubt, unbound) if not _is_proven(pod, doubt, bounds))


def is_known(doubt: Doubt, unbound: Unbound) -> bool:
    """Whether the watch shows the pod of a doubt without a node."""
    return doubt.pod is None or doubt.pod.uid in unbound


def _about(doubt: Doubt, unbound: Unbound) -> Iterable[PodRecord]:
    if doubt.pod is None:
        return (pod for pod in unbound.values() if pod.first_seen_s <= all_known_s(doubt))
    return (unbound[doubt.pod.uid],) if doubt.pod.uid in unbound else ()


def _is_proven(pod: PodRecord, doubt: Doubt, bounds: Bounds) -> bool:
    """Whether an attempt for the pod ended after kube-scheduler must have seen that the reservation was gone, or the
    server showed the pod without a node after the longest bind, or after the time in which an attempt names its node.
    """
    is_named_nowhere = doubt.is_guess and not pod.nominated and pod.nominated_s < doubt.since_s
    over_s = doubt.since_s + bounds.settle_s if is_named_nowhere else last_bind_s(doubt, bounds)
    was_never_tried = pod.is_gated and pod.requested_s >= doubt.since_s
    is_tried_since = pod.spoke_s >= doubt.since_s + bounds.settle_s
    return was_never_tried or is_tried_since or pod.requested_s >= over_s
