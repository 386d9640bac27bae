"""Whether an allocation leads anywhere, from what is known of a pod and its claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.controller.lifecycle.claim_record import ClaimRecord, first_record
from dracaena.controller.lifecycle.pod_record import ELSEWHERE, PodRecord, Said
from dracaena.controller.lifecycle.prospects import (
    LOOK_S,
    NOT_SEEN,
    SETTLE_S,
    UNRESERVED_S,
    LedNowhere,
    Patience,
    Situation,
    verdict,
)
from support.allocation import claim, holding

PATIENCE = Patience(refused_s=10.0, passed_over_s=60.0)
ANTI = Said("Unschedulable", f"0/2 nodes are available: 1 anti-affinity, 1 {ELSEWHERE}.")
CLOSED = Said("Unschedulable", "0/2 nodes are available: 2 node(s) were unschedulable.")
FAULT = Said("SchedulerError", "running Reserve plugin: boom")


def ours(allocated_s: float = 0.0, unreserved_s: float | None = None) -> ClaimRecord:
    return replace(
        first_record(holding(claim("c"), "a", "gpu-1"), 0.0), allocated_s=allocated_s, unreserved_s=unreserved_s
    )


def situation(said: Said | None = None, said_s: float = 0.0, **facts: object) -> Situation:
    usual = Situation(
        PodRecord("default/p", "uid-p", 0.0, said, said_s),
        "a",
        nominated=False,
        ours=(ours(),),
        whole=True,
        passed_over=False,
        quiet_s=0.0,
        others_wait=False,
    )
    return replace(usual, **facts)  # type: ignore[arg-type]


def test_a_refusal_has_to_stand_for_a_while() -> None:
    now = situation(ANTI, SETTLE_S + 1)
    assert verdict(now, SETTLE_S + 1, PATIENCE) == 10.0
    assert verdict(now, SETTLE_S + 10, PATIENCE) == 1.0
    assert verdict(now, SETTLE_S + 11, PATIENCE) == LedNowhere("refused", node_matters=True)


def test_where_no_node_would_do_the_node_does_not_matter() -> None:
    assert verdict(situation(CLOSED, 20.0), 30.0, PATIENCE) == LedNowhere("refused", node_matters=False)


@pytest.mark.parametrize("said_s", [0.0, SETTLE_S])
def test_what_was_said_before_or_right_after_the_allocation_may_be_about_a_try_without_devices(said_s: float) -> None:
    assert verdict(situation(ANTI, said_s), 50.0, PATIENCE) == 10.0, "until the pod may be passed over"


def test_words_about_claims_that_are_not_allocated_are_old_however_late_they_come() -> None:
    said = Said("Unschedulable", f"0/9 nodes are available: 9 {NOT_SEEN}.")
    assert verdict(situation(said, 40.0), 50.0, PATIENCE) == 10.0
    assert verdict(situation(said, 40.0, whole=False), 50.0, PATIENCE) == LedNowhere("refused", node_matters=False)


def test_with_a_claim_of_another_driver_words_about_the_node_of_ours_are_new_at_once() -> None:
    """kube-scheduler clears nothing of a pod of which only some claims are allocated."""
    said = Said("Unschedulable", f"0/9 nodes are available: 1 {NOT_SEEN}, 8 {ELSEWHERE}.")
    assert verdict(situation(said, 0.1, whole=False), 10.1, PATIENCE) == LedNowhere("refused", node_matters=True)
    assert verdict(situation(ANTI, 0.1), 10.1, PATIENCE) == pytest.approx(49.9), "it would have cleared one"


def test_a_fault_of_the_scheduler_is_no_refusal() -> None:
    assert verdict(situation(FAULT, 20.0), 40.0, PATIENCE) == 20.0
    assert verdict(situation(FAULT, 20.0, passed_over=True), 60.0, PATIENCE) == LedNowhere(
        "passed-over", node_matters=True
    )


def test_room_that_is_made_by_preemption_is_waited_for() -> None:
    assert verdict(situation(ANTI, 20.0, nominated=True), 500.0, PATIENCE) == LOOK_S


def test_a_pod_that_was_passed_over_gives_back_after_a_while() -> None:
    assert verdict(situation(passed_over=True), 59.0, PATIENCE) == 1.0
    assert verdict(situation(passed_over=True), 60.0, PATIENCE) == LedNowhere("passed-over", node_matters=False)


def test_where_nothing_is_bound_at_all_it_gives_back_if_others_could_use_it() -> None:
    assert verdict(situation(quiet_s=60.0, others_wait=True), 60.0, PATIENCE) == LedNowhere(
        "passed-over", node_matters=False
    )
    assert verdict(situation(quiet_s=60.0), 60.0, PATIENCE) == LOOK_S
    assert verdict(situation(quiet_s=50.0, others_wait=True), 60.0, PATIENCE) == 10.0
    assert verdict(situation(quiet_s=1.0, others_wait=True), 60.0, PATIENCE) == LOOK_S


def test_who_has_no_reservation_for_long_gives_back_from_when_the_pod_came() -> None:
    now = situation(ours=(ours(unreserved_s=3.0),))
    assert verdict(now, 3.0, PATIENCE) == UNRESERVED_S
    assert verdict(now, 3.0 + UNRESERVED_S, PATIENCE) == LedNowhere("unreserved", node_matters=True)
    came_later = situation(ours=(ours(unreserved_s=3.0),), pod=PodRecord("default/p", "uid-p", 20.0))
    assert verdict(came_later, 33.0, PATIENCE) == 17.0


def test_the_last_allocation_of_a_pod_counts() -> None:
    now = situation(ANTI, 20.0, ours=(ours(), ours(allocated_s=30.0)))
    assert verdict(now, 40.0, PATIENCE) == 50.0
