"""Schedules that the interleaver found to break a rule, shrunk: each broke the code of its day."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.controller.allocation.allocator import NoFit
from support.allocation import claim, pod, request
from support.interleaver import faults
from support.interleaver.process import stepping
from support.interleaver.scenario import Scenario
from support.interleaver.search import Schedule, repeat
from support.reconciling import Bench

NOBODY = frozenset[tuple[str, str]]()


A_CLAIM_IS_NOT_ALLOCATED_ELSEWHERE_WHILE_A_POD_WITHOUT_A_RESERVATION_IS_ON_ITS_WAY = Schedule(
    Scenario((2, 2), {"c": 1}, {"a": ("c",), "b": ("c",)}, {}, frozenset({("a", "n0")})),
    (
        "users create pod a",
        "users create pod b",
        *["p0 sees pods"] * 2,
        "users create claim c",
        "p0 sees resourceclaims",
        "p0 w1 takes work",
        *["p0 w1 goes on"] * 6,
        "2.5 s pass",
        "kube-scheduler tries b",
        "kube-scheduler tries a",
        "kube-scheduler goes on with a",
    ),
)


A_SHARED_CLAIM_IS_NO_HALF_WRITTEN_DECISION_WHILE_A_BIND_WITH_IT_IS_UNDER_WAY = Schedule(
    Scenario(
        (2, 2), {"c1": 2, "c2": 2}, {"b": ("c1",), "c": ("c1", "c2")}, {"c": 10}, frozenset({("c", "n0"), ("c", "n1")})
    ),
    (
        "users create claim c1",
        "users create pod b",
        "kube-scheduler refuses b on n0",
        "kube-scheduler refuses b on n1",
        "p0 crashes",
        "p0 is started again",
        "p0 begins to lead",
        "p0 goes on with start",
        *["p0 w1 takes work", "p0 w1 goes on"] * 2,
        "p0 w1 goes on",
        "p0 w1 goes on",
        "p0 w1 goes on",
        "6.0 s pass",
        "p0 w1 goes on",
        "kube-scheduler tries b",
        "kube-scheduler goes on with b",
        "12.0 s pass",
        "kube-scheduler takes b on n0",
        "p0 sees pods",
        "kube-scheduler tries b",
        "kube-scheduler goes on with b",
        "31.0 s pass",
        "p0 w0 takes work",
        "p0 w0 goes on",
        "p0 w1 takes work",
        "p0 w1 goes on",
        "p0 w1 goes on",
        "users create claim c2",
        "users create pod c",
        "p0 crashes",
        "p0 is started again",
        "kube-scheduler goes on with b",
        "p0 begins to lead",
        "p0 goes on with start",
        "p0 goes on with start",
        "p0 w0 takes work",
        "kube-scheduler goes on with b",
        "p0 w1 takes work",
        "p0 w1 goes on",
    ),
)

WHO_SHARES_A_CLAIM_WITH_A_POD_ON_A_NODE_MAY_GO_ELSEWHERE_ONCE_THAT_IS_GONE = Schedule(
    Scenario(
        (1, 1),
        {"c0": 1, "c1": 1},
        {"b": ("c0",), "c": ("c1",), "d": ("c0",)},
        {"c": 10, "d": 10},
        frozenset({("c", "n0"), ("c", "n1")}),
        on={"d": "n0"},
    ),
    (
        "users create pod c",
        "users create claim c1",
        "2.5 s pass",
        "users create pod d",
        "users create pod b",
        "users create claim c0",
        "kube-scheduler sees resourceclaims",
        "kube-scheduler sees pods",
        "kube-scheduler sees pods",
        "kube-scheduler tries b",
        "kube-scheduler goes on with b",
        "users delete pod d",
    ),
)

A_POD_WHOSE_CARD_KUBE_SCHEDULER_ALLOCATES_KEEPS_ITS_GPU_WHILE_ITS_NODE_IS_GONE = Schedule(
    Scenario(
        (1,),
        {"c1": 1, "xb": 1},
        {"b": ("c1", "xb")},
        {},
        NOBODY,
        nominate=False,
        changes=True,
        cards=(2,),
        nics=frozenset({"xb"}),
    ),
    (
        "users create claim c1",
        "users create pod b",
        "users create claim xb",
        "p0 crashes",
        "p0 is started again",
        "p0 begins to lead",
        *["p0 goes on with start"] * 2,
        *["p0 w0 takes work", "p0 w0 goes on"] * 3,
        *["p0 w0 goes on"] * 3,
        "12.0 s pass",
        "kube-scheduler tries b",
        "kube-scheduler goes on with b",
        "p0 w0 goes on",
        "admins remove n0",
        "p0 sees nodes",
        "p0 w1 takes work",
        "p0 w1 goes on",
        "kube-scheduler goes on with b",
        "p0 w1 takes work",
        *["kube-scheduler goes on with b"] * 2,
    ),
)


NOBODY_GETS_A_CLAIM_WHILE_A_POD_MAY_BE_BOUND_WITH_IT_SINCE_BEFORE_THE_LEADER = Schedule(
    Scenario(
        (2, 2),
        {"c": 2, "d": 1},
        {"a": ("c",), "b": ("c",), "e": ("d",), "f": ("d", "c")},
        {"f": 10},
        frozenset({("a", "n1"), ("b", "n1"), ("e", "n1"), ("f", "n0")}),
        gated=frozenset({"a", "e"}),
        halves=frozenset({"d"}),
    ),
    (
        "users create claim d",
        "users create pod e",
        "p0 sees resourceclaims",
        "users create claim c",
        "users create pod b",
        *["p0 sees pods"] * 2,
        "p0 w0 takes work",
        "p0 w0 goes on",
        "p0 sees resourceclaims",
        "p0 w0 takes work",
        "users create pod a",
        *["p0 w0 goes on"] * 3,
        "users ungate pod a",
        "kube-scheduler takes b on n1",
        "p0 w0 goes on",
        "2.5 s pass",
        "p0 loses its lease",
        "kube-scheduler refuses b on n0",
        "kube-scheduler tries a",
        "kube-scheduler tries b",
        "kube-scheduler goes on with b",
    ),
)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(A_SHARED_CLAIM_IS_NO_HALF_WRITTEN_DECISION_WHILE_A_BIND_WITH_IT_IS_UNDER_WAY, id="half-written"),
        pytest.param(A_CLAIM_IS_NOT_ALLOCATED_ELSEWHERE_WHILE_A_POD_WITHOUT_A_RESERVATION_IS_ON_ITS_WAY, id="old-bind"),
        pytest.param(WHO_SHARES_A_CLAIM_WITH_A_POD_ON_A_NODE_MAY_GO_ELSEWHERE_ONCE_THAT_IS_GONE, id="left-a-node"),
        pytest.param(
            A_POD_WHOSE_CARD_KUBE_SCHEDULER_ALLOCATES_KEEPS_ITS_GPU_WHILE_ITS_NODE_IS_GONE, id="card-of-another-driver"
        ),
        pytest.param(NOBODY_GETS_A_CLAIM_WHILE_A_POD_MAY_BE_BOUND_WITH_IT_SINCE_BEFORE_THE_LEADER, id="earlier-leader"),
    ],
)
def test_a_schedule_that_broke_a_rule_breaks_none_any_more(schedule: Schedule) -> None:
    with stepping():
        broken = repeat(schedule)
    assert broken is None, str(broken)


def test_the_schedule_in_which_only_a_reservation_counts_as_being_on_the_way_breaks_a_rule() -> None:
    """bindClaim of kube-scheduler 1.36 reads a claim again after a conflict, and compares nothing but that it is still
    allocated."""
    with stepping(), faults.forgets_binds_without_a_reservation():
        broken = repeat(A_CLAIM_IS_NOT_ALLOCATED_ELSEWHERE_WHILE_A_POD_WITHOUT_A_RESERVATION_IS_ON_ITS_WAY)
    assert broken is not None
    assert "not allocated there" in broken.why


def test_the_schedule_in_which_a_new_leader_asks_only_about_pods_with_a_node_breaks_a_rule() -> None:
    with stepping(), faults.asks_only_about_pods_with_a_node():
        broken = repeat(NOBODY_GETS_A_CLAIM_WHILE_A_POD_MAY_BE_BOUND_WITH_IT_SINCE_BEFORE_THE_LEADER)
    assert broken is not None
    assert "with which default/a was bound" in broken.why


def test_a_pod_that_was_made_again_between_two_looks_does_not_stand_behind_itself() -> None:
    bench = Bench()
    first = pod("p", "c")
    bench.add(claim("c", request(count=8)), first)
    bench.run()
    metadata = msgspec.structs.replace(first.metadata, uid="again", creation_timestamp=None)
    earlier = msgspec.structs.replace(first.metadata, creation_timestamp="2026-01-01T00:00:00Z")
    bench.add(msgspec.structs.replace(first, metadata=earlier))
    bench.run()
    bench.add(msgspec.structs.replace(first, metadata=metadata))
    again, asked = bench.cluster.pod("default/p"), bench.cluster.claim("default/c")
    assert again is not None
    assert asked is not None
    assert isinstance(bench.cluster.decide(again, [asked], decision_id="d", now_s=0.0), NoFit)
