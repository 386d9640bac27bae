from __future__ import annotations

import random
import threading

from dracaena.controller.workqueue import FIRST_RETRY_S, LONGEST_RETRY_S, WorkQueue
from support.clock import FakeClock


def make() -> tuple[WorkQueue, FakeClock]:
    clock = FakeClock()
    return WorkQueue(clock, random.Random(1)), clock


def take(queue: WorkQueue) -> str | None:
    key = queue.get()
    if key is not None:
        queue.done(key)
    return key


def test_keys_come_in_the_order_of_their_arrival_each_once() -> None:
    queue, _ = make()
    for key in ("b", "a", "b"):
        queue.add(key)
    assert len(queue) == 2
    assert [take(queue), take(queue)] == ["b", "a"]
    assert len(queue) == 0


def test_a_key_added_while_it_is_worked_on_comes_again_and_not_before() -> None:
    queue, _ = make()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert queue.get() == "b"
    assert len(queue) == 1
    queue.done("a")
    assert queue.get() == "a"


def test_a_delayed_key_comes_when_its_time_has_come_and_the_earliest_time_holds() -> None:
    queue, clock = make()
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    queue.add("now")
    assert take(queue) == "now"
    assert len(queue) == 1
    clock.advance(5)
    assert take(queue) == "a"
    clock.advance(30)
    queue.add("last")
    assert take(queue) == "last"
    assert len(queue) == 0


def test_waits_grow_from_failure_to_failure_and_end_after_success() -> None:
    queue, clock = make()
    waits = [queue.retry("a") for _ in range(15)]
    for number, wait in enumerate(waits):
        longest = min(FIRST_RETRY_S * 2**number, LONGEST_RETRY_S)
        assert longest / 2 <= wait <= longest
    clock.advance(LONGEST_RETRY_S)
    assert take(queue) == "a"
    queue.forget("a")
    assert queue.retry("a") <= FIRST_RETRY_S


def test_a_sleeping_worker_wakes_for_a_key_for_its_time_and_for_the_end() -> None:
    queue, clock = make()
    taken: list[str | None] = []
    got = threading.Semaphore(0)

    def work() -> None:
        while (key := take(queue)) is not None:
            taken.append(key)
            got.release()

    worker = threading.Thread(target=work)
    worker.start()
    queue.add("a")
    assert got.acquire(timeout=10)
    queue.add_after("b", 60)
    clock.advance(60)
    assert got.acquire(timeout=10)
    queue.close()
    worker.join(10)
    assert not worker.is_alive()
    assert taken == ["a", "b"]
    assert queue.get() is None
