"""For how long the lock of a cluster (controller.state.cluster) is held: meanwhile nothing is decided or taken in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from unittest import mock

from support.watched_cluster import WatchedCluster


class TimedLock:
    """Stands in for a lock and notes each time for which it was held, in ms.

    `now_ns` is the CPU time of the thread that holds it by default: what else runs on the machine does not count.
    """

    def __init__(self, lock: threading.Lock, now_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self._lock = lock
        self._now_ns = now_ns
        self._since_ns = 0
        self.held_ms: list[float] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, as threading.Lock does."""
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._since_ns = self._now_ns()
        return taken

    def release(self) -> None:
        """Give it back."""
        self.held_ms.append((self._now_ns() - self._since_ns) / 1e6)
        self._lock.release()

    def locked(self) -> bool:
        """Whether anybody holds it."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@contextmanager
def timed_lock(cluster: WatchedCluster) -> Iterator[TimedLock]:
    """Note inside the block for how long the cluster's lock is held. Nobody may hold it when the block begins or ends.

    AssertionError when it was never held: then a measurement would show nothing, and look good.
    """
    assert cluster.intake._lock is cluster._lock, "one lock guards all of it"
    lock = TimedLock(cluster._lock)
    with mock.patch.object(cluster, "_lock", lock), mock.patch.object(cluster.intake, "_lock", lock):
        yield lock
    assert lock.held_ms, "what was measured takes the lock"
