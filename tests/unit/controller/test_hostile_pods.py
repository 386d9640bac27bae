"""Hostile tenants beside honest ones, counted in steps: nobody's claims delay another pod by more than the bound.

A step of the allocator lets a microsecond pass, so the clock says the same on every machine.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dracaena.controller.allocation.effort import CHARACTER_STEPS, LOOK_EVERY_STEPS
from dracaena.controller.queue.time_budgets import (
    ALLOWANCE_S,
    DECISION_S,
    IDLE,
    LONGEST_DECISION_S,
    LONGEST_REST_S,
    REFILL,
    TURN_S,
    Deadline,
    TimeBudgets,
    TurnDeadline,
)
from support.allocation import DRIVER, blocks, claim, machine, pod, request
from support.bare_cluster import decide
from support.hostile_pods import KINDS, MAX_SELECTOR, Hostile, cel, hostile_pod, named
from support.queues import take_ready
from support.reconciling import Bench

STEP_S = 1e-6

SLACK_S = (MAX_SELECTOR * CHARACTER_STEPS + 2 * LOOK_EVERY_STEPS) * STEP_S
"""Beyond a deadline: the longest selector, whose compiling cannot be stopped."""

NODES = 30


@pytest.fixture(autouse=True)
def _steps_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_steps(begin: Callable[[Any], Callable[[int], bool]]) -> Callable[[Any], Callable[[int], bool]]:
        def counted(deadline: Any) -> Callable[[int], bool]:
            is_over = begin(deadline)

            def look(steps: int) -> bool:
                deadline._clock.work(steps * STEP_S)
                return is_over(steps)

            return look

        return counted

    monkeypatch.setattr(Deadline, "begin", in_steps(Deadline.begin))
    monkeypatch.setattr(TurnDeadline, "begin_turn", in_steps(TurnDeadline.begin_turn))
    monkeypatch.setattr(TurnDeadline, "rest", lambda pace: pace._clock.advance(TURN_S))


class World(Bench):
    """A bench with nodes of seven GPUs, that notes how long each decision took and for whom."""

    def __init__(self, nodes: int = NODES) -> None:
        shape = blocks(3, 4, inside="PIX", outside="PHB")
        super().__init__(**{f"n{number:03}": machine(f"m{number:03}", shape) for number in range(nodes)})
        self.decided: list[tuple[str, float]] = []
        decide = self.budgets.decided

        def noted(key: str, used_s: float, *, overdue: bool, goes_on: bool = False) -> float:
            self.decided.append((key, used_s))
            return decide(key, used_s, overdue=overdue)

        self.budgets.decided = noted  # type: ignore[method-assign]

    def submit(self, one: Hostile) -> None:
        for item in one[1]:
            self.add(item)
        self.add(one[0])

    def has_devices(self, one: Hostile) -> bool:
        return all(self.api.claims[item.key].status.allocation is not None for item in one[1])

    def work_until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Do what a worker does until the condition holds; return whether it did within this time of the clock."""
        until_s = self.clock.monotonic() + within_s
        while not condition():
            if self.clock.monotonic() >= until_s:
                return False
            key = take_ready(self.queue)
            if key is None:
                self.clock.advance(0.01)
                continue
            self.work(key)
        return True

    def spent_s(self, namespace: str) -> float:
        return sum(used_s for key, used_s in self.decided if key.startswith(f"{namespace}/"))


def honest(number: int, *, namespace: str = "honest", created: str = "2026-01-01T01:00:00Z") -> Hostile:
    return named((pod("p", "c"), (claim("c", request(count=2)),)), namespace, f"honest-{number}", created)


