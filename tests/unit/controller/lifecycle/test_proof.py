"""Who may still be bound with devices that are to go to somebody else."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.controller.lifecycle.claim_record import ClaimRecord, Doubt, PodIdentity, first_record
from dracaena.controller.lifecycle.pod_record import PodRecord
from dracaena.controller.lifecycle.proof import (
    BEHIND_S,
    Bounds,
    by_uid,
    earliest_request_s,
    is_known,
    standing,
    unproven,
)
from support.allocation import claim

BOUNDS = Bounds(settle_s=2.0, longest_bind_s=100.0, late_write_s=12.0)
P = PodIdentity("default/p", "uid-p")


def record(*doubts: Doubt) -> ClaimRecord:
    known = first_record(claim("c"), 0.0)
    return ClaimRecord(shown=known.shown, phase=known.phase, doubts=doubts)


def seen(
    name: str = "p", *, first_s: float = 0.0, spoke_s: float = -inf, requested_s: float = -inf, uid: str = ""
) -> PodRecord:
    return PodRecord(f"default/{name}", uid or f"uid-{name}", first_s, spoke_s=spoke_s, requested_s=requested_s)


def stands(doubt: Doubt, *unbound: PodRecord, now_s: float = 1e6) -> bool:
    return standing((doubt,), by_uid(unbound), now_s, BOUNDS) == (doubt,)


def test_a_doubt_stands_until_kube_scheduler_spoke_of_the_pod_later_than_it_takes_to_see_the_change() -> None:
    doubt = Doubt(P, 10.0)
    assert stands(doubt, seen())
    assert stands(doubt, seen(spoke_s=9.0))
    assert stands(doubt, seen(spoke_s=11.9))
    assert not stands(doubt, seen(spoke_s=12.0))


def test_a_pod_that_the_server_showed_gated_later_was_never_tried() -> None:
    doubt, gated = Doubt(P, 10.0), replace(seen(), is_gated=True)
    assert stands(doubt, gated), "the watch may be behind"
    assert stands(doubt, replace(gated, requested_s=9.9))
    assert not stands(doubt, replace(gated, requested_s=10.0))


def test_words_about_another_pod_prove_nothing() -> None:
    doubt = Doubt(P, 10.0)
    assert stands(doubt, seen(), seen("q", spoke_s=40.0, requested_s=200.0))
    assert stands(doubt, seen(uid="another", spoke_s=40.0, requested_s=200.0)), "a later pod of its name"


def test_a_pod_that_the_watch_does_not_show_proves_nothing_by_that() -> None:
    assert stands(Doubt(P, 10.0))
    assert stands(Doubt(P, 10.0), seen("q"))


def test_a_doubt_ends_when_the_server_has_the_pod_without_a_node_after_the_longest_bind() -> None:
    doubt = Doubt(P, 10.0)
    assert stands(doubt, seen(requested_s=111.9)), "a try that began before the change was seen binds until then"
    assert not stands(doubt, seen(requested_s=112.0))
    assert stands(doubt, seen("q", requested_s=112.0)), "another pod was asked for"


def test_an_answer_before_the_longest_bind_is_over_proves_nothing_without_later_words() -> None:
    doubt = Doubt(P, 10.0)
    assert stands(doubt, seen(requested_s=50.0, spoke_s=11.0))
    assert not stands(doubt, seen(requested_s=50.0, spoke_s=50.0))


def test_a_drop_that_may_land_any_time_is_in_doubt_without_an_end() -> None:
    assert stands(Doubt(P, inf), seen(spoke_s=1e9, requested_s=1e9))


def test_where_nobody_knows_who_had_a_reservation_everybody_who_was_there_has_to_be_spoken_of() -> None:
    doubt = Doubt(None, 10.0)
    assert not stands(doubt)
    assert stands(doubt, seen(spoke_s=13.0), seen("q"))
    assert not stands(doubt, seen(spoke_s=13.0), seen("q", spoke_s=13.0))
    assert not stands(doubt, seen(spoke_s=13.0), seen("q", requested_s=112.0))
    assert not stands(doubt, seen("q", first_s=25.1)), "it came later, and has to reserve first"
    assert stands(doubt, seen("q", first_s=25.0)), "the watch may have shown it late"


def test_where_nobody_knows_who_had_a_reservation_the_watch_has_time_to_show_everybody() -> None:
    assert stands(Doubt(None, 10.0), now_s=10.0 + BEHIND_S - 0.1)
    assert not stands(Doubt(None, 10.0), now_s=10.0 + BEHIND_S)
    assert not stands(Doubt(P, 10.0), seen(spoke_s=12.0), now_s=12.0)


def test_the_pods_that_a_doubt_stands_about_are_named_in_the_order_given() -> None:
    p, q, r = seen("p"), seen("q", spoke_s=12.0), seen("r")
    assert unproven(Doubt(None, 10.0), by_uid([r, q, p]), BOUNDS) == (r, p)
    assert unproven(Doubt(P, 10.0), by_uid([r, q, p]), BOUNDS) == (p,)
    assert unproven(Doubt(P, 10.0), by_uid([r, q]), BOUNDS) == ()


def test_the_pod_of_a_doubt_is_known_by_its_uid_and_no_pod_is_missing_where_anybody_may_be_meant() -> None:
    assert is_known(Doubt(P, 10.0), by_uid([seen("q"), seen()]))
    assert not is_known(Doubt(P, 10.0), by_uid([seen("q"), seen(uid="another")]))
    assert is_known(Doubt(None, 10.0), by_uid([]))


@pytest.mark.parametrize(
    ("now_s", "from_s"), [(10.0, 12.0), (12.0, 12.0), (111.9, 12.0), (112.0, 112.0), (500.0, 112.0)]
)
def test_the_server_is_asked_once_the_change_is_seen_and_again_after_the_longest_bind(
    now_s: float, from_s: float
) -> None:
    assert earliest_request_s(Doubt(P, 10.0), now_s, BOUNDS) == from_s


def test_while_a_drop_may_still_land_there_is_no_time_to_ask() -> None:
    assert earliest_request_s(Doubt(P, inf), 1e9, BOUNDS) == inf


# Against a slow and obvious version. The times are whole seconds, few and close together, so that they often meet.

CLOSE = Bounds(settle_s=2.0, longest_bind_s=6.0, late_write_s=2.0)
END_S = 40
TIMES = st.integers(0, END_S - 1).map(float)
NAMES = st.sampled_from("pqr")
PODS = st.lists(
    st.builds(
        lambda name, first_s, spoke_s, requested_s: seen(
            name, first_s=first_s, spoke_s=spoke_s, requested_s=requested_s
        ),
        NAMES,
        TIMES,
        TIMES | st.just(-inf),
        TIMES | st.just(-inf),
    ),
    max_size=3,
    unique_by=lambda pod: pod.key,
)
DOUBT = st.builds(
    Doubt, st.none() | NAMES.map(lambda name: PodIdentity(f"default/{name}", f"uid-{name}")), TIMES | st.just(inf)
)
DOUBTS = st.lists(DOUBT, max_size=3, unique_by=lambda doubt: doubt.pod)


def may_be_bound(doubt: Doubt, pod: PodRecord) -> bool:
    """Whether there is a second in which a try of this pod may have begun that saw the reservation and is not over, and
    one in which it may bind.

    A try that began before settle_s was over may have seen it. The next one begins only when the last one ended:
    whatever began before the time since which one is known to have ended is over. It binds before longest_bind_s is
    over, and it did not do so before the server had the pod without a node.
    """
    seconds = [float(second) for second in range(-1, 2 * END_S)]
    begins = [second for second in seconds if pod.spoke_s <= second < doubt.since_s + CLOSE.settle_s]
    latest = max(begins, default=None)
    return latest is not None and any(pod.requested_s <= second <= latest + CLOSE.longest_bind_s for second in seconds)


def is_about(doubt: Doubt, pod: PodRecord) -> bool:
    """Who was shown so late that it must have come later than the reservation went had none."""
    return pod.first_seen_s <= doubt.since_s + BEHIND_S if doubt.pod is None else doubt.pod.uid == pod.uid


@given(DOUBTS, PODS, TIMES)
def test_it_agrees_with_a_slow_and_obvious_version(doubts: list[Doubt], pods: list[PodRecord], now_s: float) -> None:
    expected = []
    for doubt in doubts:
        is_missing = doubt.pod is not None and doubt.pod.uid not in {pod.uid for pod in pods}
        is_early = doubt.pod is None and now_s < doubt.since_s + BEHIND_S
        if is_missing or is_early or any(is_about(doubt, pod) and may_be_bound(doubt, pod) for pod in pods):
            expected.append(doubt)
    assert standing(doubts, by_uid(pods), now_s, CLOSE) == tuple(expected)


@given(DOUBT, TIMES, TIMES)
def test_who_is_asked_for_in_time_and_spoken_of_later_is_settled_and_nobody_earlier(
    doubt: Doubt, now_s: float, early_s: float
) -> None:
    name = "p" if doubt.pod is None else doubt.pod.key[-1]
    from_s = earliest_request_s(doubt, now_s, CLOSE)
    if doubt.since_s < inf:
        assert not may_be_bound(doubt, seen(name, spoke_s=from_s, requested_s=from_s))
        assert unproven(doubt, by_uid([seen(name, spoke_s=from_s, requested_s=from_s)]), CLOSE) == ()
    if early_s < min(from_s, doubt.since_s + CLOSE.settle_s):
        early = seen(name, spoke_s=early_s, requested_s=early_s)
        assert unproven(doubt, by_uid([early]), CLOSE) == (early,)
    if now_s >= doubt.since_s + CLOSE.settle_s + CLOSE.longest_bind_s:
        assert unproven(doubt, by_uid([seen(name, requested_s=from_s)]), CLOSE) == (), "no word is needed any more"
