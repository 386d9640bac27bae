from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod, PodCondition, ResourceClaim
from dracaena.controller.bind_watch import (
    ELSEWHERE,
    NOT_SEEN,
    QUICK_S,
    SETTLE_S,
    TURN_S,
    TURNS_KEPT,
    BindWatch,
    Said,
    Standing,
)
from support.allocation import claim, holding, pod
from support.clock import FakeClock

WAITING = pod("p", "c")


def refused(item: Pod, message: str, reason: str = "Unschedulable") -> Pod:
    condition = PodCondition("PodScheduled", "False", reason, message)
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, conditions=[condition]))


def bound(item: Pod) -> Pod:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, node_name="node-a"))


def reserved(name: str, *users: str) -> ResourceClaim:
    held = holding(claim(name), "node-a", f"gpu-{name}")
    references = [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    status = msgspec.convert({**msgspec.to_builtins(held.status), "reservedFor": references}, type(held.status))
    return msgspec.structs.replace(held, status=status)


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.watch = BindWatch(self.clock)
        self.pods: dict[str, Pod] = {}
        self.claims: dict[str, ResourceClaim] = {}

    def pod(self, item: Pod | None, name: str = "p") -> None:
        old = self.pods.pop(name, None)
        if item is not None:
            self.pods[name] = item
        self.watch.pod_changed(old, item)

    def claim(self, item: ResourceClaim) -> None:
        old, self.claims[item.key] = self.claims.get(item.key), item
        self.watch.claim_changed(old, item)

    def standing(self) -> Standing | None:
        return self.watch.standing(self.pods["p"], ["default/c"])

    def found(self) -> Standing:
        standing = self.standing()
        assert standing is not None
        return standing

    def allocate(self) -> None:
        """The pod comes, and is allocated at once."""
        self.pod(WAITING)
        self.claim(reserved("c", "p"))

    def later(self, name: str, priority: int = 0, **spec: Any) -> Pod:
        """Somebody else comes now, without claims."""
        other = pod(name, priority=priority, **spec)
        self.pod(other, name)
        return other


def test_a_pod_stands_nowhere_before_its_claims_are_allocated_and_after_it_was_bound() -> None:
    bench = Bench()
    bench.pod(WAITING)
    assert bench.standing() is None
    bench.claim(claim("c"))
    assert bench.standing() is None
    bench.claim(reserved("c", "p"))
    assert bench.found().allocated_s == 0.0
    bench.pod(bound(WAITING))
    assert bench.standing() is None
    assert not bench.watch.is_unbound("default/p", "uid-p")


def test_what_is_said_long_enough_after_the_allocation_is_about_it() -> None:
    bench = Bench()
    bench.allocate()
    bench.clock.advance(SETTLE_S + 1)
    bench.pod(refused(WAITING, "0/1 nodes: anti-affinity"))
    standing = bench.found()
    assert standing.said == Said("Unschedulable", "0/1 nodes: anti-affinity")
    assert standing.said_s == SETTLE_S + 1
    bench.clock.advance(9)
    bench.pod(refused(WAITING, "0/2 nodes: anti-affinity"))
    assert bench.found().said_s == SETTLE_S + 10


def test_what_was_said_before_or_right_after_may_be_about_a_try_without_devices() -> None:
    bench = Bench()
    bench.pod(refused(WAITING, "0/1 nodes: anti-affinity"))
    bench.claim(reserved("c", "p"))
    bench.clock.advance(SETTLE_S)
    assert bench.found().said_s is None
    bench.pod(refused(WAITING, "0/2 nodes: anti-affinity"))
    assert bench.found().said_s is None
    bench.clock.advance(100)
    assert bench.found().said_s is None, "that time passes tells nothing"
    bench.pod(refused(WAITING, "0/2 nodes: anti-affinity"))
    assert bench.found().said_s is None, "the same words again are nothing new"


def test_words_about_claims_that_are_not_allocated_are_old_however_late_they_come() -> None:
    bench = Bench()
    bench.allocate()
    bench.clock.advance(40)
    bench.pod(refused(WAITING, f"0/9 nodes are available: 9 {NOT_SEEN}."))
    assert bench.found().said_s is None


def test_they_are_new_where_a_claim_waits_for_another_driver() -> None:
    bench = Bench()
    both = pod("p", "c", "nic")
    bench.pod(both)
    bench.claim(reserved("c", "p"))
    bench.claim(claim("nic"))
    bench.clock.advance(40)
    bench.pod(refused(both, f"0/9 nodes are available: 9 {NOT_SEEN}."))
    assert bench.found().said_s == 40.0


def test_with_a_claim_of_another_driver_words_about_the_node_of_ours_are_new_at_once() -> None:
    """kube-scheduler clears nothing of a pod of which only some claims are allocated."""
    bench = Bench()
    both = pod("p", "c", "nic")
    bench.pod(both)
    bench.claim(reserved("c", "p"))
    bench.clock.advance(0.1)
    bench.pod(refused(both, f"0/9 nodes are available: 1 {NOT_SEEN}, 8 {ELSEWHERE}."))
    assert bench.found().said_s == 0.1
    bench.claim(reserved("nic", "p"))
    bench.clock.advance(0.1)
    bench.pod(refused(both, f"0/9 nodes are available: 1 no room, 8 {ELSEWHERE}."))
    assert bench.found().said_s is None, "with all claims it would have cleared one: this may be of before"


def test_that_a_pod_is_gated_is_not_said_by_the_scheduler() -> None:
    bench = Bench()
    bench.pod(refused(WAITING, "Scheduling is blocked", "SchedulingGated"))
    assert bench.watch.said(WAITING) is None


@pytest.mark.parametrize("change", [bound, lambda item: refused(item, "no cpu")])
def test_a_pod_is_passed_over_when_others_are_tried_as_they_come_twice_and_apart(change: Callable[[Pod], Pod]) -> None:
    bench = Bench()
    bench.allocate()
    bench.pod(change(bench.later("first")), "first")
    bench.clock.advance(TURN_S - 1)
    bench.pod(change(bench.later("soon")), "soon")
    assert not bench.found().passed_over
    bench.clock.advance(1)
    later = bench.later("later")
    assert not bench.found().passed_over
    bench.clock.advance(QUICK_S)
    bench.pod(change(later), "later")
    assert bench.found().passed_over


def test_pods_of_a_long_queue_say_nothing_about_the_order() -> None:
    """kube-scheduler had stopped for a while: then it takes 600 pods in whatever order it hears of them."""
    bench = Bench()
    bench.allocate()
    waiting = []
    for number in range(60):
        bench.clock.advance(1)
        waiting.append(bench.later(f"q{number}"))
    bench.clock.advance(QUICK_S + 1)
    for number, other in reversed(list(enumerate(waiting))):
        bench.clock.advance(1)
        bench.pod(bound(other), f"q{number}")
    assert not bench.found().passed_over


def test_one_whose_devices_came_a_moment_ago_may_stand_in_the_queue_for_long() -> None:
    bench = Bench()
    others = [pod(f"q{number}", f"d{number}") for number in range(3)]
    for number, other in enumerate(others):
        bench.pod(other, f"q{number}")
    bench.clock.advance(QUICK_S)
    bench.allocate()
    for number, other in enumerate(others):
        bench.clock.advance(TURN_S)
        bench.claim(reserved(f"d{number}", f"q{number}"))
        bench.pod(bound(other), f"q{number}")
    assert not bench.found().passed_over


def test_turns_of_before_the_allocation_do_not_count() -> None:
    bench = Bench()
    bench.pod(bound(bench.later("early")), "early")
    bench.clock.advance(TURN_S)
    bench.allocate()
    bench.pod(bound(bench.later("late")), "late")
    assert not bench.found().passed_over


def test_who_is_more_important_or_has_another_scheduler_overtakes_nobody() -> None:
    bench = Bench()
    bench.allocate()
    for number in range(2):
        for name, spec in (("urgent", {"priority": 10}), ("other", {"schedulerName": "mine"})):
            bench.pod(bound(bench.later(f"{name}{number}", **spec)), f"{name}{number}")
        bench.clock.advance(TURN_S)
    assert not bench.found().passed_over
    for number in range(2):
        bench.pod(bound(bench.later(f"small{number}", priority=-5)), f"small{number}")
        bench.clock.advance(TURN_S)
    assert bench.found().passed_over


def test_of_thousands_of_turns_a_few_are_remembered() -> None:
    bench = Bench()
    bench.allocate()
    for number in range(2_000):
        bench.clock.advance(0.03)
        bench.pod(bound(bench.later(f"q{number}")), f"q{number}")
        bench.pod(None, f"q{number}")
    (turns,) = bench.watch._quick_turns.values()
    assert 55 <= len(turns) <= TURNS_KEPT
    assert bench.found().passed_over


def test_how_long_a_scheduler_has_done_nothing() -> None:
    bench = Bench()
    bench.allocate()
    bench.clock.advance(30)
    assert bench.found().quiet_s == 30.0
    bench.pod(refused(WAITING, "no volume"))
    bench.clock.advance(5)
    assert bench.found().quiet_s == 5.0
    bench.pod(bound(bench.later("q")), "q")
    assert bench.found().quiet_s == 0.0


def test_since_when_nobody_has_reserved_a_claim() -> None:
    bench = Bench()
    bench.allocate()
    assert bench.found().unreserved_s is None
    bench.clock.advance(3)
    bench.claim(reserved("c"))
    bench.clock.advance(3)
    bench.claim(reserved("c"))
    assert (bench.found().unreserved_s, bench.found().allocated_s) == (3.0, 0.0)
    bench.claim(reserved("c", "p"))
    assert bench.found().unreserved_s is None


def test_a_pod_that_comes_to_a_claim_without_reservation_has_its_time_from_then_on() -> None:
    bench = Bench()
    bench.claim(reserved("c"))
    bench.clock.advance(100)
    bench.pod(WAITING)
    assert bench.found().unreserved_s == 100.0


def test_another_pod_or_claim_of_the_same_name_begins_anew() -> None:
    bench = Bench()
    bench.allocate()
    bench.clock.advance(10)
    again = msgspec.structs.replace(WAITING, metadata=msgspec.structs.replace(WAITING.metadata, uid="other"))
    bench.pod(again)
    assert bench.watch.is_unbound("default/p", "other")
    assert not bench.watch.is_unbound("default/p", "uid-p")
    held = reserved("c", "p")
    bench.claim(msgspec.structs.replace(held, metadata=msgspec.structs.replace(held.metadata, uid="other-c")))
    assert bench.found().allocated_s == 10.0
