"""Calls run one after the other, and one that hangs holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dracaena.host.gpu_driver import thread as thread_module
from dracaena.host.gpu_driver.thread import GpuDriverThread, StoppedError, WedgedError
from support.clock import FakeClock
from support.kube import wait_for


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def driver(clock: FakeClock) -> Iterator[GpuDriverThread]:
    found = GpuDriverThread(clock, lambda: "nvmlDeviceGetUUID of GPU 3", lambda: None)
    found.start()
    yield found
    found.stop()


def hang(driver: GpuDriverThread, clock: FakeClock, release: threading.Event) -> str:
    """Begin a call that hangs until release, let its deadline pass, and return what its caller was told."""
    told: list[str] = []
    inside = threading.Event()

    def work() -> None:
        inside.set()
        release.wait()

    def ask() -> None:
        try:
            driver.call("a reading", work, 30)
        except WedgedError as error:
            told.append(str(error))

    caller = threading.Thread(target=ask)
    caller.start()
    inside.wait()
    clock.advance(31)
    caller.join()
    return told[0]


def test_the_result_comes_back(driver: GpuDriverThread) -> None:
    assert driver.call("a sum", lambda: 1 + 1, 1) == 2


def test_all_calls_run_in_one_thread_that_is_not_the_callers(driver: GpuDriverThread) -> None:
    threads = {driver.call("a name", threading.get_ident, 1) for _ in range(5)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_an_error_is_raised_where_it_was_asked(driver: GpuDriverThread) -> None:
    def fail() -> None:
        raise ValueError("no such GPU")

    with pytest.raises(ValueError, match="no such GPU"):
        driver.call("a failure", fail, 1)
    assert driver.call("the next", lambda: 1, 1) == 1


def test_a_call_that_hangs_lets_its_caller_go_and_is_named(driver: GpuDriverThread, clock: FakeClock) -> None:
    release = threading.Event()
    assert "nvmlDeviceGetUUID of GPU 3 has not returned" in hang(driver, clock, release)
    release.set()


def test_while_one_hangs_others_are_refused_at_once(driver: GpuDriverThread, clock: FakeClock) -> None:
    release = threading.Event()
    hang(driver, clock, release)
    with pytest.raises(WedgedError):
        driver.call("another", lambda: 1, 3600)
    release.set()


def test_after_a_hanging_call_returned_the_driver_is_used_again(driver: GpuDriverThread, clock: FakeClock) -> None:
    release = threading.Event()
    hang(driver, clock, release)
    release.set()
    while True:
        try:
            assert driver.call("another", lambda: 7, 30) == 7
            break
        except WedgedError:
            continue  # the thread has not taken note of the release yet


def test_stop_does_not_wait_for_a_call_that_hangs(clock: FakeClock) -> None:
    closed = threading.Event()
    driver = GpuDriverThread(clock, lambda: "", closed.set)
    driver.start()
    release = threading.Event()
    hang(driver, clock, release)
    driver.stop()
    assert not closed.is_set()
    release.set()
    assert closed.wait(10)


def test_stop_lets_go_of_who_waits_and_closes_the_driver(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "CLOSE_S", 60.0)
    closed = threading.Event()
    driver = GpuDriverThread(clock, lambda: "", closed.set)
    driver.start()
    driver.stop()
    assert closed.is_set()
    with pytest.raises(StoppedError):
        driver.call("too late", lambda: 1, 1)


def test_stop_lets_go_of_the_caller_of_a_call_under_way_and_closes_the_driver_after_it(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_module, "CLOSE_S", 60.0)
    closed, inside, release = threading.Event(), threading.Event(), threading.Event()
    driver = GpuDriverThread(clock, lambda: "", closed.set)
    driver.start()
    closed_at_the_end: list[bool] = []

    def work() -> None:
        inside.set()
        release.wait()

    def ask() -> None:
        with pytest.raises(StoppedError):
            driver.call("a reading", work, 30)

    def stop() -> None:
        driver.stop()
        closed_at_the_end.append(closed.is_set())

    caller, stopper = threading.Thread(target=ask), threading.Thread(target=stop)
    caller.start()
    inside.wait()
    stopper.start()
    caller.join()
    assert not closed.is_set()
    release.set()
    stopper.join()
    assert closed_at_the_end == [True]


def test_calls_of_many_threads_take_turns(driver: GpuDriverThread) -> None:
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    callers = [threading.Thread(target=driver.call, args=("work", work, 60)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most == [1] * 8


def test_a_call_beyond_its_deadline_is_told_until_it_returns(driver: GpuDriverThread, clock: FakeClock) -> None:
    assert driver.hung() is None
    release = threading.Event()
    hang(driver, clock, release)
    assert "nvmlDeviceGetUUID of GPU 3 has not returned" in (driver.hung() or "")
    assert driver.hung(beyond_s=5) is None
    clock.advance(5)
    assert driver.hung(beyond_s=5) == driver.hung()
    release.set()
    wait_for(lambda: driver.hung() is None, "the return")
