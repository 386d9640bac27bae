from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.controller.queue.lanes import SLACK, Turn
from dracaena.controller.queue.workqueue import FIRST_RETRY_S, LONGEST_RETRY_S, WorkQueue
from support.clock import FakeClock
from support.queues import take_ready


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


@settings(derandomize=True)
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


def grouped(clock: FakeClock, groups: dict[str, str], turns: dict[str, Turn] | None = None) -> WorkQueue:
    known = {} if turns is None else turns
    return WorkQueue(clock, random.Random(1), lambda key: known.get(key, (key,)), groups.get)


def taken(queue: WorkQueue) -> list[str]:
    found = []
    while (key := take_ready(queue)) is not None:
        found.append(key)
        queue.done(key)
    return found


def test_groups_come_behind_all_others_and_take_turns() -> None:
    groups = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b"}
    queue = grouped(FakeClock(), groups)
    for key in ("a3", "a2", "a1", "b2", "b1", "z", "y"):
        queue.add(key)
    assert taken(queue) == ["y", "z", "a1", "b1", "a2", "b2", "a3"]


def test_a_key_comes_behind_others_from_when_it_belongs_there_although_it_waits_already() -> None:
    groups: dict[str, str] = {}
    queue = grouped(FakeClock(), groups)
    for key in ("a", "b", "c"):
        queue.add(key)
    assert take_ready(queue) == "a"
    queue.done("a")
    groups["b"] = "slow"
    assert taken(queue) == ["c", "b"]


def test_a_key_of_a_group_is_handed_out_once_and_with_its_newest_turn() -> None:
    turns: dict[str, Turn] = {"a1": (1,), "a2": (2,)}
    clock = FakeClock()
    queue = grouped(clock, {"a1": "a", "a2": "a", "block": "x"}, turns)
    queue.add("a1")
    queue.add("a2")
    queue.rest_behind_others(1.0)
    assert take_ready(queue) is None
    turns["a1"] = (3,)
    queue.add("a1")
    queue.add("a1")
    assert len(queue) == 2
    clock.advance(1.0)
    assert taken(queue) == ["a2", "a1"]
    assert len(queue) == 0


def test_behind_others_is_idle_as_long_as_it_was_reported_and_nobody_else_waits_for_that() -> None:
    clock = FakeClock()
    queue = grouped(clock, {"slow": "s"})
    queue.add("slow")
    queue.rest_behind_others(2.0)
    queue.add("quick")
    assert taken(queue) == ["quick"]
    clock.advance(1.9)
    assert taken(queue) == []
    clock.advance(0.2)
    assert queue.get() == "slow"


def test_rests_of_what_comes_behind_others_add_up() -> None:
    """Deciding and writing are charged one after the other: a short write must not end the rest for a long decision."""
    clock = FakeClock()
    queue = grouped(clock, {"slow": "s"})
    queue.add("slow")
    queue.rest_behind_others(2.0)
    queue.rest_behind_others(0.5)
    clock.advance(2.4)
    assert taken(queue) == []
    clock.advance(0.2)
    assert taken(queue) == ["slow"]


def test_a_resting_key_is_not_handed_out_before_whoever_adds_it_but_one_with_the_first_turn_is() -> None:
    clock = FakeClock()
    turns: dict[str, Turn] = {}
    queue = grouped(clock, {}, turns)
    queue.add("a")
    assert take_ready(queue) == "a"
    queue.rest("a", 5.0)
    queue.add("a")  # a change came while it was worked on
    queue.done("a")
    for _ in range(100):
        queue.add("a")
    queue.add_after("a", 1.0)
    assert len(queue._later) <= 2
    clock.advance(4.9)
    assert taken(queue) == []
    assert len(queue) == 1
    clock.advance(0.2)
    assert taken(queue) == ["a"]
    queue.rest("a", 5.0)
    turns["a"] = ()
    queue.add("a")
    assert taken(queue) == ["a"]


def test_keys_that_left_a_group_leave_nothing_while_an_older_one_of_it_keeps_coming() -> None:
    turns: dict[str, Turn] = {"old": (0,)}
    queue = WorkQueue(FakeClock(), random.Random(1), lambda key: turns.get(key, ()), lambda key: "group")
    for number in range(1_000):
        turns[f"k{number}"] = (1, number)
        queue.add("old")
        queue.add(f"k{number}")
        assert take_ready(queue) == "old"
        queue.done("old")
        if number % 100:  # it is deleted
            del turns[f"k{number}"]
            queue.add(f"k{number}")
            assert take_ready(queue) == f"k{number}"
            queue.done(f"k{number}")
    assert len(queue._behind["group"]._by_turn) <= 2 * 10 + SLACK
    assert taken(queue) == [f"k{number}" for number in range(0, 1_000, 100)]
    assert not queue._behind


def test_keys_whose_turn_changes_while_they_wait_in_a_group_are_handed_out_once_by_their_last_turn() -> None:
    turns: dict[str, Turn] = {"old": (0,)}
    queue = WorkQueue(FakeClock(), random.Random(1), lambda key: turns[key], lambda key: "group")
    for number in range(200):
        for key in ("a", "b"):
            turns[key] = (2, number) if key == "a" else (1_000 - number,)
            queue.add(key)
        queue.add("old")
        assert take_ready(queue) == "old"
        queue.done("old")
    assert len(queue._behind["group"]._by_turn) <= 2 * 2 + SLACK
    assert taken(queue) == ["a", "b"]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_added_is_handed_out_when_its_time_has_come_whatever_group_it_is_in(seed: int) -> None:
    rng = random.Random(seed)
    clock = FakeClock()
    groups: dict[str, str] = {}
    queue = grouped(clock, groups)
    waiting: dict[str, float] = {}
    for _ in range(300):
        key = f"k{rng.randrange(12):02}"
        action = rng.randrange(5)
        now_s = clock.monotonic()
        if action == 0:
            queue.add(key)
            waiting.setdefault(key, now_s)
        elif action == 1 and key not in waiting:
            queue.rest(key, rng.choice((1.0, 3.0)))
            waiting[key] = queue._not_before[key]
        elif action == 2:
            groups[key] = rng.choice("ab")
            if rng.random() < 0.5:
                del groups[key]
        elif action == 3:
            clock.advance(rng.choice((0.5, 1.0)))
        else:
            found = take_ready(queue)
            ready = {one for one, from_s in waiting.items() if from_s <= now_s}
            assert found in ready if ready else found is None
            if found is not None:
                del waiting[found]
                queue.done(found)
    clock.advance(10.0)
    assert sorted(taken(queue)) == sorted(waiting)
