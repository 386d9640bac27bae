"""A thread serves one after the other and rests; it ends at once, also while it rests, and keeps nobody."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable

from dracaena.process.resting_thread import RestingThread
from support.clock import FakeClock
from support.kube import wait_for


class NotingClock(FakeClock):
    """Keeps how long each wait is to last."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts_s: set[float | None] = set()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        self.timeouts_s.add(timeout_s)
        return super().wait(condition, timeout_s)


class Asked:
    """Somebody who waits."""


def thread_of(waiting: deque[Asked], serve: Callable[[Asked], float], clock: FakeClock) -> RestingThread[Asked]:
    return RestingThread("test", clock, take=lambda: waiting.popleft() if waiting else None, serve=serve, join_s=30.0)


def put(thread: RestingThread[Asked], waiting: deque[Asked], *asked: Asked) -> None:
    with thread.changed:
        waiting.extend(asked)
        thread.changed.notify()


def rest_long(done: threading.Event) -> Callable[[Asked], float]:
    def serve(_one: Asked) -> float:
        done.set()
        return 1e9

    return serve


def test_the_next_is_served_once_the_rest_is_over() -> None:
    clock, waiting = NotingClock(), deque[Asked]()
    served: list[Asked] = []

    def serve(one: Asked) -> float:
        served.append(one)
        return 5.0

    thread = thread_of(waiting, serve, clock)
    thread.start()
    try:
        first, second = Asked(), Asked()
        put(thread, waiting, first, second)
        wait_for(lambda: 5.0 in clock.timeouts_s, "the rest after the first")
        assert served == [first]
        clock.advance(4.9)
        assert served == [first]
        clock.advance(0.2)
        wait_for(lambda: served == [first, second], "the second")
    finally:
        thread.stop()


def test_it_ends_while_it_rests_or_waits() -> None:
    for rests in (True, False):
        clock, waiting, done = FakeClock(), deque[Asked](), threading.Event()
        thread = thread_of(waiting, rest_long(done), clock)
        thread.start()
        if rests:
            put(thread, waiting, Asked())
            assert done.wait(30)
        thread.stop()
        assert not [each for each in threading.enumerate() if each.name == "test"]


def test_who_was_served_is_not_kept_while_it_rests() -> None:
    clock, waiting, done = FakeClock(), deque[Asked](), threading.Event()
    thread = thread_of(waiting, rest_long(done), clock)
    thread.start()
    try:
        asked = Asked()
        known = weakref.ref(asked)
        put(thread, waiting, asked)
        assert done.wait(30)
        del asked
        wait_for(lambda: gc.collect() >= 0 and known() is None, "to be forgotten")
    finally:
        thread.stop()
