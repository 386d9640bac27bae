"""What is seen of kube-scheduler at work, from the pods that it binds and speaks of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod, PodCondition
from dracaena.controller.lifecycle.pod_record import PodRecord, is_unbound, see
from dracaena.controller.state.scheduler_progress import QUICK_S, TURN_S, TURNS_KEPT, SchedulerProgress
from support.allocation import pod
from support.clock import FakeClock

WAITING = pod("p", "c")


def refused(item: Pod, message: str = "no cpu") -> Pod:
    condition = PodCondition("PodScheduled", "False", "Unschedulable", message)
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, conditions=[condition]))


def bound(item: Pod) -> Pod:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node_name="node-a"))


class Watch:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.turns = SchedulerProgress(0.0)
        self._records: dict[str, PodRecord] = {}

    def show(self, item: Pod) -> None:
        before, now_s = self._records.get(item.key), self.clock.monotonic()
        after = see(before, item, now_s) if is_unbound(item) else None
        self._records.pop(item.key, None)
        if after is not None:
            self._records[item.key] = after
        self.turns.see(before, item, after, now_s)

    def later(self, name: str, priority: int = 0, **spec: Any) -> Pod:
        """Somebody else comes now, without claims."""
        other = pod(name, priority=priority, **spec)
        self.show(other)
        return other

    def passed_over(self, since_s: float = 0.0) -> bool:
        return self.turns.passed_over(WAITING, since_s)


@pytest.mark.parametrize("change", [bound, refused])
def test_a_pod_is_passed_over_when_others_are_tried_as_they_come_twice_and_apart(change: Callable[[Pod], Pod]) -> None:
    watch = Watch()
    watch.show(change(watch.later("first")))
    watch.clock.advance(TURN_S - 1)
    watch.show(change(watch.later("soon")))
    assert not watch.passed_over()
    watch.clock.advance(1)
    later = watch.later("later")
    assert not watch.passed_over()
    watch.clock.advance(QUICK_S)
    watch.show(change(later))
    assert watch.passed_over()


def test_pods_of_a_long_queue_say_nothing_about_the_order() -> None:
    """kube-scheduler had stopped for a while: then it takes 600 pods in whatever order it hears of them."""
    watch = Watch()
    waiting = []
    for number in range(60):
        watch.clock.advance(1)
        waiting.append(watch.later(f"q{number}"))
    watch.clock.advance(QUICK_S + 1)
    for other in reversed(waiting):
        watch.clock.advance(1)
        watch.show(bound(other))
    assert not watch.passed_over()


def test_turns_of_before_the_allocation_do_not_count() -> None:
    watch = Watch()
    watch.show(bound(watch.later("early")))
    watch.clock.advance(TURN_S)
    watch.show(bound(watch.later("late")))
    assert watch.passed_over(0.0)
    assert not watch.passed_over(1.0)


def test_who_is_more_important_or_has_another_scheduler_overtakes_nobody() -> None:
    watch = Watch()
    for number in range(2):
        for name, spec in (("urgent", {"priority": 10}), ("other", {"schedulerName": "mine"})):
            watch.show(bound(watch.later(f"{name}{number}", **spec)))
        watch.clock.advance(TURN_S)
    assert not watch.passed_over()
    for number in range(2):
        watch.show(bound(watch.later(f"small{number}", priority=-5)))
        watch.clock.advance(TURN_S)
    assert watch.passed_over()


def test_a_pod_that_is_seen_bound_from_the_first_shows_nothing() -> None:
    """After a list: when it came and was bound nobody knows."""
    watch = Watch()
    watch.show(bound(pod("first")))
    watch.clock.advance(TURN_S)
    watch.show(bound(pod("second")))
    assert not watch.passed_over()
    assert watch.turns.quiet_s("default-scheduler", watch.clock.monotonic()) == TURN_S


def test_of_thousands_of_turns_a_few_are_remembered() -> None:
    watch = Watch()
    for number in range(2_000):
        watch.clock.advance(0.03)
        watch.show(bound(watch.later(f"q{number}")))
    (turns,) = watch.turns._quick.values()
    assert 55 <= len(turns) <= TURNS_KEPT
    assert watch.passed_over()


def test_how_long_a_scheduler_has_done_nothing() -> None:
    watch = Watch()
    watch.show(WAITING)
    watch.clock.advance(30)
    name = WAITING.spec.scheduler_name
    assert watch.turns.quiet_s(name, watch.clock.monotonic()) == 30.0
    watch.show(refused(WAITING, "no volume"))
    watch.clock.advance(5)
    assert watch.turns.quiet_s(name, watch.clock.monotonic()) == 5.0
    watch.show(bound(watch.later("q")))
    assert watch.turns.quiet_s(name, watch.clock.monotonic()) == 0.0
