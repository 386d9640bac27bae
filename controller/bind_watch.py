"""What kube-scheduler does with pods, as far as the watches show it.

It tells us nothing directly: what it has tried and refused has to be read from the conditions that it writes, from the
pods that it binds, and from the order in which it takes pods (by priority, then by the time they came).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.api.podclaims import pod_claims
from dracaena.process.clock import Clock

SETTLE_S: Final = 5.0
"""What is said within this time after an allocation may come from a try that began before it: kube-scheduler had not
seen it, or the two watches of ours ran apart. Of 200 pods the latest such word came 0.3 s late, of 300 on a busy
machine 0.7 s."""

QUICK_S: Final = 5.0
"""A pod that is tried within this time after it came shows that kube-scheduler's queue is short. One that was only
allocated a moment ago shows nothing: it may have stood there for long."""

TURN_S: Final = 15.0
"""While the queue is short a pod has its turn after 10 s at the latest (kube-scheduler's longest back-off), and
SETTLE_S more are for watches that are behind."""

TURNS_KEPT: Final = 64
TURN_EVERY_S: Final = 1.0
"""Quick turns are remembered, at most one a second: enough to find two that are TURN_S apart."""

NOT_SEEN: Final = "cannot allocate all claims"
"""kube-scheduler's words for a node when a claim is not allocated (1.34 to 1.36). About a pod whose claims are all
allocated they can only be old."""

ELSEWHERE: Final = "resourceclaim not available on the node"
"""Its words for a node that would do but for an allocated claim of the pod, which belongs to another node."""

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class Said:
    """What kube-scheduler last said about a pod that it did not bind (its condition PodScheduled)."""

    reason: str
    message: str

    @property
    def others_would_do(self) -> bool:
        """Whether some node was refused only because the devices are on another one."""
        return ELSEWHERE in self.message


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a pod stands that has its devices and is not bound."""

    allocated_s: float
    """Steady time at which the last of the claims was shown to be allocated."""
    unreserved_s: float | None
    """Steady time from which the pod was shown beside one that is reserved for nobody; None when all are reserved."""
    said: Said | None
    said_s: float | None
    """Steady time at which that was shown, if it was said by a kube-scheduler that knew of the allocation."""
    passed_over: bool
    """Whether pods that are no more important were tried as soon as they came, twice since the allocation and TURN_S
    apart: this one had its turn in between, or is to get none before something changes."""
    quiet_s: float
    """Since that kube-scheduler was last seen at work."""


@dataclass(slots=True)
class _Unbound:
    uid: str
    first_seen_s: float
    said: Said | None
    said_s: float


@dataclass(frozen=True, slots=True)
class _Shown:
    claim_uid: str
    timestamp: str | None
    shown_s: float
    unreserved_s: float | None


class BindWatch:
    """Takes in pods and claims from the reflectors' threads. One lock of its own, and it calls nobody.

    Times are those at which the watch showed something, never those of other machines. What a new process finds at its
    start counts as shown then. Cost: a few look-ups for each change; one entry for each unbound pod and each
    allocated claim.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unbound: dict[str, _Unbound] = {}
        self._shown: dict[str, _Shown] = {}
        self._quick_turns: dict[tuple[str, int], deque[float]] = {}
        self._at_work_s: dict[str, float] = {}
        self._began_s = clock.monotonic()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in any pod, also one without claims: it stands in the same queue."""
        subject = new or old
        if subject is None:
            return
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._unbound.get(subject.key)
            if known is not None and known.uid != subject.metadata.uid:
                known = None
            if new is None or new.spec.node_name or new.status.phase in _FINISHED:
                self._unbound.pop(subject.key, None)
                if new is not None and known is not None and new.spec.node_name:
                    self._note_turn(new, now_s - known.first_seen_s, now_s)
                return
            said = _said(new)
            if known is None:
                self._unbound[subject.key] = _Unbound(new.metadata.uid, now_s, said, now_s)
            elif said != known.said:
                if said is not None and known.said is None:
                    self._note_turn(new, now_s - known.first_seen_s, now_s)
                known.said, known.said_s = said, now_s
                self._at_work_s[new.spec.scheduler_name] = now_s

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a claim."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None or new.status.allocation is None:
                self._shown.pop(subject.key, None)
                return
            timestamp, now_s = new.status.allocation.allocation_timestamp, self._clock.monotonic()
            known = self._shown.get(new.key)
            if known is None or (known.claim_uid, known.timestamp) != (new.metadata.uid, timestamp):
                known = _Shown(new.metadata.uid, timestamp, now_s, None)
            unreserved_s = None if new.status.reserved_for else _first(known.unreserved_s, now_s)
            self._shown[new.key] = replace(known, unreserved_s=unreserved_s)

    def standing(self, pod: Pod, ours: Iterable[str]) -> Standing | None:
        """Return where a pod stands, None when it is bound or gone, or some claim of `ours` (keys) is not allocated.

        Further claims of the pod may wait for devices of other drivers.
        """
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._unbound.get(pod.key)
            shown = [self._shown.get(key) for key in ours]
            found = [entry for entry in shown if entry is not None]
            if known is None or known.uid != pod.metadata.uid or not found or len(found) < len(shown):
                return None
            allocated_s = max(entry.shown_s for entry in found)
            whole = all((claim.key or "") in self._shown for claim in pod_claims(pod))
            unreserved = [entry.unreserved_s for entry in found if entry.unreserved_s is not None]
            return Standing(
                allocated_s=allocated_s,
                unreserved_s=max(known.first_seen_s, *unreserved) if unreserved else None,
                said=known.said,
                said_s=known.said_s if _knew(known, allocated_s, whole=whole) else None,
                passed_over=self._is_passed_over(pod, allocated_s),
                quiet_s=now_s - self._at_work_s.get(pod.spec.scheduler_name, self._began_s),
            )

    def said(self, pod: Pod) -> Said | None:
        """Return what kube-scheduler last said about an unbound pod."""
        with self._lock:
            known = self._unbound.get(pod.key)
            return known.said if known is not None and known.uid == pod.metadata.uid else None

    def is_unbound(self, key: str, uid: str) -> bool:
        """Return whether a pod is there, waits to be bound, and is this one."""
        with self._lock:
            known = self._unbound.get(key)
            return known is not None and known.uid == uid

    def _note_turn(self, pod: Pod, after_s: float, now_s: float) -> None:
        """A pod was bound or tried for the first time, so long after it came."""
        self._at_work_s[pod.spec.scheduler_name] = now_s
        if after_s > QUICK_S:
            return
        turns = self._quick_turns.setdefault((pod.spec.scheduler_name, pod.spec.priority), deque(maxlen=TURNS_KEPT))
        if not turns or now_s - turns[-1] >= TURN_EVERY_S:
            turns.append(now_s)

    def _is_passed_over(self, pod: Pod, since_s: float) -> bool:
        """Return whether there were two quick turns since a time, TURN_S apart, of pods no more important than this.

        One is not enough: when kube-scheduler comes back from a restart, or hung, its queue is in no order.
        """
        turns = [
            turn_s
            for (scheduler, priority), turns in self._quick_turns.items()
            if scheduler == pod.spec.scheduler_name and priority <= pod.spec.priority
            for turn_s in turns
            if turn_s >= since_s
        ]
        return bool(turns) and max(turns) - min(turns) >= TURN_S


def _first(earlier_s: float | None, now_s: float) -> float:
    return now_s if earlier_s is None else earlier_s


def _knew(known: _Unbound, allocated_s: float, *, whole: bool) -> bool:
    """Return whether what was said about a pod comes from a kube-scheduler that had seen the allocation.

    `whole`: all claims of the pod are allocated. If some other node would do then, it clears the allocation by itself.
    """
    if known.said is None or (whole and NOT_SEEN in known.said.message):
        return False
    settle_s = 0.0 if known.said.others_would_do and not whole else SETTLE_S
    return known.said_s > allocated_s + settle_s


def _said(pod: Pod) -> Said | None:
    """Return what kube-scheduler says; that a pod is gated is said by the API server."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False" and condition.reason != "SchedulingGated":
            return Said(condition.reason, condition.message)
    return None
