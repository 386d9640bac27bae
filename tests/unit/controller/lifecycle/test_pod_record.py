"""What is known of a pod without a node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import Pod, PodCondition
from dracaena.controller.lifecycle.pod_record import (
    ELSEWHERE,
    Growth,
    PodRecord,
    Said,
    Wait,
    is_unbound,
    leave_all_out,
    leave_out,
    read_unbound,
    see,
)
from support.allocation import pod

WAITING = pod("p", "c")
START = datetime(2026, 1, 1, tzinfo=UTC)
GROWTH = Growth(first_s=60.0, longest_s=200.0)


PROBE = "2026-01-01T00:00:00Z"


def at_version(version: int | str, item: Pod = WAITING) -> Pod:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, resource_version=str(version)))


def refused(
    message: str, version: int | str = 1, *, reason: str = "Unschedulable", probe: str = "", status: str = "False"
) -> Pod:
    condition = PodCondition("PodScheduled", status, reason, message, last_probe_time=probe or None)
    item = msgspec.structs.replace(WAITING, status=msgspec.structs.replace(WAITING.status, conditions=[condition]))
    return at_version(version, item)


def at(now_s: float) -> tuple[float, datetime]:
    return now_s, START + timedelta(seconds=now_s)


def test_what_was_said_before_the_pod_was_seen_is_known_and_no_word_of_a_try_that_ended_since() -> None:
    record = see(None, refused("no room", 4), 7.0)
    assert (record.said, record.said_s, record.version) == (Said("Unschedulable", "no room"), 7.0, 4)
    assert (record.spoke_s, record.requested_s) == (-inf, -inf)
    assert record.first_seen_s == 7.0


def test_when_the_watch_shows_new_words_says_nothing_about_when_they_were_said() -> None:
    record = see(see(None, WAITING, 0.0), refused("no room", 2), 5.0)
    assert (record.said_s, record.spoke_s) == (5.0, -inf)


def test_words_in_a_later_state_than_the_servers_answer_tell_of_a_try_that_ended_since_it_was_asked() -> None:
    record = read_unbound(see(None, WAITING, 0.0), refused("no room", 3), 5.0, 5.2)
    assert (record.said_s, record.requested_s, record.requested_version, record.spoke_s) == (5.2, 5.0, 3, -inf)
    record = see(record, refused("no volume", 4), 9.0)
    assert (record.said, record.said_s, record.spoke_s) == (Said("Unschedulable", "no volume"), 9.0, 5.0)
    assert see(record, refused("no room", 7), 30.0).spoke_s == 5.0, "it may have been said long before it was shown"


def test_the_first_words_of_all_tell_of_a_try_too() -> None:
    record = read_unbound(see(None, WAITING, 0.0), WAITING, 5.0, 5.2)
    assert see(record, refused("no room", 2), 9.0).spoke_s == 5.0


def test_words_that_the_answer_brings_were_said_before_and_tell_of_the_time_of_the_answer_before_that() -> None:
    record = read_unbound(see(None, WAITING, 0.0), refused("no room", 3), 5.0, 5.2)
    record = read_unbound(record, refused("no volume", 4), 8.0, 8.2)
    assert (record.said, record.requested_s, record.requested_version, record.spoke_s) == (
        Said("Unschedulable", "no volume"),
        8.0,
        4,
        5.0,
    )


def test_a_state_that_is_older_than_the_newest_one_is_none() -> None:
    record = read_unbound(see(None, WAITING, 0.0), refused("no room", 3), 5.0, 5.2)
    assert see(record, refused("no volume", 2), 9.0) is record


def test_an_answer_that_is_older_than_what_the_watch_shows_is_none() -> None:
    record = see(None, refused("no room", 3), 6.0)
    assert read_unbound(record, WAITING, 5.0, 6.1) is record


def test_an_answer_with_the_state_that_the_watch_shows_counts() -> None:
    record = read_unbound(see(None, refused("no room", 3), 6.0), refused("no room", 3), 7.0, 7.1)
    assert (record.requested_s, record.requested_version, record.said_s) == (7.0, 3, 6.0)
    assert see(record, refused("no room", 3), 9.0) == record, "the same state once more"
    assert see(record, refused("no volume", 3), 9.0).spoke_s == -inf, "no later state"


def test_the_same_words_in_a_later_state_tell_nothing() -> None:
    """Somebody changed a label of the pod."""
    record = read_unbound(see(None, WAITING, 0.0), refused("no room", 2), 5.0, 5.2)
    assert see(record, refused("no room", 3), 9.0) == replace(record, version=3)


def test_a_probe_that_is_wiped_tells_that_a_try_ended_and_keeps_since_when_it_is_said() -> None:
    record = see(see(None, WAITING, 0.0), refused("no room", 2), 5.0)
    probed = read_unbound(record, refused("no room", 3, probe=PROBE), 6.0, 6.2)
    assert (probed.probed, probed.spoke_s) == (True, -inf)
    still = see(probed, refused("no room", 4, probe=PROBE), 8.0)
    assert (still.probed, still.spoke_s) == (True, -inf)
    wiped = see(still, refused("no room", 5), 9.0)
    assert (wiped.probed, wiped.said_s, wiped.spoke_s) == (False, 5.0, 6.0)


def test_a_probe_that_was_wiped_before_the_server_was_asked_again_tells_of_the_time_before() -> None:
    probed = read_unbound(see(None, WAITING, 0.0), refused("no room", 3, probe=PROBE), 6.0, 6.2)
    wiped = read_unbound(probed, refused("no room", 4), 8.0, 8.2)
    assert (wiped.requested_s, wiped.spoke_s) == (8.0, 6.0)


def test_words_that_somebody_took_away_tell_of_no_try() -> None:
    """kube-scheduler writes its condition anew, and never takes it away from a pod without a node."""
    record = read_unbound(see(None, WAITING, 0.0), refused("no room", 2), 1.0, 1.2)
    record = see(record, at_version(3), 4.0)
    assert (record.said, record.spoke_s) == (None, -inf)
    assert see(record, refused("no room", 4), 9.0).spoke_s == 1.0


def test_where_a_version_is_no_number_no_word_is_known_to_be_later() -> None:
    record = read_unbound(see(None, refused("", "x"), 0.0), refused("no room", "x"), 5.0, 5.2)
    assert see(record, refused("no volume", "y"), 9.0).spoke_s == -inf


class Reality:
    """A pod on the server with all its states, and one that follows it with a late watch and slow answers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.states = [at_version(1)]
        self.tries_s: list[float] = []
        """When kube-scheduler ended a try."""
        self.answers: list[tuple[float, Pod]] = []
        """What was asked for and is not taken in yet."""
        self.shown = 1
        self.record = see(None, self.states[0], 0.0)

    def write(self, item: Pod) -> None:
        self.states.append(at_version(len(self.states) + 1, item))

    def step(self, what: str) -> None:
        self.now_s += 1.0
        newest = self.states[-1]
        conditions = newest.status.conditions
        if what in ("no room", "no volume"):
            self.tries_s.append(self.now_s)
            if conditions != refused(what).status.conditions:  # kube-scheduler writes only what is different
                self.write(refused(what))
        elif what == "label":
            self.write(newest)
        elif what == "take words away":
            self.write(WAITING)
        elif what == "probe" and conditions:
            self.write(refused(conditions[0].message or "", probe=PROBE))
            self.answers.append((self.now_s, self.states[-1]))
        elif what == "ask":
            self.answers.append((self.now_s, newest))
        elif what == "watch" and self.shown < len(self.states):
            self.record = see(self.record, self.states[self.shown], self.now_s)
            self.shown += 1
        elif what == "answer" and self.answers:
            requested_s, item = self.answers.pop(0)
            self.record = read_unbound(self.record, item, requested_s, self.now_s)


