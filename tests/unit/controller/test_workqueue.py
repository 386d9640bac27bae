from __future__ import annotations

import random
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

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


class Ranked:
    """A queue whose keys have turns of their own."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.clock = FakeClock()
        self.queue = WorkQueue(self.clock, random.Random(1), lambda key: (self.turns.get(key, 0),))

    def take_all(self) -> list[str]:
        taken = []
        while self.queue._ready:
            key = take(self.queue)
            assert key is not None
            taken.append(key)
        return taken


def test_keys_come_by_their_turn_and_equal_ones_by_their_arrival() -> None:
    bench = Ranked()
    bench.turns = {"low": 3, "also-low": 3, "high": 1, "middle": 2}
    for key in ("low", "middle", "also-low", "high"):
        bench.queue.add(key)
    assert bench.take_all() == ["high", "middle", "low", "also-low"]


def test_a_key_whose_turn_changed_while_it_waited_comes_once_at_its_new_turn() -> None:
    bench = Ranked()
    bench.turns = {"a": 3, "b": 2}
    bench.queue.add("a")
    bench.queue.add("b")
    bench.turns["a"] = 1
    bench.queue.add("a")
    assert len(bench.queue) == 2
    assert bench.take_all() == ["a", "b"]


def test_a_key_that_waits_after_a_failure_keeps_nobody_back_and_then_has_its_turn() -> None:
    bench = Ranked()
    bench.turns = {"first": 0, "second": 1, "third": 2}
    bench.queue.add_after("first", 10)
    bench.queue.add("second")
    assert bench.take_all() == ["second"]
    bench.queue.add("third")
    bench.queue.add("second")
    bench.clock.advance(10)
    assert [take(bench.queue) for _ in range(3)] == ["first", "second", "third"]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "take"]), st.sampled_from("abcdef"), st.integers(0, 3))))
def test_the_queue_hands_out_as_a_sorted_list_would(steps: list[tuple[str, str, int]]) -> None:
    bench = Ranked()
    waiting: dict[str, tuple[int, int]] = {}
    for number, (verb, key, turn) in enumerate(steps):
        if verb == "add":
            bench.turns[key] = turn
            if waiting.get(key, (None,))[0] != turn:
                waiting[key] = turn, number
            bench.queue.add(key)
        elif waiting:
            first = min(waiting, key=lambda one: waiting[one])
            del waiting[first]
            assert take(bench.queue) == first
        assert len(bench.queue) == len(waiting)
