from __future__ import annotations

import threading
from collections.abc import Iterator

from dracaena.controller.page.turns import REST_PER_TURN, worked_out
from support.clock import FakeClock


class NotedClock(FakeClock):
    """Sleeps at once, and notes for how long."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_s: list[float] = []

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.slept_s.append(timeout_s)
        self.advance(timeout_s)
        return event.is_set()


def work(clock: FakeClock) -> Iterator[str | None]:
    for took_s in (2.0, 3.0):
        clock.advance(took_s)
        yield None
    yield "done"


def test_it_rests_after_each_turn_in_proportion_and_not_after_the_last() -> None:
    clock = NotedClock()
    assert worked_out(work(clock), clock, threading.Event()) == "done"
    assert clock.slept_s == [2.0 * REST_PER_TURN, 3.0 * REST_PER_TURN]


def test_it_stops_after_a_turn_once_it_has_to() -> None:
    clock, stopping = NotedClock(), threading.Event()
    stopping.set()
    assert worked_out(work(clock), clock, stopping) is None
    assert len(clock.slept_s) == 1
