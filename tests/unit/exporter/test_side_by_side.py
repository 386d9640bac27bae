"""Work is done by several threads, and what comes out is as if it were done by one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from dracaena.exporter.side_by_side import THREADS, side_by_side

LONG_S = 30.0
"""For what happens at once where nothing is wrong."""


@pytest.mark.parametrize("count", [0, 1, 2, THREADS, 2 * THREADS + 1])
def test_results_come_in_the_order_of_the_work_however_it_ends(count: int) -> None:
    """Each piece waits for the one after it, as far as there is a thread for that."""
    done = [threading.Event() for _ in range(count + 1)]

    def work(number: int) -> Callable[[], int]:
        def run() -> int:
            if number % THREADS != THREADS - 1 and number + 1 < count:
                assert done[number + 1].wait(LONG_S)
            done[number].set()
            return number

        return run

    assert side_by_side([work(number) for number in range(count)]) == list(range(count))


def test_no_more_threads_work_at_once_than_are_allowed_and_the_caller_is_one_of_them() -> None:
    lock, at_once, most, threads = threading.Lock(), 0, 0, set[int]()
    together = threading.Barrier(3)

    def run() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            threads.add(threading.get_ident())
        together.wait(LONG_S)
        with lock:
            at_once -= 1

    side_by_side([run] * 12, threads=3)
    assert most == 3
    assert threading.get_ident() in threads


def test_the_first_error_in_order_is_raised_after_all_have_ended() -> None:
    ended = []

    def fail(name: str) -> Callable[[], None]:
        def run() -> None:
            ended.append(name)
            raise ValueError(name)

        return run

    with pytest.raises(ValueError, match=r"^a$"):
        side_by_side([lambda: ended.append("first"), fail("a"), fail("b"), lambda: ended.append("last")])
    assert sorted(ended) == ["a", "b", "first", "last"]


def test_one_piece_of_work_needs_no_other_thread() -> None:
    assert side_by_side([threading.get_ident]) == [threading.get_ident()]


@pytest.mark.parametrize("had", [0, 1])
def test_where_no_more_threads_can_be_had_those_that_there_are_do_all_and_none_is_left_at_work(
    had: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a pod at its limit of processes."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        if len(started) == had:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    assert side_by_side([partial(int, number) for number in range(9)]) == list(range(9))
    assert len(started) == had
    assert not any(thread.is_alive() for thread in started)
