"""Whether kube-scheduler is at work, and whom it must have tried, from the pods that it binds and speaks of.

It tells us nothing directly. It takes pods by priority, then by the time they came; so who was not tried while later
ones were has been passed over.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dracaena.api.objects import Pod
from dracaena.controller.lifecycle.pod_record import PodRecord

QUICK_S: Final = 5.0
"""A pod that is tried within this time after it came shows that kube-scheduler's queue is short. One that was only
just allocated shows nothing: it may have been queued for a long time."""

TURN_S: Final = 15.0
"""While the queue is short a pod has its turn after 10 s at the latest (kube-scheduler's longest back-off), and
5 s more are for watches that are behind."""

TURNS_KEPT: Final = 64
TURN_EVERY_S: Final = 1.0
"""Quick turns that are kept, at most one a second: enough to find two that are TURN_S apart."""


class SchedulerTurns:
    """What was seen of each scheduler. A part of its owner, under the owner's lock. Times are readings of our
    monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._quick: dict[tuple[str, int], deque[float]] = {}
        self._at_work_s: dict[str, float] = {}

    def see(self, before: PodRecord | None, pod: Pod | None, after: PodRecord | None, now_s: float) -> None:
        """Take in any pod, also one without claims: it stands in the same queue. `before` and `after` are its records
        while it has no node."""
        if pod is None or before is None:
            return
        if pod.spec.node_name:
            self._turn(pod, now_s - before.first_seen_s, now_s)
        elif after is not None and after.said != before.said:
            if before.said is None:
                self._turn(pod, now_s - before.first_seen_s, now_s)
            self._at_work_s[pod.spec.scheduler_name] = now_s

    def quiet_s(self, scheduler: str, now_s: float) -> float:
        """Return the seconds since a scheduler was last seen at work."""
        return now_s - self._at_work_s.get(scheduler, self._began_s)

    def passed_over(self, pod: Pod, since_s: float) -> bool:
        """Return whether there were two quick turns since a time, TURN_S apart, of pods no more important than this.

        One is not enough: when kube-scheduler comes back from a restart, or hung, its queue is in no order.
        """
        turns = [
            turn_s
            for (scheduler, priority), turns in self._quick.items()
            if scheduler == pod.spec.scheduler_name and priority <= pod.spec.priority
            for turn_s in turns
            if turn_s >= since_s
        ]
        return bool(turns) and max(turns) - min(turns) >= TURN_S

    def _turn(self, pod: Pod, after_s: float, now_s: float) -> None:
        """A pod was bound or tried for the first time, so long after it came."""
        self._at_work_s[pod.spec.scheduler_name] = now_s
        if after_s > QUICK_S:
            return
        turns = self._quick.setdefault((pod.spec.scheduler_name, pod.spec.priority), deque(maxlen=TURNS_KEPT))
        if not turns or now_s - turns[-1] >= TURN_EVERY_S:
            turns.append(now_s)