def heavy(seed: int, *, namespace: str = "research") -> Hostile:
    """A pod whose selectors have to be compiled for most of a second, and that then fits."""
    rng = random.Random(seed)

    def expression() -> str:
        part = f" || device.driver == 'driver {rng.randrange(10**9)}'"
        return f"device.driver == '{DRIVER}'" + part * ((MAX_SELECTOR - 100) // len(part))

    asked = claim("c", request(selectors=cel(*(expression() for _ in range(6)))))
    return named((pod("p", "c"), (asked,)), namespace, f"heavy-{seed}", "2026-01-01T00:30:00Z")


@pytest.mark.parametrize("kind", KINDS)
def test_no_decision_takes_longer_than_its_deadline_and_who_must_act_is_reported(kind: str) -> None:
    world = World()
    one = hostile_pod(kind, 1)
    world.submit(one)
    world.work_until(lambda: False, 5.0)
    assert max(used_s for _, used_s in world.decided) <= LONGEST_DECISION_S + SLACK_S
    assert world.decided[0][1] <= DECISION_S + SLACK_S
    if len(world.decided) > 1:  # it was overdue
        assert world.metric("decisions_total", result="too-long") >= 1  # type: ignore[operator]
        assert world.metric("waiting_pods", reason="took-too-long") is not None
        told = next(text for text in world.told() if "within the time allowed for one pod" in text)
        assert "hostile/" in told or "no action is needed" in told


def test_reading_claims_counts_however_small_they_are() -> None:
    """Or a pod with thousands of them would take its time from everybody, and no deadline would see it."""
    world = World(nodes=1)
    world.submit(hostile_pod("many claims", 1))
    world.work_until(lambda: False, 1.0)
    assert world.metric("decisions_total", result="too-long") >= 1  # type: ignore[operator]
    assert any("Most of it went into reading the claims" in text for text in world.told())


def test_most_kinds_are_overdue() -> None:
    """What is said of all kinds above would also hold if none of them were expensive."""
    world = World()
    for kind in KINDS:
        world.submit(hostile_pod(kind, 1))

    def overdue() -> int:
        return sum(tries > 1 for tries in Counter(key for key, _ in world.decided).values())

    assert world.work_until(lambda: overdue() >= 3, 10.0)


def delay_s(world: World, hostiles: int) -> float:
    """Return how long an honest pod waits that comes after a tenant has submitted so many pods, all older than it."""
    kinds = ("loops", "long selectors", "alternatives", "every device")
    for number in range(hostiles):
        world.submit(hostile_pod(kinds[number % len(kinds)], number))
    one = honest(1)
    world.submit(one)
    began_s = world.clock.monotonic()
    assert world.work_until(lambda: world.has_devices(one), 60.0)
    return world.clock.monotonic() - began_s


BOUND_S = ALLOWANCE_S / (1 - REFILL) + DECISION_S + SLACK_S


def test_the_bound_is_a_quarter_of_a_second() -> None:
    """The floor of what any claim may delay another pod by, also behind the others."""
    assert BOUND_S <= 0.2535
    assert LONGEST_DECISION_S + SLACK_S <= 0.2535


def test_a_pod_waits_no_longer_next_to_many_hostile_ones_that_are_older() -> None:
    assert delay_s(World(), 30) <= BOUND_S


def test_it_does_not_help_to_delete_pods_and_make_new_ones() -> None:
    world = World()
    waits = []
    for number in range(20):
        made = hostile_pod("loops", number)
        world.submit(made)
        one = honest(number)
        world.submit(one)
        began_s = world.clock.monotonic()
        assert world.work_until(lambda one=one: world.has_devices(one), 60.0)  # type: ignore[misc]
        waits.append(world.clock.monotonic() - began_s)
        world.remove_pod(made[0].key)
    assert sum(waits) <= BOUND_S + len(waits) * SLACK_S


def no_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimeBudgets, "deadline", lambda self, key: Deadline(self._clock, 0.5))


def the_order_of_the_queue_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimeBudgets, "behind_others", lambda self, key: None)


def no_allowance(patch: pytest.MonkeyPatch) -> None:
    """Only pods whose last decision was overdue come behind others; those that were not decided for yet do not."""
    patch.setattr(TimeBudgets, "_charge", lambda self, namespace, used_s: None)


@pytest.mark.search
@pytest.mark.parametrize("blunder", [no_deadline, the_order_of_the_queue_alone, no_allowance])
def test_a_weaker_rule_is_found_out(
    monkeypatch: pytest.MonkeyPatch, blunder: Callable[[pytest.MonkeyPatch], None]
) -> None:
    blunder(monkeypatch)
    assert delay_s(World(), 12) > BOUND_S


def test_a_heavy_pod_that_can_be_served_is_served_in_several_tries_also_next_to_hostile_ones() -> None:
    world = World()
    for number in range(5):
        world.submit(hostile_pod("loops", number))
    one = heavy(1)
    world.submit(one)
    assert world.work_until(lambda: world.has_devices(one), 60.0)
    tries = [used_s for key, used_s in world.decided if key == one[0].key]
    assert len(tries) > 3
    assert world.work_until(lambda: world.metric("waiting_pods", reason="took-too-long") == 5, 60.0)


def test_namespaces_take_turns_behind_the_others() -> None:
    world = World()
    for number in range(12):
        for copy in range(3):
            world.submit(hostile_pod("loops", 100 * copy + number, namespace="many"))
        world.submit(hostile_pod("loops", 1000 + number, namespace="few"))
    assert world.work_until(lambda: world.spent_s("few") >= 1.0, 60.0)
    # But for the first tries, before anything was known, each turn of the few has at most a turn of the many beside it.
    assert world.spent_s("many") <= world.spent_s("few") + ALLOWANCE_S + 2 * LONGEST_DECISION_S + DECISION_S


