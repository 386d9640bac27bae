"""Keys that wait to be worked on: each at most once, never two workers on one key, growing waits after failures."""

from __future__ import annotations

import heapq
import random
import threading
from collections import OrderedDict
from typing import Final

from dracaena.process.clock import Clock

FIRST_RETRY_S: Final = 0.05
"""A conflict or a lost connection is often over at once."""

LONGEST_RETRY_S: Final = 30.0
"""An API server that is away is asked twice a minute for each key, not more."""


class WorkQueue:
    """Hands out keys in the order of their arrival. Safe from many threads.

    A key that is added while a worker has it is handed out again after done(), so no change is lost. One lock guards
    everything; it is never held while work is done.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._condition = threading.Condition()
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._due_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._closed = False

    def add(self, key: str) -> None:
        """Have a key worked on soon. A key that already waits stays where it is."""
        with self._condition:
            self._add(key)

    def add_after(self, key: str, delay_s: float) -> None:
        """Have a key worked on after a time; of several times the earliest holds."""
        with self._condition:
            due_s = self._clock.monotonic() + delay_s
            if self._due_s.get(key, float("inf")) <= due_s:
                return
            self._due_s[key] = due_s
            heapq.heappush(self._later, (due_s, key))
            self._condition.notify_all()  # who sleeps may have to wake earlier now

    def retry(self, key: str) -> float:
        """Have a failed key worked on again, each time later than before; return the wait in seconds."""
        with self._condition:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # Between half the wait and all of it, so that keys that failed together do not come back together.
            longest = min(FIRST_RETRY_S * 2.0 ** min(failures, 20), LONGEST_RETRY_S)
            delay_s = longest * self._rng.uniform(0.5, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: str) -> None:
        """Start again with short waits: the key went well."""
        with self._condition:
            self._failures.pop(key, None)

    def get(self) -> str | None:
        """Wait for a key and take it; None after close(). Each key taken needs a done()."""
        with self._condition:
            while not self._closed:
                self._promote()
                if self._ready:
                    key, _ = self._ready.popitem(last=False)
                    self._working.add(key)
                    return key
                next_due_s = self._later[0][0] - self._clock.monotonic() if self._later else None
                self._clock.wait(self._condition, next_due_s)
            return None

    def done(self, key: str) -> None:
        """Give a key back."""
        with self._condition:
            self._working.discard(key)
            if key in self._again:
                self._again.discard(key)
                self._add(key)

    def close(self) -> None:
        """Wake all workers; get() returns None from now on."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def __len__(self) -> int:
        """Keys that are ready or wait for their time."""
        with self._condition:
            return len(self._ready) + len(self._again) + len(self._due_s)

    def _add(self, key: str) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._condition.notify()

    def _promote(self) -> None:
        """Make ready what is due. An entry that add_after replaced by an earlier one is passed over."""
        now_s = self._clock.monotonic()
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
            if self._due_s.get(key) == due_s:
                del self._due_s[key]
                self._add(key)
