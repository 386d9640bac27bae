"""How long one piece of work may hold the cluster's lock, by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dracaena.process.clock import Clock

LEAST_STEPS: Final = 10_000
"""Steps (allocation.effort, about a microsecond each) that work may take whatever the clock says: who has done less was
kept waiting by the machine, so it is not heavy, and mostly ends soon."""

LATEST: Final = 3
"""Work of which even that takes so many times its limit is ended all the same."""


class Deadline:
    """Starts when the work does, so that waiting for a lock does not count. For one piece of work in one thread."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._ended_s: float | None = None

    def begin(self) -> Callable[[int], bool]:
        """Start; return a function that takes the steps since it was last called, and tells whether the time is over.

        That is after the limit if more than LEAST_STEPS were done by then, else with these, or after LATEST limits.
        """
        began_s = self._began_s = self._clock.monotonic()
        done = 0

        def is_over(steps: int) -> bool:
            nonlocal done
            done += steps
            used_s = self._clock.monotonic() - began_s
            return used_s >= (self._limit_s if done >= LEAST_STEPS else self._limit_s * LATEST)

        return is_over

    def end(self) -> None:
        """Note that the work is done."""
        self._ended_s = self._clock.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds from begin() to end(), or until now; 0 before."""
        if self._began_s is None:
            return 0.0
        return (self._clock.monotonic() if self._ended_s is None else self._ended_s) - self._began_s
