"""Time as a parameter: services take a Clock, so that tests of minutes run in milliseconds."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time of day, a steady time for intervals, and waiting."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC. May jump."""
        ...

    def monotonic(self) -> float:
        """Return steady seconds since an arbitrary start."""
        ...

    def worked(self) -> float:
        """Return the seconds of a processor that the calling thread has used, since an arbitrary start."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition; return False after timeout_s without a notification."""
        ...

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait for an event at most timeout_s; return whether it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """See Clock."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See Clock."""
        return time.monotonic()

    def worked(self) -> float:
        """See Clock."""
        return time.thread_time()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """See Clock."""
        return condition.wait(timeout_s)

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        """See Clock."""
        return event.wait(timeout_s)


def rfc3339(moment: datetime) -> str:
    """Return an aware time as Kubernetes writes it: UTC, whole seconds, `2026-11-21T03:25:50Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