WHAT = ("no room", "no volume", "label", "take words away", "probe", "ask", "watch", "answer")


@given(st.lists(st.sampled_from(WHAT), max_size=40))
def test_whenever_a_try_is_known_to_have_ended_since_a_time_one_did(steps: list[str]) -> None:
    reality = Reality()
    for what in steps:
        reality.step(what)
        spoke_s = reality.record.spoke_s
        assert spoke_s == -inf or any(ended_s > spoke_s for ended_s in reality.tries_s)


@given(st.lists(st.sampled_from(WHAT), max_size=20))
def test_after_a_probe_the_next_try_that_fails_is_known_whatever_was_before(steps: list[str]) -> None:
    reality = Reality()
    for what in [*steps, "no room", "probe"]:
        reality.step(what)
    probed_s = reality.now_s
    for what in [*["answer"] * len(reality.answers), "no room", *["watch"] * len(reality.states), "watch"]:
        reality.step(what)
    assert reality.record.spoke_s == probed_s


@pytest.mark.parametrize(
    "item",
    [refused("Scheduling is blocked", reason="SchedulingGated"), refused("", status="True"), WAITING],
    ids=["gated", "scheduled", "no condition"],
)
def test_that_a_pod_is_gated_or_scheduled_is_no_word_of_kube_schedulers(item: Pod) -> None:
    assert see(None, item, 0.0).said is None


