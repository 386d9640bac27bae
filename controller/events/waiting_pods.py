"""Keeps track of the pods whose claims cannot be allocated now, and sends their users Events with the reason, not too
often."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from dracaena.api import limits
from dracaena.api.objects import Pod
from dracaena.api.reasons import cut_bytes, with_help, without_help
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.process.clock import Clock

SHORTEST_GAP_S: Final = 10.0
"""Shortest time between two Events about one pod, and between working out its reason twice, however fast things change:
Events are for people. A pod of which nothing has been said yet gets the reason of its next decision at once."""

REPEAT_S: Final = 300.0
"""An unchanged reason is sent again after this time, so that `kubectl describe` shows that it still holds."""

MAX_REPORTED: Final = 10
"""Pods whose reason is worked out and sent between two calls of report_due(), that is, per second: half of the Events
that kube.events writes. Working out a reason, which equal pods share, takes some milliseconds at 5,000 nodes, in which
no decision is made, so most of the time is left for decisions. Pods whose last Event is oldest come first: of 1,000
waiting pods the last gets one after 100 s."""

TELL_S: Final = 0.1
"""The most that working out reasons may take per second: it needs the same lock as decisions."""

EVENT_REASON: Final = "WaitingForGPUs"

MOST_KEPT_LETTERS: Final = 4 * limits.EVENT_NOTE_BYTES
"""Of the reasons of one pod, which the page shows; what is longer is kept as the text of its Event. Some ten reasons
take a quarter of this, and of 5,000 pods each may have others."""

Why = Reasons | Callable[[], Reasons | None]
"""Reasons, or a function that works them out and returns None when the pod no longer seems to wait for them."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Waiting:
    pod: Pod
    reason: str
    why: Why
    send: bool
    send_from_s: float
    """Steady time before which no Event is sent."""
    since_s: float
    """Steady time at which the pod was first reported."""
    stale: bool = True
    """Whether the pod has been reported again since the reason was last worked out."""
    explained_s: float | None = None
    """When the reason was last worked out."""
    told: Reasons | None = None
    told_text: str | None = None
    """The same as it is in the Event."""
    told_s: float = 0.0


