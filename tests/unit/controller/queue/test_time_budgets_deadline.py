from __future__ import annotations

import threading

from dracaena.controller.queue.time_budgets import LATEST, LEAST_STEPS, LONGEST_TURN_S, TURN_S, Deadline, TurnDeadline
from support.clock import FakeClock


def test_time_counts_from_the_beginning_of_the_work() -> None:
    clock = FakeClock()
    deadline = Deadline(clock, 1.0)
    clock.advance(5.0)
    assert deadline.used_s == 0.0
    is_over = deadline.begin()
    clock.advance(0.5)
    assert not is_over(LEAST_STEPS)
    clock.advance(0.5)
    assert is_over(1)
    deadline.end()
    clock.advance(5.0)
    assert deadline.used_s == 1.0


def test_work_that_the_machine_kept_waiting_is_not_ended_before_it_did_something() -> None:
    clock = FakeClock()
    is_over = Deadline(clock, 1.0).begin()
    clock.advance(2.0)
    for _ in range(LEAST_STEPS // 500 - 1):
        assert not is_over(500)
    assert is_over(500)


def test_it_is_ended_in_the_end_however_little_it_did() -> None:
    clock = FakeClock()
    is_over = Deadline(clock, 1.0).begin()
    clock.advance(LATEST - 0.5)
    assert not is_over(1)
    clock.advance(0.5)
    assert is_over(1)


def test_a_turn_is_up_after_a_short_time_and_the_next_one_is_as_long() -> None:
    clock = FakeClock()
    pace = TurnDeadline(clock)
    for _ in range(3):
        is_over = pace.begin_turn()
        assert not pace.turn_is_up()
        clock.advance(1.5 * TURN_S)
        assert pace.turn_is_up()
        assert not is_over(LEAST_STEPS)
        clock.advance(10.0)  # while others have the lock


def test_a_node_that_takes_longer_than_a_decision_ends_the_work() -> None:
    clock = FakeClock()
    is_over = TurnDeadline(clock).begin_turn()
    clock.advance(LONGEST_TURN_S - TURN_S)
    assert not is_over(LEAST_STEPS)
    clock.advance(TURN_S)
    assert is_over(1)


def test_all_turns_together_end_the_work_and_what_lies_between_them_does_not() -> None:
    clock = FakeClock()
    pace = TurnDeadline(clock, limit_s=5 * TURN_S)
    for _ in range(3):
        is_over = pace.begin_turn()
        clock.advance(1.5 * TURN_S)
        assert not is_over(LEAST_STEPS)
        assert pace.turn_is_up()
        clock.advance(10.0)
    is_over = pace.begin_turn()
    clock.advance(TURN_S)
    assert is_over(LEAST_STEPS)


def test_a_rest_is_as_long_as_a_turn() -> None:
    slept_s: list[float] = []

    class Clock(FakeClock):
        def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
            slept_s.append(timeout_s)
            return event.is_set()

    TurnDeadline(Clock()).rest()
    assert slept_s == [TURN_S]
