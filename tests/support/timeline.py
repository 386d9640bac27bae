"""Several machines on one time line: each runs on a thread of its own, one at a time, in an order that a seed decides.

A thread runs until it waits; then the one whose time is next goes on. So every order of events that times allow can be
made to happen, and the same times give the same run.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


class EndOfTime(BaseException):
    """Raised in every machine that still waits when the time line ends."""


class Timeline:
    """True time, in seconds from 0.

    Whoever waits wakes the next one itself: a change of threads costs more than most of what a machine does, and a
    machine that is next again goes on without one.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._order = itertools.count()
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._back = _held()
        self._until_s = 0.0
        self._look: Callable[[], None] = lambda: None
        self._ended = False
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def spawn(self, work: Callable[[], None]) -> None:
        """Have a machine do its work from now on."""
        turn = self._wait_s(0.0)

        def run() -> None:
            turn.acquire()
            try:
                if not self._ended:
                    work()
            except EndOfTime:
                pass
            except BaseException as error:  # noqa: BLE001 - told by the thread that runs the time line
                self.failures.append(error)
            self._pass_on()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def sleep(self, seconds: float) -> None:
        """Called by a machine: let this much time pass, and others act in it."""
        turn = self._wait_s(max(seconds, 0.0))
        self._pass_on()
        turn.acquire()
        if self._ended:
            raise EndOfTime

    def run(self, until_s: float, *, look: Callable[[], None] = lambda: None) -> None:
        """Let time pass until nobody has anything to do before `until_s`; `look` is called between any two turns, by
        the thread of the machine that has had its turn."""
        self._until_s, self._look = until_s, look
        try:
            if self._goes_on():
                self._turn()
                self._back.acquire()
        finally:
            self._end()
        if self.failures:
            raise self.failures[0]

    def _wait_s(self, seconds: float) -> threading.Lock:
        """Return a lock that is released when this much time has passed."""
        turn = _held()
        heapq.heappush(self._waiting, (self.now_s + seconds, next(self._order), turn))
        return turn

    def _goes_on(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] <= self._until_s and not self.failures

    def _pass_on(self) -> None:
        """End a turn: wake the machine whose time is next, or who runs the time line if there is none."""
        if not self._ended:
            try:
                self._look()
            except BaseException as error:  # noqa: BLE001 - told by the thread that runs the time line
                self.failures.append(error)
        if self._ended or not self._goes_on():
            self._back.release()
        else:
            self._turn()

    def _end(self) -> None:
        """Have all machines end, so that none is left to the next test."""
        self._ended = True
        while self._waiting:
            self._turn()
            self._back.acquire()
        for thread in self._threads:
            thread.join()

    def _turn(self) -> None:
        due_s, _, turn = heapq.heappop(self._waiting)
        self.now_s = max(self.now_s, due_s)
        turn.release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(frozen=True, slots=True)
class Interval:
    """A time of a fault, in true seconds."""

    begin_s: float
    end_s: float

    def holds(self, moment_s: float) -> bool:
        return self.begin_s <= moment_s < self.end_s

    def before(self, moment_s: float) -> float:
        """How much of it lies before a moment."""
        return max(0.0, min(moment_s, self.end_s) - self.begin_s)


class MachineClock:
    """Implements dracaena.process.clock.Clock on a time line, as one machine sees it.

    Its steady clock starts anywhere, may be a little fast or slow, and stands still while the machine is suspended.
    Its time of day goes on then, and jumps as the test says: `jumps` are (true time, seconds).
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        rate: float = 1.0,
        start_s: float = 0.0,
        suspended: Sequence[Interval] = (),
        jumps: Sequence[tuple[float, float]] = (),
    ) -> None:
        self._timeline = timeline
        self._rate = rate
        self._start_s = start_s
        self._suspended = suspended
        self._jumps = jumps

    def now(self) -> datetime:
        jumped_s = sum(by_s for at_s, by_s in self._jumps if at_s <= self._timeline.now_s)
        return START + timedelta(seconds=self._timeline.now_s + jumped_s)

    def worked(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        awake_s = self._timeline.now_s - sum(pause.before(self._timeline.now_s) for pause in self._suspended)
        return self._start_s + awake_s * self._rate

    @property
    def true_s(self) -> float:
        """The time line's own time, which no machine knows."""
        return self._timeline.now_s

    def sleep(self, true_s: float) -> None:
        """Let true time pass, and all of a suspension that it ends in."""
        self._timeline.sleep(true_s)
        for pause in self._suspended:
            if pause.holds(self._timeline.now_s):
                self._timeline.sleep(pause.end_s - self._timeline.now_s)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        raise AssertionError("an election waits for an event, never on a condition")

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.sleep(timeout_s / self._rate)
        return event.is_set()