class WaitingPods:
    """One entry per waiting pod, under a lock of its own. While the lock is held, Events are only queued and no
    reason is worked out."""

    def __init__(self, events: EventSink, clock: Clock, metrics: ControllerMetrics) -> None:
        self._events = events
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._by_key: dict[str, _Waiting] = {}
        self._counts: Counter[str] = Counter()
        self._may_send = MAX_REPORTED
        self._telling_s = 0.0

    def report(
        self,
        pod: Pod,
        reason: str,
        why: str | Callable[[], Reasons | None],
        *,
        send: bool,
        patience_s: float = 0.0,
    ) -> None:
        """Note that a pod waits. `reason` is short, for metrics; `why` is for people, and only sent when `send` is set.

        `patience_s`: the reason is sent only if it still holds after this time. report_due() sends it then, as well as
        the reasons that exceed MAX_REPORTED pods in a second. A `why` that has to be worked out is called here or in
        report_due(), with no lock held.
        """
        reasons: Why = Reasons(cut_bytes(why, limits.EVENT_NOTE_BYTES)) if isinstance(why, str) else why
        with self._lock:
            known = self._by_key.get(pod.key)
            if known is not None:
                self._count(known.reason, -1)
            now_s = self._clock.monotonic()
            send_from_s = now_s + patience_s
            if known is None or known.pod.metadata.uid != pod.metadata.uid:
                known = self._by_key[pod.key] = _Waiting(pod, reason, reasons, send, send_from_s, now_s)
            elif _differ((known.reason, known.why), (reason, reasons)):
                known.send_from_s = send_from_s
            if known.reason != reason or known.told_text is None:
                known.explained_s = None
            known.pod, known.reason, known.why, known.send, known.stale = pod, reason, reasons, send, True
            self._count(reason, 1)
            due = self._is_due(known) and self._may_send > 0 and self._telling_s < TELL_S
            self._may_send -= due
        if due:
            self._send(known)

    def waited_s(self, pod: Pod) -> float:
        """Return for how many seconds a pod has been known to wait; 0 when it does not."""
        with self._lock:
            known = self._by_key.get(pod.key)
            if known is None or known.pod.metadata.uid != pod.metadata.uid:
                return 0.0
            return self._clock.monotonic() - known.since_s

    def forget(self, key: str) -> None:
        """Note that a pod no longer waits."""
        with self._lock:
            known = self._by_key.pop(key, None)
            if known is not None:
                self._count(known.reason, -1)

    def waiting(self) -> tuple[tuple[str, str, Reasons | None, float], ...]:
        """Return, in no order, for each waiting pod its key, the short reason, the reasons for people and the steady
        time since which it has been known to wait. The reasons for people are None while they are worked out.

        Decisions wait for the lock, so it is held only to copy references; the two reasons of a pod that change at this
        moment may not belong together.
        """
        with self._lock:
            known = list(self._by_key.items())
        return tuple((key, one.reason, _known(one), one.since_s) for key, one in known)

    def oldest_age_s(self) -> float:
        """Return the seconds since the creation of the oldest waiting pod, 0 when none waits."""
        with self._lock:
            created = (waiting.pod.metadata.creation_timestamp for waiting in self._by_key.values())
            oldest = min((text for text in created if text is not None), default=None)
        if oldest is None:
            return 0.0
        return max((self._clock.now() - datetime.fromisoformat(oldest)).total_seconds(), 0.0)

    def report_due(self) -> None:
        """Tell the reasons that were held back; call it about once a second."""
        with self._lock:
            due = [waiting for waiting in self._by_key.values() if self._is_due(waiting)]
            due.sort(key=_explained_longest_ago)
            self._may_send = MAX_REPORTED - len(due[:MAX_REPORTED])
            self._telling_s = 0.0
        for waiting in due[:MAX_REPORTED]:
            if self._telling_s >= TELL_S:
                break  # next time the others come first, as their last Event is oldest
            self._send(waiting)

    def _is_due(self, waiting: _Waiting) -> bool:
        """Whether there may be a reason to send now."""
        now_s = self._clock.monotonic()
        if now_s < waiting.send_from_s:
            return False
        if waiting.explained_s is not None and now_s - waiting.explained_s < SHORTEST_GAP_S:
            return False
        if waiting.told_text is None:
            return True
        return now_s - waiting.told_s >= (SHORTEST_GAP_S if waiting.stale else REPEAT_S)

    def _send(self, waiting: _Waiting) -> None:
        with self._lock:
            reason, why = waiting.reason, waiting.why
            waiting.stale, waiting.explained_s = False, self._clock.monotonic()
        began_s = self._clock.monotonic()
        found = why if isinstance(why, Reasons) else why()
        with self._lock:
            self._telling_s += self._clock.monotonic() - began_s
            if found is None or self._by_key.get(waiting.pod.key) is not waiting or waiting.reason != reason:
                return
            text = with_help(found.text, found.remedies)
            waiting.told = found if len(found.text) <= MOST_KEPT_LETTERS else Reasons(*without_help(text))
            now_s = self._clock.monotonic()
            if text == waiting.told_text and now_s - waiting.told_s < REPEAT_S:
                return
            waiting.told_text, waiting.told_s = text, now_s
            if waiting.send:
                log.info("pod waits", pod=waiting.pod.key, reason=waiting.reason, why=text)
                self._events.record(waiting.pod, "Warning", EVENT_REASON, text, latest=True)
            else:
                log.debug("pod waits for a claim that may not be ours", pod=waiting.pod.key, why=text)

    def _count(self, reason: str, change: int) -> None:
        self._counts[reason] += change
        self._metrics.queue.waiting_pods.labels(reason).set(self._counts[reason])


def _known(waiting: _Waiting) -> Reasons | None:
    return waiting.why if isinstance(waiting.why, Reasons) else waiting.told


def _differ(old: tuple[str, Why], new: tuple[str, Why]) -> bool:
    """Whether two reasons may read differently. Functions return the same as long as the short reason is equal."""
    if isinstance(old[1], Reasons) or isinstance(new[1], Reasons):
        return old != new
    return old[0] != new[0]


def _explained_longest_ago(waiting: _Waiting) -> tuple[float, str]:
    return (-1.0 if waiting.explained_s is None else waiting.explained_s, waiting.pod.key)
