"""Pods whose claims cannot be allocated now: which they are, and that their users hear why, but not too often."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink
from dracaena.process.clock import Clock

SHORTEST_GAP_S: Final = 10.0
"""Between two Events about one pod, however fast the reason changes: Events are for people."""

REPEAT_S: Final = 300.0
"""An unchanged reason is told again after this: `kubectl describe` shows that it still holds."""

EVENT_REASON: Final = "WaitingForGPUs"

log = structlog.get_logger()


@dataclass(slots=True)
class _Waiting:
    pod: Pod
    reason: str
    text: str
    tell: bool
    tell_from_s: float = 0.0
    """Steady time before which nothing is told."""
    told_text: str | None = None
    told_s: float = 0.0


class WaitingPods:
    """One entry a waiting pod. One lock of its own; Events are only queued under it."""

    def __init__(self, events: EventSink, clock: Clock, metrics: ControllerMetrics) -> None:
        self._events = events
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._by_key: dict[str, _Waiting] = {}
        self._counts: Counter[str] = Counter()

    def report(self, pod: Pod, reason: str, text: str, *, tell: bool, patience_s: float = 0.0) -> None:
        """A pod waits. `reason` is short, for metrics; `text` is for people, and only told when `tell` is set.

        `patience_s`: told only when this text still holds after that time; tell_due() does it.
        """
        with self._lock:
            known = self._by_key.get(pod.key)
            if known is not None:
                self._count(known.reason, -1)
            if known is None or known.pod.metadata.uid != pod.metadata.uid:
                known = self._by_key[pod.key] = _Waiting(pod, reason, "", tell)
            if known.text != text:
                known.tell_from_s = self._clock.monotonic() + patience_s
            known.pod, known.reason, known.text, known.tell = pod, reason, text, tell
            self._count(reason, 1)
            self._tell_if_due(known)

    def forget(self, key: str) -> None:
        """A pod waits no more."""
        with self._lock:
            known = self._by_key.pop(key, None)
            if known is not None:
                self._count(known.reason, -1)

    def keys(self) -> frozenset[str]:
        """Return the keys of all waiting pods."""
        with self._lock:
            return frozenset(self._by_key)

    def tell_due(self) -> None:
        """Tell what had to be held back; call it about once a second."""
        with self._lock:
            for key in sorted(self._by_key):
                self._tell_if_due(self._by_key[key])

    def _tell_if_due(self, waiting: _Waiting) -> None:
        now_s = self._clock.monotonic()
        first = waiting.told_text is None
        gap_s = SHORTEST_GAP_S if waiting.text != waiting.told_text else REPEAT_S
        if now_s < waiting.tell_from_s or (not first and now_s - waiting.told_s < gap_s):
            return
        waiting.told_text, waiting.told_s = waiting.text, now_s
        if waiting.tell:
            log.info("pod waits", pod=waiting.pod.key, reason=waiting.reason, why=waiting.text)
            self._events.record(waiting.pod, "Warning", EVENT_REASON, waiting.text)
        else:
            log.debug("pod waits for a claim that may not be ours", pod=waiting.pod.key, why=waiting.text)

    def _count(self, reason: str, change: int) -> None:
        self._counts[reason] += change
        self._metrics.waiting_pods.labels(reason).set(self._counts[reason])
