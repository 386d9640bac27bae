from __future__ import annotations

import math
import threading

import pytest

from dracaena.demo.reconcile import ReconcileLoop, settle
from dracaena.kube.errors import ApiUnavailableError, ConflictError, KubeError
from dracaena.process.clock import SystemClock
from support.clock import FakeClock, RestingClock
from support.kube import wait_for


def test_runs_at_the_start_and_after_each_wake() -> None:
    calls = threading.Semaphore(0)

    def reconcile() -> None:
        calls.release()

    loop = ReconcileLoop("t", reconcile, FakeClock())
    loop.start()
    assert calls.acquire(timeout=30)
    loop.wake()
    assert calls.acquire(timeout=30)
    loop.stop()


def test_runs_again_when_the_time_that_it_asked_for_is_over() -> None:
    clock = RestingClock()
    calls = threading.Semaphore(0)

    def reconcile() -> float:
        calls.release()
        return 60.0

    loop = ReconcileLoop("t", reconcile, clock)
    loop.start()
    assert calls.acquire(timeout=30)
    wait_for(lambda: clock.rests, "the loop to rest")
    assert not calls.acquire(blocking=False)
    clock.advance(61)
    wait_for(lambda: calls.acquire(blocking=False), "a second call")
    loop.stop()


def test_an_api_error_is_tried_again_and_a_bug_is_kept() -> None:
    clock = FakeClock()
    errors: list[Exception] = [ApiUnavailableError("GET /x", 503, "", "busy"), ZeroDivisionError("bug")]

    def reconcile() -> None:
        raise errors.pop(0)

    loop = ReconcileLoop("t", reconcile, clock)
    loop.start()

    def failed() -> bool:
        clock.advance(1)
        return loop.failure is not None

    wait_for(failed, "the bug to be kept")
    assert isinstance(loop.failure, ZeroDivisionError)
    loop.stop()


@pytest.mark.parametrize("asked_s", [9999999999.0, 1e300, math.inf])
def test_a_wait_that_no_clock_can_wait_for_ends_no_loop(asked_s: float) -> None:
    calls = threading.Semaphore(0)

    def reconcile() -> float:
        calls.release()
        return asked_s

    loop = ReconcileLoop("t", reconcile, SystemClock())
    loop.start()
    assert calls.acquire(timeout=30)
    loop.wake()
    assert calls.acquire(timeout=30)
    loop.stop()
    assert loop.failure is None


def test_a_clock_that_fails_is_kept_as_the_bug_that_ended_the_loop() -> None:
    class BrokenClock(FakeClock):
        def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
            raise OverflowError("timeout value is too large")

    loop = ReconcileLoop("t", lambda: None, BrokenClock())
    loop.start()
    wait_for(lambda: loop.failure is not None, "the bug to be kept")
    assert isinstance(loop.failure, OverflowError)
    loop.stop()


def test_one_item_that_fails_does_not_keep_the_others_from_their_turn() -> None:
    done: list[int] = []

    def act(item: int) -> None:
        if item == 1:
            raise ConflictError("PATCH /x", 409, "Conflict", "changed")
        if item == 2:
            raise KubeError("PATCH /x", 400, "BadRequest", "no")
        done.append(item)

    assert not settle([0, 1, 2, 3], act, "item")
    assert done == [0, 3]
    assert settle([4], act, "item")
