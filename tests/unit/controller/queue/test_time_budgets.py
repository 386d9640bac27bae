"""How long pods rest whose decisions were overdue, and what work costs a namespace."""

from __future__ import annotations

from dracaena.controller.queue.time_budgets import (
    ALLOWANCE_S,
    FIRST_REST_S,
    IDLE,
    LONGEST_REST_S,
    REFILL,
    SLOW_S,
    TimeBudgets,
)
from dracaena.controller.queue.work import claim_work
from support.clock import FakeClock


def test_a_pod_whose_tries_go_on_rests_shortly_each_time() -> None:
    slow = TimeBudgets(FakeClock())
    rests = {slow.decided("team/pod", 0.15, overdue=True, goes_on=True) for _ in range(30)}
    assert rests == {FIRST_REST_S}


def test_a_pod_that_has_to_begin_again_rests_longer_each_time() -> None:
    slow = TimeBudgets(FakeClock())
    rests = [slow.decided("team/pod", 0.15, overdue=True) for _ in range(12)]
    assert rests[:3] == [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S]
    assert rests[-1] == LONGEST_REST_S
    assert slow.decided("team/pod", 0.01, overdue=False) == 0.0
    assert slow.decided("team/pod", 0.15, overdue=True) == FIRST_REST_S


def test_both_stand_behind_others() -> None:
    slow = TimeBudgets(FakeClock())
    slow.decided("team/pod", 0.06, overdue=True, goes_on=True)
    assert slow.behind_others("team/pod") == "team"
    assert slow.behind_others("other/pod") is None


def test_work_is_charged_however_short_it_is() -> None:
    budgets = TimeBudgets(FakeClock())
    for _ in range(int(ALLOWANCE_S / 1e-4) - 1):
        budgets.charge("team/pod", 1e-4)
    assert budgets.behind_others("team/other") is None
    budgets.charge(claim_work("team/claim"), 2e-4)
    assert budgets.behind_others("team/other") == budgets.behind_others(claim_work("team/c")) == "team"
    assert budgets.behind_others("others/pod") is None


def test_a_quick_decision_that_gives_devices_is_not_charged_and_a_slow_one_is() -> None:
    budgets = TimeBudgets(FakeClock())
    for _ in range(1_000):
        budgets.charge("team/pod", SLOW_S, gave_devices=True)
    assert budgets.behind_others("team/pod") is None
    for _ in range(8):
        budgets.charge("team/pod", 2 * SLOW_S, gave_devices=True)
    assert budgets.behind_others("team/pod") == "team"


def test_a_namespace_is_like_any_other_again_when_half_of_its_allowance_is_back() -> None:
    clock = FakeClock()
    budgets = TimeBudgets(clock)
    for _ in range(20):
        budgets.charge("team/pod", ALLOWANCE_S / 20)
    clock.advance(0.45 * ALLOWANCE_S / REFILL)
    assert budgets.behind_others("team/pod") == "team"
    clock.advance(0.1 * ALLOWANCE_S / REFILL)
    assert budgets.behind_others("team/pod") is None


def test_what_slow_work_cost_comes_back_within_a_minute_and_more() -> None:
    clock = FakeClock()
    budgets = TimeBudgets(clock)
    budgets.charge("team/pod", 2 * ALLOWANCE_S)
    clock.advance(60.0)
    assert budgets.behind_others("team/pod") == "team"
    clock.advance(31.0)
    assert budgets.behind_others("team/pod") is None


def test_all_that_comes_behind_others_rests_after_work_there() -> None:
    budgets = TimeBudgets(FakeClock())
    assert budgets.charge("team/pod", 0.1) == 0.0  # it came before others
    assert budgets.charge("team/pod", 0.004) == IDLE * 0.004
    assert budgets.charge("team/pod", 0.02) == IDLE * 0.02
    assert budgets.charge("team/pod", 0.004, gave_devices=True) == 0.0
