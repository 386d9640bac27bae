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

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._followers: list[Callable[[], None]] = []
        self._waiting = 0
        self.count = 0
        """How many claims were unprepared. Read this before checking whether a device is free."""

    def subscribe(self, follower: Callable[[], None]) -> None:
        """Have a function called after each; it must not block. Call this before the first."""
        self._followers.append(follower)

    def note(self) -> None:
        """Record that a claim was unprepared."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()
        for follower in self._followers:
            follower()

    def wait(self, seen: int, deadline_s: float) -> bool:
        """Wait for more than `seen` unprepares, at most LOOK_EVERY_S; False: time is up, or too many calls wait."""
        with self._condition:
            now_s = self._clock.monotonic()
            if now_s >= deadline_s or self._waiting >= MAX_WAITING:
                return False
            self._waiting += 1
            try:
                look_at_s = min(deadline_s, now_s + LOOK_EVERY_S)
                while self.count == seen and (left_s := look_at_s - self._clock.monotonic()) > 0:
                    self._clock.wait(self._condition, left_s)
            finally:
                self._waiting -= 1
            return True
