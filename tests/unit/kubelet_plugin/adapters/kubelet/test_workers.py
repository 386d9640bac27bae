"""Threads that answer calls: all are there from the start, and whatever is asked, none comes and none goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from dracaena.api.errors import PermanentError
from dracaena.kubelet_plugin.adapters.kubelet.workers import Workers

NAME = "answering"
COUNT = 5
ALL = [f"{NAME}_{number}" for number in range(COUNT)]


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith(NAME))


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(COUNT, NAME)
    yield made
    made.shutdown()


def test_there_is_no_thread_before_the_start_and_all_of_them_after_it(workers: Workers) -> None:
    assert threads() == []
    workers.start()
    assert threads() == ALL


def test_whatever_is_asked_the_same_threads_answer_it(workers: Workers) -> None:
    workers.start()
    there = {each.ident for each in threading.enumerate()}
    answered_by = {workers.submit(threading.get_ident).result() for _ in range(50)}
    all_at_once = threading.Barrier(COUNT)
    wait([workers.submit(all_at_once.wait) for _ in range(3 * COUNT)])
    assert answered_by <= there
    assert threads() == ALL


def test_all_threads_end(workers: Workers) -> None:
    workers.start()
    workers.shutdown()
    assert threads() == []


def test_where_the_kernel_allows_fewer_the_start_fails_and_none_waits_for_the_others(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Callable[[threading.Thread], None] = threading.Thread.start

    def limited(thread: threading.Thread, *given: Any) -> None:
        if thread.name == ALL[-1]:
            raise RuntimeError("can't start new thread")
        start(thread, *given)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(PermanentError, match=f"cannot start {COUNT} threads for {NAME}: can't start new thread"):
        workers.start()
    workers.shutdown()  # would wait for good for one that waits
    assert threads() == []
