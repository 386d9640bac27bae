"""One thread for one loop: what wakes it, what lets it rest, and its end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from dracaena.kubelet_plugin import worker as worker_module
from dracaena.kubelet_plugin.worker import Worker
from support.clock import FakeClock
from support.kube import wait_for


class StrictClock(FakeClock):
    """Nobody who waits looks again before a notification, or before the time has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []
        self._condition = threading.Condition()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        self._condition = condition
        self.timeouts.append(timeout_s)
        return condition.wait(10)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        with self._condition:
            self._condition.notify_all()


class Loop:
    """A worker whose loop says each time that it goes on, and at the end that it ended."""

    def __init__(self, go_on: Callable[[Worker], bool]) -> None:
        self.clock = StrictClock()
        self._seen_waits = 0
        self.said: queue.Queue[str] = queue.Queue()
        self._go_on = go_on
        self.worker = Worker("test", self._run, self.clock)

    def _run(self) -> None:
        while self._go_on(self.worker):
            self.said.put("round")
        self.said.put("end")

    def next(self) -> str:
        return self.said.get(timeout=10)

    def rests(self) -> None:
        """Wait until the loop waits once more, and see that it said nothing."""
        wait_for(lambda: len(self.clock.timeouts) > self._seen_waits, "the loop waits")
        self._seen_waits = len(self.clock.timeouts)
        assert self.said.empty()


@pytest.fixture
def ends() -> Iterator[list[Loop]]:
    loops: list[Loop] = []
    yield loops
    for loop in loops:
        loop.worker.stop()


def started(ends: list[Loop], go_on: Callable[[Worker], bool]) -> Loop:
    loop = Loop(go_on)
    ends.append(loop)
    loop.worker.start()
    return loop


def test_there_is_work_at_the_start_and_after_each_notice(ends: list[Loop]) -> None:
    loop = started(ends, lambda worker: worker.wait())
    assert loop.next() == "round"
    loop.rests()
    loop.worker.notice()
    assert loop.next() == "round"
    loop.rests()


def test_work_that_is_not_due_waits_and_is_not_forgotten(ends: list[Loop]) -> None:
    due = [False]
    loop = started(ends, lambda worker: worker.wait(lambda: due[0]))
    loop.rests()
    due[0] = True
    loop.worker.notice()
    assert loop.next() == "round"


def test_what_turns_due_without_a_notice_is_seen_at_the_next_look(ends: list[Loop]) -> None:
    due = [False]
    loop = started(ends, lambda worker: worker.wait(lambda: due[0], look_every_s=1.0))
    loop.rests()
    assert loop.clock.timeouts == [1.0]
    due[0] = True
    loop.clock.advance(1.0)
    assert loop.next() == "round"
    loop.rests()
    assert loop.clock.timeouts == [1.0, None]


def test_without_work_the_loop_goes_on_after_its_longest_wait(ends: list[Loop]) -> None:
    loop = started(ends, lambda worker: worker.wait(within_s=60.0))
    assert loop.next() == "round"
    loop.rests()
    loop.clock.advance(60.0)
    assert loop.next() == "round"


def test_a_hurry_ends_the_pause_before_the_work_that_it_announces(ends: list[Loop]) -> None:
    loop = started(ends, lambda worker: worker.wait() and worker.pause(5.0))
    loop.rests()
    loop.worker.hurry()
    assert loop.next() == "round"
    loop.rests()
    loop.worker.notice()
    loop.rests()
    loop.clock.advance(5.0)
    assert loop.next() == "round", "it ended one pause"


def test_a_hurry_during_the_work_ends_the_next_pause(ends: list[Loop]) -> None:
    rounds: list[int] = []

    def go_on(worker: Worker) -> bool:
        goes_on = worker.wait()
        rounds.append(len(rounds))
        if len(rounds) == 1:
            worker.hurry()
        return goes_on and worker.pause(5.0)

    loop = started(ends, go_on)
    assert loop.next() == "round"
    loop.rests()
    assert len(rounds) == 2


def test_a_pause_lasts_whatever_is_noticed(ends: list[Loop]) -> None:
    loop = started(ends, lambda worker: worker.pause(5.0))
    loop.rests()
    loop.worker.notice()
    loop.rests()
    loop.clock.advance(5.0)
    assert loop.next() == "round"


@pytest.mark.parametrize("go_on", [lambda w: w.wait(lambda: False), lambda w: w.pause(1e9)], ids=["wait", "pause"])
def test_stop_ends_the_loop_at_once(ends: list[Loop], go_on: Callable[[Worker], bool]) -> None:
    loop = started(ends, go_on)
    loop.rests()
    loop.worker.stop()
    assert loop.next() == "end"


def test_a_worker_that_was_never_started_can_be_stopped() -> None:
    Loop(lambda worker: worker.wait()).worker.stop()


def test_work_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STOP_S", 0.01)
    began, answered = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        answered.wait(60)  # an API server that does not answer

    worker = Worker("test", work, FakeClock())
    worker.start()
    assert began.wait(10)
    worker.stop()
    assert not answered.is_set()
    answered.set()
