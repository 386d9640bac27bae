"""What is to be done next about a claim, from its record and its pods alone."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.lifecycle.claim_record import (
    ClaimRecord,
    ClaimShare,
    Doubt,
    PodIdentity,
    end,
    first_record,
    show,
)
from dracaena.controller.lifecycle.phases import Phase
from dracaena.controller.lifecycle.pod_record import PodRecord, Said
from dracaena.controller.lifecycle.proof import BEHIND_S, Bounds
from dracaena.controller.lifecycle.prospects import PREEMPTION_S, SETTLE_S
from dracaena.controller.lifecycle.tending import (
    PROBED_AT_ONCE,
    UNRESERVED_THOUGH_NAMED_S,
    UNUSED_S,
    Ask,
    Clear,
    Drop,
    Find,
    Keep,
    Look,
    Naming,
    Probe,
    Read,
    Release,
    Reserve,
    Step,
    next_step,
)
from support.allocation import claim, holding

BOUNDS = Bounds(settle_s=2.0, longest_bind_s=100.0, late_write_s=12.0)
P, Q = PodIdentity("default/p", "uid-p"), PodIdentity("default/q", "uid-q")
SAID = Said("Unschedulable", "no room")


def held(*users: str, version: int = 1) -> ResourceClaim:
    item = holding(claim("c", resource_version=str(version)), "n", "gpu-1")
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=references))


def unreserved(*doubts: Doubt, ending: str = "refused") -> ClaimRecord:
    return replace(first_record(held(), 0.0), doubts=doubts, ending=ending)


def seen(name: str = "p", **known: object) -> PodRecord:
    return replace(PodRecord(f"default/{name}", f"uid-{name}", 0.0), **known)  # type: ignore[arg-type]


def step(
    record: ClaimRecord, *unbound: PodRecord, now_s: float = 10.0, ours: bool = True, **naming: object
) -> Step | None:
    pods = Naming(tuple(unbound), **naming)  # type: ignore[arg-type]
    return next_step(record, pods, now_s, BOUNDS, ours=ours)


@pytest.mark.parametrize(
    "phase", [Phase.FREE, Phase.DECIDED, Phase.WRITING, Phase.DROPPING, Phase.RESERVING, Phase.CLEARING]
)
def test_where_nothing_is_open_or_a_write_is_under_way_there_is_nothing_to_do(phase: Phase) -> None:
    assert step(replace(first_record(claim("c"), 0.0), phase=phase, ending="refused"), seen()) is None


def test_a_write_in_doubt_is_waited_for_from_its_end_and_then_read() -> None:
    record = replace(first_record(claim("c"), 0.0), phase=Phase.IN_DOUBT, last_write_s=7.0)
    assert step(record) == Look(9.0)
    assert step(record, now_s=19.0) == Read()


def test_an_allocation_that_is_well_is_left_alone() -> None:
    assert step(first_record(held("p"), 0.0), seen()) is None


def test_what_is_to_be_taken_back_loses_its_reservation_first() -> None:
    assert step(end(first_record(held("p"), 0.0), "refused", at_once=False), seen()) == Drop()


def test_or_all_at_once_where_nothing_has_to_be_proven() -> None:
    ending = end(first_record(held("p"), 0.0), "half-written", at_once=True)
    assert step(ending, seen()) == Clear()
    assert step(replace(unreserved(Doubt(P, 9.0)), at_once=True), seen()) == Clear()
    assert step(replace(ending, rest=(held(),)), seen()) == Drop(), "who is on the way with what rests is another pod"
    dropped = replace(unreserved(Doubt(P, 9.0)), at_once=True, rest=(held(),))
    assert step(dropped, seen()) == Look(1.0)


def test_it_is_kept_for_a_pod_that_is_bound_others_that_use_it_and_whoever_reserved_it_since() -> None:
    ending = end(first_record(held("p"), 0.0), "refused", at_once=False)
    assert step(ending) == Keep()
    assert step(ending, bound=[P]) == Keep()
    both = end(first_record(held("p", "q"), 0.0), "refused", at_once=False)
    assert step(both, seen(), seen("q")) == Keep()
    assert step(replace(ending, shown=held("q")), seen(), seen("q")) == Keep()
    dropped = show(ending, held(version=2), 5.0)
    assert step(show(dropped, held("p", version=3), 6.0), seen()) == Keep()


def test_a_claim_that_was_free_all_along_needs_nothing() -> None:
    assert step(first_record(claim("c"), 0.0), seen(), seen("q")) is None


def test_who_may_be_on_the_way_with_what_a_free_claim_had_is_asked_about_while_another_pod_waits() -> None:
    free = replace(first_record(claim("c"), 0.0), stale_binds=(Doubt(P, 9.0),))
    assert step(free, seen(), seen("q")) == Look(1.0)
    assert step(free, seen(), seen("q"), now_s=11.0) == Probe((P,))
    assert step(free, seen(spoke_s=11.0), seen("q"), now_s=11.0) is None
    assert step(free, seen("q"), now_s=11.0) == Find(Doubt(P, 9.0))
    assert step(free, seen(), now_s=11.0) is None, "a pod alone waits for no old bind of its own"


def test_for_a_guess_a_pod_is_only_asked_about_until_a_node_is_named_in_it() -> None:
    guess = Doubt(P, 9.0, is_guess=True)
    free = replace(first_record(claim("c"), 0.0), stale_binds=(guess,))
    assert step(free, seen(said=SAID), seen("q"), now_s=11.0) == Ask((P,))
    assert step(free, seen(said=SAID, requested_s=11.0), seen("q"), now_s=11.0) is None
    named = seen(said=SAID, requested_s=11.0, nominated="a", nominated_s=10.0)
    assert step(free, named, seen("q"), now_s=11.0) == Probe((P,))
    assert step(free, replace(named, probed=True), seen("q"), now_s=11.0) == Look(100.0)


def test_a_reservation_that_keeps_an_old_bind_of_its_pod_away_is_dropped_when_that_bind_is_over() -> None:
    ending = replace(end(first_record(held("p"), 0.0), "passed-over", at_once=False), stale_binds=(Doubt(P, 8.0),))
    assert step(ending, seen()) == Probe((P,))
    assert step(ending, seen(spoke_s=10.0)) == Drop()


def test_a_bound_pod_gets_its_reservation_back_whatever_else_is_due() -> None:
    assert step(unreserved(Doubt(P, 0.0)), seen("q"), bound=[P, Q], in_place=[P, Q]) == Reserve(P)
    assert step(unreserved(ending=""), bound=[Q], in_place=[Q]) == Reserve(Q)
    assert step(unreserved(Doubt(P, 9.0)), seen(), bound=[Q]) == Look(1.0), "it is on another node"


def test_what_nobody_is_on_the_way_with_is_cleared() -> None:
    assert step(unreserved()) == Clear()
    assert step(unreserved(Doubt(P, 5.0)), seen(spoke_s=7.0)) == Clear()
    assert step(unreserved(Doubt(P, 5.0)), seen(requested_s=106.9), now_s=107.0) == Probe((P,))
    assert step(unreserved(Doubt(P, 5.0)), seen(requested_s=107.0), now_s=107.0) == Clear()


def test_what_was_said_after_the_change_was_seen_is_made_visible_by_a_probe() -> None:
    record = unreserved(Doubt(P, 9.0))
    assert step(record, seen(said=SAID)) == Look(1.0)
    assert step(record, seen(said=SAID), now_s=11.0) == Probe((P,))
    assert step(record, seen(said=SAID, requested_s=11.0), now_s=11.0) == Probe((P,)), "it was only asked for"
    assert step(record, seen(said=SAID, probed=True, requested_s=10.9), now_s=11.0) == Probe((P,)), "that was too early"
    assert step(record, seen(said=SAID, probed=True, requested_s=11.0), now_s=11.0) == Look(100.0)


def test_a_pod_that_was_never_spoken_of_is_asked_for_once_and_then_heard_by_the_watch() -> None:
    record = unreserved(Doubt(P, 5.0))
    assert step(record, seen(), now_s=7.0) == Probe((P,))
    assert step(record, seen(requested_s=6.9), now_s=7.0) == Probe((P,)), "words after that may be of a try that saw it"
    assert step(record, seen(requested_s=7.0)) == Look(97.0)


def test_after_the_longest_bind_the_server_is_asked_once_more() -> None:
    """The watch may be behind: that it shows no node says nothing about now."""
    record = unreserved(Doubt(P, 9.0))
    waiting = seen(said=SAID, probed=True, requested_s=110.9)
    assert step(record, waiting, now_s=110.9) == Look(pytest.approx(0.1))  # type: ignore[arg-type]
    assert step(record, waiting, now_s=111.0) == Probe((P,))
    assert step(record, replace(waiting, requested_s=111.0), now_s=111.0) == Clear()


def test_all_pods_that_may_be_meant_are_probed() -> None:
    record = unreserved(Doubt(None, 5.0))
    one, other = seen(said=SAID, requested_s=7.0), seen("q", said=SAID, requested_s=7.0)
    assert step(record, one, other) == Probe((P, Q))
    assert step(record, replace(one, probed=True), other) == Probe((Q,))
    assert step(record, replace(one, spoke_s=7.0), other) == Probe((Q,))
    assert step(record, replace(one, probed=True), replace(other, probed=True)) == Look(97.0)


def test_very_many_pods_are_probed_some_at_a_time() -> None:
    pods = [seen(f"p{number}") for number in range(2 * PROBED_AT_ONCE)]
    record = unreserved(*(Doubt(PodIdentity(one.key, one.uid), 5.0) for one in pods))
    found = step(record, *pods)
    assert isinstance(found, Probe)
    assert len(set(found.pods)) == PROBED_AT_ONCE


def test_where_nobody_knows_who_is_meant_the_watch_is_waited_for() -> None:
    record = unreserved(Doubt(None, 5.0))
    assert step(record) == Look(BEHIND_S - 5.0)
    assert step(record, seen(spoke_s=7.0)) == Look(BEHIND_S - 5.0)
    assert step(record, seen(first_seen_s=9.0), now_s=19.9) == Probe((P,)), "it may have been there before"
    assert step(record, now_s=5.0 + BEHIND_S) == Clear()
    assert step(record, seen(first_seen_s=20.1), now_s=20.2) == Clear()


def test_of_several_doubts_the_next_one_that_time_brings_on_is_waited_for() -> None:
    record = unreserved(Doubt(P, 5.0), Doubt(Q, 9.0))
    assert step(record, seen(requested_s=7.0), seen("q")) == Look(1.0)
    assert step(record, seen(requested_s=7.0), seen("q", requested_s=11.0), now_s=11.0) == Look(96.0)


def test_a_pod_that_the_watch_does_not_show_is_looked_for() -> None:
    doubt = Doubt(P, 5.0)
    assert step(unreserved(doubt), seen("q")) == Find(doubt)
    assert step(unreserved(doubt), seen(uid="another")) == Find(doubt), "a later pod of its name"
    assert step(unreserved(doubt), now_s=1_000.0) == Find(doubt), "time alone proves nothing"


def test_what_rests_is_let_go_with_the_same_proof() -> None:
    resting = replace(first_record(claim("c"), 0.0), phase=Phase.RESTING, rest=(held("p"),), doubts=(Doubt(P, 5.0),))
    assert step(resting, seen(said=SAID)) == Probe((P,))
    assert step(resting, seen(spoke_s=8.0)) == Release()
    assert step(resting, seen(spoke_s=8.0), ours=False) == Release()


def test_what_is_reserved_for_nobody_waits_for_a_pod_of_its_own_and_for_others_a_while() -> None:
    record = unreserved(ending="")
    assert step(record, seen()) == Look(UNRESERVED_THOUGH_NAMED_S - 10.0), "kube-scheduler may reserve it any moment"
    assert step(record, seen(first_seen_s=4.0)) == Look(UNRESERVED_THOUGH_NAMED_S - 6.0)
    assert step(record, seen(), now_s=UNRESERVED_THOUGH_NAMED_S) == Clear()
    assert step(record, now_s=10.0) == Look(UNUSED_S - 10.0)
    assert step(record, now_s=20.0, last_s=18.0) == Look(UNUSED_S - 2.0)
    assert step(record, now_s=UNUSED_S) == Clear()


def test_what_rests_is_seen_to_although_the_claim_is_allocated_again() -> None:
    anew = replace(first_record(held("q"), 0.0), rest=(held(),), doubts=(Doubt(P, 5.0),))
    assert step(anew, seen(said=SAID), seen("q"), ours=False) == Probe((P,))
    waits = replace(unreserved(Doubt(P, 9.0), ending=""), rest=(held(),))
    assert step(waits, seen()) == Look(1.0)
    assert step(replace(waits, unreserved_s=None), seen(requested_s=11.0), now_s=11.0, ours=False) == Look(100.0)


def test_what_others_allocated_is_theirs() -> None:
    assert step(unreserved(ending=""), ours=False, now_s=1_000.0) is None


def kept() -> ClaimRecord:
    share = ClaimShare("d1", P, "n", frozenset(), preempting=True)
    return replace(first_record(claim("c"), 0.0), phase=Phase.KEPT, share=share, rest=(held("p"),), kept_s=10.0)


def test_devices_are_kept_while_kube_scheduler_names_their_node() -> None:
    assert step(kept(), seen(nominated="n"), now_s=20.0) == Look(PREEMPTION_S - 10.0)
    assert step(kept(), seen(nominated="n"), now_s=10.0 + PREEMPTION_S) == Release()


def test_a_nomination_may_come_a_little_later_than_the_clearing_and_go_a_little_earlier_than_a_decision() -> None:
    assert step(kept(), seen(), now_s=11.0) == Look(SETTLE_S - 1.0)
    assert step(kept(), seen(nominated="m"), now_s=10.0 + SETTLE_S) == Release()
    assert step(kept(), seen(nominated_s=100.0), now_s=101.0) == Look(SETTLE_S - 1.0)
    assert step(kept(), seen(nominated_s=100.0), now_s=100.0 + SETTLE_S) == Release()


def test_devices_are_kept_for_no_other_pod() -> None:
    assert step(kept(), seen("q", nominated="n"), now_s=11.0) == Release()
    assert step(kept(), now_s=11.0) == Release()
