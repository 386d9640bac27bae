"""A clock that moves only when a test says so, the machine's with jumps, and one that hurries."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from dracaena.process.clock import SystemClock


class FakeClock:
    """Implements dracaena.process.clock.Clock. advance() moves the time and wakes everybody who waits."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = now
        self._monotonic = 0.0
        self._worked = 0.0
        self._tick = threading.Condition()

    def now(self) -> datetime:
        with self._tick:
            return self._now

    def monotonic(self) -> float:
        with self._tick:
            return self._monotonic

    def worked(self) -> float:
        with self._tick:
            return self._worked

    def work(self, seconds: float) -> None:
        """Advance, as the time goes by in which a thread works."""
        with self._tick:
            self._worked += seconds
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._tick:
            self._now += timedelta(seconds=seconds)
            self._monotonic += seconds
            self._tick.notify_all()

    def jump(self, seconds: float) -> None:
        """Set the time of day forward, or back, as an admin or NTP does: intervals go on as before."""
        with self._tick:
            self._now += timedelta(seconds=seconds)
            self._tick.notify_all()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait real milliseconds for a notification, then return for nothing: callers look again, as they always must.

        Waiting on in here would sleep through a notification that came between two polls.
        """
        deadline = None if timeout_s is None else self.monotonic() + timeout_s
        return condition.wait(0.005) or deadline is None or self.monotonic() < deadline

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        deadline = self.monotonic() + timeout_s
        while not event.wait(0.005):
            if self.monotonic() >= deadline:
                return False
        return True


class RestingClock(FakeClock):
    """Tells whether the one thread that sleeps on it has to sleep on: then it has done all that was due."""

    def __init__(self) -> None:
        super().__init__()
        self._until_s: float | None = None

    @property
    def rests(self) -> bool:
        until_s = self._until_s
        return until_s is not None and self.monotonic() < until_s

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self._until_s = self.monotonic() + timeout_s
        try:
            return super().sleep_until_set(event, timeout_s)
        finally:
            self._until_s = None


class IdleClock(FakeClock):
    """Tells which threads have nothing to do: they wait on it, without a limit, until somebody wakes them."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: set[str] = set()
        """Their names. A thread may be missing for a moment, when it looks whether there is something to do."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        if timeout_s is not None:
            return super().wait(condition, timeout_s)
        name = threading.current_thread().name
        self.idle.add(name)
        try:
            return super().wait(condition, timeout_s)
        finally:
            self.idle.discard(name)


class SteppedClock(SystemClock):
    """The machine's clock, on which more time has gone by if a test says so. Nobody's wait becomes shorter by that."""

    def __init__(self) -> None:
        self.gone_by_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.gone_by_s


class FastClock:
    """Implements dracaena.process.clock.Clock: time goes by so many times as fast as it does. For programs over real
    sockets, whose other side knows no clock of ours."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._began = datetime.now(UTC)
        self._began_s = time.monotonic()

    def now(self) -> datetime:
        return self._began + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return (time.monotonic() - self._began_s) * self._rate

    def worked(self) -> float:
        return time.thread_time() * self._rate

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        return condition.wait(None if timeout_s is None else timeout_s / self._rate)

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s / self._rate)
