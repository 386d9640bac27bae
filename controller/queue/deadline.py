"""How long one piece of work may hold the cluster's lock, by the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from dracaena.process.clock import Clock

LEAST_STEPS: Final = 10_000
"""Steps (allocation.effort, about a microsecond each) that work may take whatever the clock says: who has done less was
kept waiting by the machine, so it is not heavy, and mostly ends soon."""

LATEST: Final = 3
"""Work of which even that takes so many times its limit is ended all the same."""

TURN_S: Final = 0.002
"""What is worked out in turns lets go of the lock after this long: a few ordinary decisions."""

LONGEST_TURN_S: Final = 0.05
"""What one node may cost: as long as a decision."""

LONGEST_WORK_S: Final = 0.5
"""What all turns of one work may take: ten times what the reasons of 10,000 nodes do."""


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
        self._began_s = self._clock.monotonic()
        return _over_after(self._limit_s, self._clock, self._began_s)

    def end(self) -> None:
        """Note that the work is done."""
        self._ended_s = self._clock.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds from begin() to end(), or until now; 0 before."""
        if self._began_s is None:
            return 0.0
        return (self._clock.monotonic() if self._ended_s is None else self._ended_s) - self._began_s


class TurnDeadline:
    """Lets long work go on in short turns (allocation.explanation.Pace). For one piece of work in one thread."""

    def __init__(self, clock: Clock, limit_s: float = LONGEST_WORK_S) -> None:
        self._clock = clock
        self._left_s = limit_s
        self._began_s = 0.0
        self._never = threading.Event()

    def begin_turn(self) -> Callable[[int], bool]:
        """Begin a turn; return a function that tells whether one node, or all turns, took too long, as
        Deadline.begin()."""
        self._began_s = self._clock.monotonic()
        return _over_after(min(self._left_s, LONGEST_TURN_S), self._clock, self._began_s)

    def turn_is_up(self) -> bool:
        """Tell whether others should have a turn."""
        used_s = self._clock.monotonic() - self._began_s
        if used_s < TURN_S:
            return False
        self._left_s -= used_s
        return True

    def rest(self) -> None:
        """Wait for as long as a turn: a thread that takes a lock again at once gets it before those that wait."""
        self._clock.sleep_until_set(self._never, TURN_S)


def _over_after(limit_s: float, clock: Clock, began_s: float) -> Callable[[int], bool]:
    done = 0

    def is_over(steps: int) -> bool:
        nonlocal done
        done += steps
        return clock.monotonic() - began_s >= (limit_s if done >= LEAST_STEPS else limit_s * LATEST)

    return is_over