def test_overdue_pods_leave_most_of_the_time_to_the_watches() -> None:
    world = World()
    for number in range(12):
        world.submit(hostile_pod("loops", number))
    world.work_until(lambda: False, 10.0)
    used_s = world.spent_s("hostile")
    assert used_s <= (10.0 + LONGEST_DECISION_S) / (1 + IDLE) + ALLOWANCE_S + DECISION_S
    assert used_s > 1.0  # and they are not forgotten


def test_equal_overdue_pods_stand_behind_each_other() -> None:
    world = World()
    kind = KINDS["loops"](random.Random(1))
    for number in range(50):
        world.submit(named(kind, "hostile", f"equal-{number:02}", "2026-01-01T00:00:00Z"))
    world.work_until(lambda: False, 1.0)
    slow = {key for key, used_s in world.decided if used_s > DECISION_S / 2}
    assert slow == {"hostile/equal-00"}


def test_an_overdue_pod_rests_although_changes_wake_it_and_comes_back_at_last() -> None:
    world = World()
    one = hostile_pod("loops", 1)
    world.submit(one)
    tries: list[float] = []
    until_s = world.clock.monotonic() + 200.0
    while world.clock.monotonic() < until_s:
        before = len(world.decided)
        world.queue.add(one[0].key)  # as each change of the cluster does
        world.work_until(lambda: False, 0.5)
        tries += [world.clock.monotonic()] * (len(world.decided) - before)
    assert 8 <= len(tries) <= 16
    assert tries[-1] - tries[-2] <= LONGEST_REST_S + 1.0


def test_an_overdue_pod_that_is_deleted_is_looked_at_at_once() -> None:
    world = World()
    one = hostile_pod("loops", 1)
    world.submit(one)
    for _ in range(4):
        world.work_until(lambda: False, 1.0)
    assert world.metric("waiting_pods", reason="took-too-long") == 1
    world.remove_pod(one[0].key)
    world.work_until(lambda: False, 0.05)
    assert world.metric("waiting_pods", reason="took-too-long") == 0
    assert world.budgets.behind_others(one[0].key) in (None, "hostile")


def test_steps_are_looked_at_often_enough() -> None:
    assert LOOK_EVERY_STEPS * STEP_S < DECISION_S / 10


def test_a_reason_is_worked_out_within_the_same_bound() -> None:
    world = World()
    one, (asked,) = hostile_pod("every device", 1)
    world.add(asked)
    began_s = world.clock.monotonic()
    found = world.cluster.explain(one, [asked], now_s=0.0, pace=TurnDeadline(world.clock, 0.001))
    assert world.clock.monotonic() - began_s <= 0.001 + SLACK_S
    assert found is not None
    assert "within the time allowed for one pod" in found.text


def test_looking_for_a_node_to_keep_is_bound_too_and_changes_nothing() -> None:
    world = World()
    filler = [named((pod("p", "c"), (claim("c", request(count=7)),)), "full", f"f{n}", "") for n in range(NODES)]
    for one in filler:
        world.submit(one)
    assert world.work_until(lambda: all(map(world.has_devices, filler)), 10.0)
    starving, (asked,) = hostile_pod("every device", 1)
    world.submit((starving, (asked,)))
    decide(world.cluster, starving, world.api.claims[asked.key])
    began_s = world.clock.monotonic()
    world.cluster.keep_for_starving("2027", now_s=0.0, deadline=Deadline(world.clock, 0.001))
    assert world.clock.monotonic() - began_s <= 0.001 + SLACK_S
    world.cluster.check()


def test_nobody_stands_behind_an_equal_pod_of_a_namespace_that_comes_behind_others() -> None:
    """An ordinary pod of the tenant that submits expensive ones is never decided for; an equal one of others is."""

    def popular(namespace: str, name: str, created: str, count: int = 1) -> Hostile:
        return named((pod("p", "c"), (claim("c", request(count=count)),)), namespace, name, created)

    world = World(3)
    fillers = [popular("full", f"f{number}", "2026-01-01T00:00:00Z", 7) for number in range(3)]
    for one in fillers:
        world.submit(one)
    assert world.work_until(lambda: all(map(world.has_devices, fillers)), 10.0)
    world.submit(popular("hostile", "popular", "2026-01-01T00:30:00Z"))
    world.work_until(lambda: False, 0.2)
    for number in range(60):
        world.submit(hostile_pod("loops", number))
    honest = popular("honest", "honest", "2026-01-01T01:00:00Z")
    world.submit(honest)
    world.work_until(lambda: False, 1.0)
    for pod_of, claims in fillers:
        for item in claims:
            world.claim_changed(world.api.claims.pop(item.key), None)
        world.remove_pod(pod_of.key)
    assert world.work_until(lambda: world.has_devices(honest), 1.0)
