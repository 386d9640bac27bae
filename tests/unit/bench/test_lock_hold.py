"""How long a lock was held, by a clock of the test."""

from __future__ import annotations

import threading

import pytest

from bench.lock_hold import TimedLock, timed_lock
from support.allocation import device_class
from support.bare_cluster import bare_cluster

MS = 1_000_000


def test_each_hold_counts_from_when_it_was_taken() -> None:
    times_ns = iter([5 * MS, 8 * MS, 20 * MS, 21 * MS])
    lock = TimedLock(threading.Lock(), lambda: next(times_ns))
    with lock:
        assert lock.locked()
    assert lock.acquire()
    lock.release()
    assert lock.held_ms == [3, 1]
    assert not lock.locked()


def test_a_lock_that_somebody_has_is_not_taken() -> None:
    lock = TimedLock(threading.Lock())
    with lock:
        assert not lock.acquire(blocking=False)
    assert len(lock.held_ms) == 1


def test_what_is_told_and_what_is_asked_hold_the_same_lock() -> None:
    cluster = bare_cluster()
    genuine = cluster._lock
    with timed_lock(cluster) as lock:
        cluster.intake.class_changed(None, device_class())
        assert len(lock.held_ms) == 1
        assert cluster.node_count == 0
        assert len(lock.held_ms) == 2
    assert cluster._lock is cluster.intake._lock is genuine


def test_a_measurement_that_never_saw_the_lock_held_fails() -> None:
    with pytest.raises(AssertionError, match="takes the lock"), timed_lock(bare_cluster()):
        pass