def test_another_node_would_do_where_only_the_devices_speak_against_it() -> None:
    assert Said("Unschedulable", f"0/2 nodes: 1 {ELSEWHERE}").others_would_do
    assert not Said("Unschedulable", "0/2 nodes: 2 no room").others_would_do


@pytest.mark.parametrize(
    ("node", "phase", "unbound"),
    [("", "Pending", True), ("", "", True), ("a", "Pending", False), ("", "Failed", False), ("", "Succeeded", False)],
)
def test_a_pod_may_be_bound_until_it_is_or_ended(node: str, phase: str, unbound: bool) -> None:
    item = pod("p", "c", nodeName=node)
    item = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase=phase))
    assert is_unbound(item) is unbound


def fresh() -> PodRecord:
    return see(None, WAITING, 0.0)


def test_a_node_is_left_out_for_a_time_that_doubles_up_to_the_longest() -> None:
    record, now_s = fresh(), 0.0
    ends = ("00:01:00", "00:03:00", "00:06:20", "00:09:40")
    for tries, (wait_s, end) in enumerate(zip((60.0, 120.0, 200.0, 200.0), ends, strict=True), start=1):
        record = leave_out(record, "a", *at(now_s), GROWTH)
        assert record.nodes_left_out(now_s) == {"a": Wait(tries, now_s + wait_s, f"2026-01-01T{end}Z")}
        assert list(record.nodes_left_out(now_s + wait_s - 0.1)) == ["a"]
        now_s += wait_s
        assert record.nodes_left_out(now_s) == {}


def test_one_failure_that_is_reported_twice_counts_once() -> None:
    record = leave_out(fresh(), "a", *at(0.0), GROWTH)
    assert leave_out(record, "a", *at(2.0), GROWTH) == record
    assert leave_out(record, "a", *at(60.0), GROWTH).left_out["a"].again_s == 180.0


def test_each_node_has_its_own_time() -> None:
    record = leave_out(leave_out(fresh(), "a", *at(0.0), GROWTH), "b", *at(20.0), GROWTH)
    assert {node: wait.again_s for node, wait in record.nodes_left_out(20.0).items()} == {"a": 60.0, "b": 80.0}
    assert list(record.nodes_left_out(60.0)) == ["b"]


def test_all_nodes_are_left_out_until_something_new_is_said_or_the_time_is_over() -> None:
    record = leave_all_out(see(None, refused("no volume"), 0.0), *at(0.0), GROWTH)
    assert record.nodes_left_out(0.0) == {}
    assert record.held(59.0) == Wait(1, 60.0, "2026-01-01T00:01:00Z")
    assert see(record, refused("no room", 2), 5.0).held(5.0) is None
    assert record.held(60.0) is None
    again = leave_all_out(record, *at(60.0), GROWTH).held(60.0)
    assert again is not None
    assert again.again_s == 180.0


def test_the_longest_wait_holds_after_any_number_of_failures() -> None:
    record, now_s = fresh(), 0.0
    for _ in range(2_000):
        record = leave_out(record, "a", *at(now_s), GROWTH)
        now_s = record.left_out["a"].again_s
    assert now_s == 60 + 120 + 200 * 1_998
