"""Whether kube-scheduler is working, and which pods it must have tried, judged by the pods that it binds or reports on.

It tells us nothing directly. It takes pods by priority, then in order of arrival, so a pod has been passed over if it
was not tried while later ones were.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from dracaena.api.objects import Pod
from dracaena.controller.lifecycle.pod_record import PodRecord

QUICK_S: Final = 5.0
"""A pod that is tried this soon after it arrived shows that kube-scheduler's queue is short. The time since its
allocation would show nothing: the pod may have been queued long before that."""

TURN_S: Final = 15.0
"""While the queue is short, a pod has its turn within 10 s (kube-scheduler's longest back-off); another 5 s allow for
watches that lag."""

TURNS_KEPT: Final = 64
TURN_EVERY_S: Final = 1.0
"""Interval between the quick turns that we keep: at most one a second is enough to find two that are TURN_S apart."""


class SchedulerProgress:
    """What we saw of each scheduler. Part of its owner, and used under the owner's lock. Times are readings of our
    monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._quick: dict[tuple[str, int], deque[float]] = {}
        self._at_work_s: dict[str, float] = {}

    def see(self, before: PodRecord | None, pod: Pod | None, after: PodRecord | None, now_s: float) -> None:
        """Take in a change of any pod, with or without claims: all are in the same queue. `before` and `after` are its
        records while it has no node."""
        if pod is None or before is None:
            return
        if pod.spec.node_name:
            self._turn(pod, now_s - before.first_seen_s, now_s)
        elif after is not None and after.said != before.said:
            if before.said is None:
                self._turn(pod, now_s - before.first_seen_s, now_s)
            self._at_work_s[pod.spec.scheduler_name] = now_s

    def quiet_s(self, scheduler: str, now_s: float) -> float:
        """Return the seconds since a scheduler was last seen working."""
        return now_s - self._at_work_s.get(scheduler, self._began_s)

    def passed_over(self, pod: Pod, since_s: float) -> bool:
        """Return whether pods of no higher priority have had two quick turns, TURN_S apart, since a time.

        One is not enough: after a restart or a hang, kube-scheduler's queue is in no particular order.
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
        """Note that a pod was bound or first tried this long after it arrived."""
        self._at_work_s[pod.spec.scheduler_name] = now_s
        if after_s > QUICK_S:
            return
        turns = self._quick.setdefault((pod.spec.scheduler_name, pod.spec.priority), deque(maxlen=TURNS_KEPT))
        if not turns or now_s - turns[-1] >= TURN_EVERY_S:
            turns.append(now_s)
