"""Where pods without a node will go, as a claim's record tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.lifecycle.claim_record import (
    ClaimShare,
    Doubt,
    PodIdentity,
    decide,
    expected_places,
    first_record,
    only_node,
    send,
    show,
)
from dracaena.controller.lifecycle.phases import Phase, RecordEvent
from support.allocation import allocated, claim, pod

P, Q = PodIdentity("default/p", "uid-p"), PodIdentity("default/q", "uid-q")


def given(version: int, *users: Pod, node: str = "a", rule: dict[str, Any] | None = None) -> ResourceClaim:
    rule = rule or {"key": "metadata.name", "operator": "In", "values": [node]}
    document = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]}}
    return allocated(claim("c"), document, *users, resource_version=str(version))


def test_who_is_decided_for_is_expected_where_that_was_decided() -> None:
    decided = decide(first_record(claim("c"), 0.0), ClaimShare("d", P, "a", frozenset()))
    assert expected_places(decided) == {P: "a"}
    assert expected_places(send(decided, RecordEvent.SEND_ALLOCATION)) == {P: "a"}


def test_who_has_a_reservation_is_expected_on_the_node_of_the_allocation() -> None:
    assert expected_places(first_record(given(1, pod("p"), pod("q")), 0.0)) == {P: "a", Q: "a"}


def test_who_had_a_reservation_and_may_be_on_its_way_is_expected_too_also_when_all_is_cleared() -> None:
    record = show(first_record(given(1, pod("p")), 0.0), given(2), 1.0)
    assert expected_places(record) == {P: "a"}
    resting = show(record, claim("c", resource_version="3"), 2.0)
    assert resting.phase is Phase.RESTING
    assert expected_places(resting) == {P: "a"}


def test_who_is_on_the_way_with_what_rests_is_expected_there_and_the_users_of_what_is_there_now_are_elsewhere() -> None:
    resting = show(show(first_record(given(1, pod("p")), 0.0), given(2), 1.0), claim("c", resource_version="3"), 2.0)
    assert expected_places(show(resting, given(4, pod("q"), node="b"), 3.0)) == {P: "a", Q: "b"}


def test_where_nobody_knows_who_is_on_the_way_nobody_is_expected() -> None:
    record = replace(first_record(given(1), 0.0), doubts=(Doubt(None, 0.0),))
    assert expected_places(record) == {}


def test_a_claim_that_is_free_or_unknown_tells_nothing() -> None:
    assert expected_places(None) == {}
    assert expected_places(first_record(claim("c"), 0.0)) == {}


def test_an_allocation_for_more_than_one_node_tells_of_none() -> None:
    rule = {"key": "metadata.labels", "operator": "Exists"}
    wide = given(1, pod("p"), rule=rule)
    assert only_node(wide) is None
    assert expected_places(first_record(wide, 0.0)) == {}
    assert only_node(claim("c")) is None


def test_for_whom_devices_are_kept_while_others_are_evicted_is_expected_there() -> None:
    decided = decide(first_record(claim("c"), 0.0), ClaimShare("d", P, "a", frozenset(), preempting=True))
    allocated_for_it = show(send(decided, RecordEvent.SEND_ALLOCATION), given(2, pod("p")), 1.0)
    kept = show(allocated_for_it, claim("c", resource_version="3"), 2.0)
    assert kept.phase is Phase.KEPT
    assert expected_places(kept) == {P: "a"}
