"""How long pods rest whose decisions were overdue."""

from __future__ import annotations

from dracaena.controller.queue.time_budgets import FIRST_REST_S, LONGEST_REST_S, TimeBudgets
from support.clock import FakeClock


def test_a_pod_whose_tries_go_on_rests_shortly_each_time() -> None:
    slow = TimeBudgets(FakeClock())
    rests = {slow.decided("team/pod", 0.15, overdue=True, goes_on=True) for _ in range(30)}
    assert rests == {FIRST_REST_S}


def test_a_pod_that_has_to_begin_anew_rests_longer_each_time() -> None:
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
