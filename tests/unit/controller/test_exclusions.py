from __future__ import annotations

from dracaena.controller.exclusions import TRIED, End, Exclusions
from support.allocation import pod
from support.clock import FakeClock

POD = pod("p", "c")
UID = POD.metadata.uid


def table() -> tuple[Exclusions, FakeClock]:
    clock = FakeClock()
    return Exclusions(clock, first_s=60.0, longest_s=200.0), clock


def test_a_node_is_left_out_for_a_time_that_doubles_up_to_the_longest() -> None:
    exclusions, clock = table()
    ends = ("00:01:00", "00:03:00", "00:06:20", "00:09:40")
    for wait_s, end in zip((60.0, 120.0, 200.0, 200.0), ends, strict=True):
        assert exclusions.exclude(POD.key, UID, "a") == wait_s
        assert exclusions.barred(POD) == {"a": TRIED}
        clock.advance(wait_s - 1)
        assert exclusions.barred(POD) == {"a": TRIED}
        assert exclusions.next_end(POD) == End(1.0, f"2026-01-01T{end}Z")
        clock.advance(1)
        assert exclusions.barred(POD) == {}
        assert exclusions.next_end(POD) is None


def test_one_failure_that_is_told_twice_counts_once() -> None:
    exclusions, clock = table()
    assert exclusions.exclude(POD.key, UID, "a") == 60.0
    clock.advance(2)
    assert exclusions.exclude(POD.key, UID, "a") == 58.0
    clock.advance(58)
    assert exclusions.exclude(POD.key, UID, "a") == 120.0


def test_each_node_has_its_own_time_and_the_first_end_counts() -> None:
    exclusions, clock = table()
    exclusions.exclude(POD.key, UID, "a")
    clock.advance(20)
    exclusions.exclude(POD.key, UID, "b")
    assert exclusions.barred(POD) == {"a": TRIED, "b": TRIED}
    assert exclusions.next_end(POD) == End(40.0, "2026-01-01T00:01:00Z")
    clock.advance(40)
    assert exclusions.barred(POD) == {"b": TRIED}


def test_all_nodes_are_left_out_until_something_new_is_said_or_the_time_is_over() -> None:
    exclusions, clock = table()
    assert exclusions.held(POD, None) is None
    assert exclusions.hold(POD, "no volume") == 60.0
    assert exclusions.barred(POD) == {}
    assert exclusions.held(POD, "no volume") == End(60.0, "2026-01-01T00:01:00Z")
    assert exclusions.held(POD, "something new") is None
    clock.advance(60)
    assert exclusions.held(POD, "no volume") is None
    assert exclusions.hold(POD, "no volume") == 120.0


def test_another_pod_of_the_same_name_begins_anew() -> None:
    exclusions, _ = table()
    exclusions.exclude(POD.key, UID, "a")
    exclusions.hold(POD, "no volume")
    again = pod("p", "c")
    again = type(again)(metadata=type(again.metadata)(name="p", namespace="default", uid="other"), spec=again.spec)
    assert exclusions.barred(again) == {}
    assert exclusions.held(again, "no volume") is None
    assert exclusions.next_end(again) is None
    assert exclusions.exclude(again.key, "other", "b") == 60.0
    assert exclusions.barred(POD) == {}


def test_a_pod_that_went_is_forgotten() -> None:
    exclusions, _ = table()
    exclusions.exclude(POD.key, UID, "a")
    exclusions.drop(POD.key)
    exclusions.drop(POD.key)
    assert exclusions.barred(POD) == {}
    assert exclusions.exclude(POD.key, UID, "a") == 60.0


def test_a_pod_that_is_dropped_by_its_uid_leaves_a_later_one_of_its_name_alone() -> None:
    exclusions, _ = table()
    exclusions.exclude(POD.key, UID, "a")
    exclusions.drop(POD.key, "of-one-before")
    assert exclusions.barred(POD) == {"a": TRIED}
    exclusions.drop(POD.key, UID)
    assert exclusions.barred(POD) == {}
