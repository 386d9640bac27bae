"""Waits for devices whose last claim is still being unprepared: kubelet may prepare the next pod before it has
unprepared the previous one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dracaena.process.clock import Clock

LOOK_EVERY_S = 0.5
"""Pause between checks for what the other instance of the plugin did during an upgrade; our own unprepares wake waiting
calls at once."""

MAX_WAITING = 2
"""Most calls that may wait at once. Each occupies one of the server's workers (adapters.kubelet.grpc_server), and some
must be left for the awaited unprepare and for the calls of other claims. Further calls fail at once; kubelet retries
them."""


class Unprepares:
    """Counts the claims that were unprepared. Safe from many threads."""

    def __init__(self, clock: Clock, on_note: Callable[[], None] = lambda: None) -> None:
        """`on_note` is called after each; it must not block."""
        self._clock = clock
        self._on_note = on_note
        self._condition = threading.Condition()
        self._count = 0
        self._waiting = 0

    def note(self) -> None:
        """Record that a claim was unprepared."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()
        self._on_note()

    def count(self) -> int:
        """Return how many claims were unprepared. Read this before checking whether a device is free."""
        with self._condition:
            return self._count

    def deadline_s(self, within_s: float) -> float:
        """Return the deadline to pass to wait()."""
        return self._clock.monotonic() + within_s

    def countdown(self, deadline_s: float) -> Callable[[], float]:
        """Return a function that returns the seconds left until the deadline, 0 once it has passed."""
        return lambda: max(0.0, deadline_s - self._clock.monotonic())

    def wait(self, seen: int, deadline_s: float) -> bool:
        """Wait for more than `seen` unprepares, at most LOOK_EVERY_S; False: time is up, or too many calls wait."""
        with self._condition:
            now_s = self._clock.monotonic()
            if now_s >= deadline_s or self._waiting >= MAX_WAITING:
                return False
            self._waiting += 1
            try:
                look_at_s = min(deadline_s, now_s + LOOK_EVERY_S)
                while self._count == seen and (left_s := look_at_s - self._clock.monotonic()) > 0:
                    self._clock.wait(self._condition, left_s)
            finally:
                self._waiting -= 1
            return True
