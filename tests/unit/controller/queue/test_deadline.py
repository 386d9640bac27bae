from __future__ import annotations

from dracaena.controller.queue.deadline import LATEST, LEAST_STEPS, Deadline
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
