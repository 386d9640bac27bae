"""How long one piece of work may hold the cluster's lock, by the clock."""

from __future__ import annotations

from collections.abc import Callable

from dracaena.process.clock import Clock


class Deadline:
    """Starts when the work does, so that waiting for a lock does not count. For one piece of work in one thread."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._ended_s: float | None = None

    def begin(self) -> Callable[[int], bool]:
        """Start; return a function that tells whether the time is over, whatever the steps."""
        began_s = self._began_s = self._clock.monotonic()
        return lambda _steps: self._clock.monotonic() - began_s >= self._limit_s

    def end(self) -> None:
        """Note that the work is done."""
        self._ended_s = self._clock.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds from begin() to end(), or until now; 0 before."""
        if self._began_s is None:
            return 0.0
        return (self._clock.monotonic() if self._ended_s is None else self._ended_s) - self._began_s
