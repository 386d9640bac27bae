"""What is known of one claim, through any sequence of what the server shows and what we do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.lifecycle.claim_record import (
    ClaimRecord,
    ClaimShare,
    Doubt,
    PodIdentity,
    decide,
    doubt_binds,
    doubt_stale_binds,
    end,
    end_write,
    first_record,
    has_lost,
    meet,
    send,
    settle,
    show,
    users_of,
)
from dracaena.controller.lifecycle.phases import TRANSITIONS, NotAllowedError, Phase, RecordEvent
from dracaena.controller.lifecycle.versions import version_of
from support.allocation import DRIVER, claim, holding

P, Q = PodIdentity("default/p", "uid-p"), PodIdentity("default/q", "uid-q")
A, B = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"


def state(version: int, *users: str, device: str = "gpu-1", at: str = A) -> ResourceClaim:
    """The claim with an allocation, reserved for `users`."""
    held = holding(claim("c", resource_version=str(version)), "n", device)
    assert held.status.allocation is not None
    allocation = msgspec.structs.replace(held.status.allocation, allocation_timestamp=at)
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    status = msgspec.structs.replace(held.status, allocation=allocation, reserved_for=references)
    return msgspec.structs.replace(held, status=status)


def empty(version: int) -> ResourceClaim:
    return claim("c", resource_version=str(version))


def devices(record: ClaimRecord) -> set[str]:
    return {device.device for device in record.held(DRIVER)[0]}


SHARE = ClaimShare("d1", P, "n", frozenset({DeviceId(DRIVER, "n", "gpu-1")}))


def test_a_claim_that_nobody_decided_for_is_what_the_server_shows() -> None:
    assert first_record(empty(1), 5.0).phase is Phase.FREE
    reserved = first_record(state(1, "p"), 5.0)
    assert (reserved.phase, reserved.doubts, reserved.allocated_s) == (Phase.ALLOCATED, (), 5.0)
    unreserved = first_record(state(1), 5.0)
    assert (unreserved.phase, unreserved.unreserved_s) == (Phase.UNRESERVED, 5.0)
    assert unreserved.doubts == (Doubt(None, 5.0),), "who had a reservation before is not known"


def test_a_decision_holds_its_devices_until_they_are_shown_or_it_is_given_up() -> None:
    decided = decide(first_record(empty(1), 0.0), SHARE)
    assert devices(decided) == {"gpu-1"}
    assert devices(meet(decided, RecordEvent.ABANDON)) == set()
    writing = send(decided, RecordEvent.SEND_ALLOCATION)
    assert writing.guard == 1
    assert devices(show(writing, empty(2), 1.0)) == {"gpu-1"}, "a newer state: the write may conflict"
    assert devices(meet(writing, RecordEvent.NO_ANSWER)) == {"gpu-1"}
    assert devices(meet(meet(writing, RecordEvent.NO_ANSWER), RecordEvent.EXPIRED)) == set()
    assert devices(show(writing, state(2, "p"), 1.0)) == {"gpu-1"}


def test_what_the_server_shows_next_to_a_decision_is_held_too() -> None:
    """Somebody else allocated the claim while our write was under way."""
    writing = send(decide(first_record(empty(1), 0.0), SHARE), RecordEvent.SEND_ALLOCATION)
    shown = show(writing, state(2, "p", device="gpu-7"), 1.0)
    assert (shown.phase, devices(shown)) == (Phase.ALLOCATED, {"gpu-7"})


def test_who_loses_a_reservation_is_in_doubt_from_when_that_is_shown() -> None:
    record = show(first_record(state(1, "p", "q"), 0.0), state(2), 4.0)
    assert (record.phase, record.unreserved_s) == (Phase.UNRESERVED, 4.0)
    assert record.doubts == (Doubt(P, 4.0), Doubt(Q, 4.0))
    again = show(record, state(3), 9.0)
    assert (again.unreserved_s, again.doubts) == (4.0, record.doubts)


def test_who_has_a_reservation_again_is_in_no_doubt_and_others_still_are() -> None:
    record = show(first_record(state(1, "p", "q"), 0.0), state(2), 4.0)
    record = show(record, state(3, "q"), 9.0)
    assert (record.phase, record.unreserved_s, record.doubts) == (Phase.ALLOCATED, None, (Doubt(P, 4.0),))


def test_an_allocation_that_came_and_lost_its_reservation_unseen_may_be_anybodys() -> None:
    record = show(first_record(state(1, "p"), 0.0), state(5, at=B), 4.0)
    assert record.doubts == (Doubt(None, 4.0),)
    assert record.allocated_s == 4.0


def test_a_drop_is_in_doubt_without_an_end_until_it_is_shown_or_refused() -> None:
    dropping = send(first_record(state(1, "p"), 0.0), RecordEvent.SEND_DROP)
    assert dropping.doubts == (Doubt(P, inf),)
    assert end_write(dropping, RecordEvent.NO_ANSWER, 7.0, 12.0).doubts == (Doubt(P, 19.0),)
    assert end_write(dropping, RecordEvent.REFUSED, 7.0, 12.0).doubts == (Doubt(P, 7.0),), "an earlier drop may be why"
    assert show(dropping, state(2), 7.0).doubts == (Doubt(P, 7.0),)
    assert show(dropping, state(2, "p"), 7.0).doubts == ()
    assert show(dropping, state(2, "q"), 7.0).doubts == (Doubt(P, 7.0),)
    early = show(dropping, empty(2), 7.0)
    assert (early.phase, early.doubts, devices(early)) == (Phase.RESTING, (Doubt(P, 7.0),), {"gpu-1"})


def test_what_is_cleared_while_somebody_is_in_doubt_rests() -> None:
    unreserved = show(first_record(state(1, "p"), 0.0), state(2), 4.0)
    resting = show(unreserved, empty(3), 5.0)
    assert (resting.phase, devices(resting)) == (Phase.RESTING, {"gpu-1"})
    still = show(resting, empty(4), 6.0)
    assert (still.phase, devices(still)) == (Phase.RESTING, {"gpu-1"})
    free = meet(still, RecordEvent.PROVEN)
    assert (free.phase, free.rest, free.doubts, devices(free)) == (Phase.FREE, (), (), set())


def test_what_is_cleared_with_nobody_in_doubt_is_free_at_once() -> None:
    """kube-scheduler clears what it gave up together with the reservation of the pod that it just tried in vain."""
    record = show(first_record(state(1, "p"), 0.0), empty(2), 4.0)
    assert (record.phase, devices(record)) == (Phase.FREE, set())


def test_a_claim_that_is_allocated_again_while_it_rests_holds_both() -> None:
    resting = show(show(first_record(state(1, "p"), 0.0), state(2), 4.0), empty(3), 5.0)
    anew = show(resting, state(4, "q", device="gpu-2", at=B), 6.0)
    assert (anew.phase, devices(anew)) == (Phase.ALLOCATED, {"gpu-1", "gpu-2"})
    assert devices(settle(anew, anew.doubts)) == {"gpu-2"}
    cleared = show(anew, empty(5), 7.0)
    assert (cleared.phase, devices(cleared)) == (Phase.RESTING, {"gpu-1", "gpu-2"})
    again = show(show(cleared, state(6, "q", device="gpu-2", at=B), 8.0), empty(7), 9.0)
    assert len(again.rest) == 2, "the same devices rest once"


def test_what_rests_is_let_go_by_a_newer_state_when_no_doubt_is_left() -> None:
    """The pod went, and before anybody looks at the claim somebody changes a label of it."""
    resting = show(show(first_record(state(1, "p"), 0.0), state(2), 4.0), empty(3), 5.0)
    settled = settle(resting, resting.doubts)
    assert (settled.phase, devices(settled)) == (Phase.RESTING, {"gpu-1"})
    free = show(settled, empty(4), 6.0)
    assert (free.phase, devices(free)) == (Phase.FREE, set())


def test_a_claim_with_which_pods_may_be_on_their_way_since_before_is_open_to_no_other_pod_and_holds_nothing() -> None:
    """The claim has no allocation any more, and which node and devices it had is not known."""
    free = doubt_binds(first_record(empty(3), 0.0), [Doubt(P, 5.0)])
    assert (free.phase, free.is_open_to(P.uid), free.is_open_to("q"), devices(free)) == (Phase.FREE, True, False, set())
    assert not free.is_open_on(A)
    still = show(free, empty(4), 6.0)
    assert (still.stale_binds, still.is_open_to("q")) == ((Doubt(P, 5.0),), False)
    assert settle(still, still.stale_binds).is_open_to_all


def test_what_may_not_happen_is_said_with_phase_and_event() -> None:
    with pytest.raises(NotAllowedError, match="event 'no answer' is not allowed while the claim is 'free'") as raised:
        meet(first_record(empty(1), 0.0), RecordEvent.NO_ANSWER)
    assert (raised.value.phase, raised.value.event) == (Phase.FREE, RecordEvent.NO_ANSWER)


def test_a_take_back_is_over_with_another_allocation() -> None:
    ending = end(first_record(state(1, "p"), 0.0), "refused", at_once=True)
    assert (ending.ending, set(ending.taken_from), ending.is_open) == ("refused", {"uid-p"}, False)
    assert show(ending, state(2, "p"), 1.0).ending == "refused"
    anew = show(ending, state(2, "p", at=B), 1.0)
    assert (anew.ending, anew.at_once, anew.taken_from) == ("", False, frozenset())


@pytest.mark.parametrize(("text", "version"), [("17", 17), ("", 0), ("x", 0), ("1x", 0), ("-1", 0), ("٣", 0)])
def test_a_resource_version_is_a_number_and_what_is_none_is_older_than_all(text: str, version: int) -> None:
    assert version_of(claim("c", resource_version=text)) == version


def test_users_of_a_claim_are_its_pods() -> None:
    item = state(1, "p")
    others = [ConsumerReference("podgroups", "g", "uid-g", "scheduling.k8s.io"), *item.status.reserved_for]
    shown = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=others))
    assert users_of(shown) == (P,)


# Any sequence of events

DOES: dict[RecordEvent, Callable[[ClaimRecord], ClaimRecord]] = {
    RecordEvent.DECIDE: lambda record: decide(record, SHARE),
    **{
        event: (lambda record, event=event: send(record, event))  # type: ignore[misc]
        for event in RecordEvent
        if event.name.startswith("SEND_")
    },
    **{
        event: (lambda record, event=event: meet(record, event))  # type: ignore[misc]
        for event in (
            RecordEvent.ABANDON,
            RecordEvent.REFUSED,
            RecordEvent.ANSWERED,
            RecordEvent.NO_ANSWER,
            RecordEvent.EXPIRED,
            RecordEvent.PROVEN,
        )
    },
}
SHOWS: dict[str, Callable[..., ResourceClaim]] = {
    "empty": empty,
    "reserved for p": lambda version: state(version, "p"),
    "reserved for q": lambda version: state(version, "q"),
    "reserved for both": lambda version: state(version, "p", "q"),
    "unreserved": state,
    "another, reserved": lambda version: state(version, "q", device="gpu-2", at=B),
    "another, unreserved": lambda version: state(version, device="gpu-2", at=B),
}
STEPS = st.lists(st.sampled_from([*DOES, *SHOWS]), max_size=30)
FIRST = st.sampled_from(
    [
        first_record(empty(1), 0.0),
        first_record(state(1, "p"), 0.0),
        doubt_binds(first_record(empty(1), 0.0), [Doubt(P, 0.0)]),
    ]
)


def take(record: ClaimRecord, step: RecordEvent | str, now_s: float) -> ClaimRecord:
    if isinstance(step, RecordEvent):
        return DOES[step](record)
    return show(record, SHOWS[step](record.version + 1), now_s)


@given(FIRST, STEPS)
def test_any_sequence_is_taken_or_refused_by_the_table_and_by_nothing_else(
    record: ClaimRecord, steps: list[RecordEvent | str]
) -> None:
    for now, step in enumerate(steps, start=1):
        before = record
        if isinstance(step, RecordEvent) and step not in TRANSITIONS[before.phase]:
            with pytest.raises(NotAllowedError) as raised:
                take(record, step, float(now))
            assert (raised.value.phase, raised.value.event) == (before.phase, step)
            continue
        record = take(record, step, float(now))  # whatever the server shows can be taken in
        assert record.phase in {*TRANSITIONS[before.phase].values(), *(Phase.ALLOCATED, Phase.UNRESERVED)}
        holds = record.shown.status.allocation is not None
        shown_only = {Phase.ALLOCATED, Phase.DROPPING, Phase.UNRESERVED, Phase.RESERVING, Phase.CLEARING}
        assert (record.phase in shown_only) == holds
        assert (record.phase is Phase.UNRESERVED) <= (not record.shown.status.reserved_for)
        assert (record.phase is Phase.FREE) <= (record.share is None)
        assert (record.unreserved_s is not None) == (holds and not record.shown.status.reserved_for)


def test_a_decision_is_forgotten_once_nothing_of_it_rests() -> None:
    written = send(decide(first_record(empty(1), 0.0), SHARE), RecordEvent.SEND_ALLOCATION)
    dropped = show(show(written, state(2, "p"), 1.0), state(3), 2.0)
    free = meet(show(dropped, empty(4), 3.0), RecordEvent.PROVEN)
    assert (free.phase, free.share) == (Phase.FREE, None)


@given(FIRST, STEPS)
def test_what_is_held_never_shrinks_while_somebody_is_in_doubt(
    record: ClaimRecord, steps: list[RecordEvent | str]
) -> None:
    """But by what we do after a proof: a clearing of ours, and that nothing has to rest any more."""
    for now, step in enumerate(steps, start=1):
        if step in (RecordEvent.SEND_CLEARING, RecordEvent.PROVEN) and record.doubts:
            continue  # not without a proof: see records and tending
        before = record
        try:
            record = take(record, step, float(now))
        except NotAllowedError:
            continue
        was_ours = before.share.devices if before.share is not None else frozenset()
        lost = before.held(DRIVER)[0] - record.held(DRIVER)[0] - was_ours
        is_other_allocation = isinstance(step, str) and before.shown.status.allocation is not None
        if before.doubts and record.doubts and not is_other_allocation:
            assert not lost, f"{before.phase} met {step}"
        if before.doubts and step == "empty" and before.phase is not Phase.CLEARING:
            assert not before.held(DRIVER)[0] - record.held(DRIVER)[0], f"{before.phase} was freed early"


@given(FIRST, STEPS)
def test_nobody_is_in_doubt_who_has_a_reservation_and_all_who_lost_one_are(
    record: ClaimRecord, steps: list[RecordEvent | str]
) -> None:
    for now, step in enumerate(steps, start=1):
        before = record
        try:
            record = take(record, step, float(now))
        except NotAllowedError:
            continue
        if isinstance(step, RecordEvent):
            continue
        users = set(users_of(record.shown))
        assert not users & {doubt.pod for doubt in record.doubts}
        assert all(doubt.since_s <= now for doubt in record.doubts)
        is_unreserved = record.phase is Phase.UNRESERVED and before.phase in (Phase.ALLOCATED, Phase.DROPPING)
        if is_unreserved and before.shown.status.allocation == record.shown.status.allocation:
            assert set(users_of(before.shown)) <= {doubt.pod for doubt in record.doubts}


def test_settled_doubts_go_and_others_stay() -> None:
    record = replace(first_record(state(1), 0.0), doubts=(Doubt(P, 1.0), Doubt(Q, 2.0)))
    assert settle(record, [Doubt(P, 1.0), Doubt(Q, 3.0)]).doubts == (Doubt(Q, 2.0),)


def lost(before: ClaimRecord, after: ClaimRecord, pods: list[PodIdentity], now_s: float) -> ClaimRecord:
    return doubt_stale_binds(before, after, pods, now_s) if has_lost(before, after, DRIVER) else after


def test_pods_that_name_a_claim_may_be_on_the_way_with_an_allocation_that_is_lost() -> None:
    before = first_record(state(1, "p"), 0.0)
    after = lost(before, show(before, state(2), 5.0), [P, Q], 5.0)
    assert after.stale_binds == (), "the allocation is still there"
    freed = lost(before, show(before, claim("c", resource_version="2"), 5.0), [P, Q], 5.0)
    assert freed.stale_binds == (Doubt(P, 5.0), Doubt(Q, 5.0))
    assert (freed.phase, freed.is_open) == (Phase.FREE, True)
    assert not any((freed.is_open_to("uid-p"), freed.is_open_to("uid-q"), freed.is_open_to_all))
    assert settle(freed, [Doubt(Q, 5.0)]).is_open_to("uid-p"), "its own reservation keeps an old bind of it away"
    assert settle(freed, freed.stale_binds).is_open_to_all
    assert (freed.is_open_on("n"), freed.is_open_on("m")) == (True, False), "others may come to n, and reserve it there"
    assert settle(freed, freed.stale_binds).is_open_on("m")


def test_a_write_whose_end_is_not_known_may_have_come_and_gone() -> None:
    free = first_record(claim("c", resource_version="1"), 0.0)
    again = claim("c", resource_version="2")
    assert lost(free, show(free, again, 5.0), [P, Q], 5.0).stale_binds == ()
    for phase in (Phase.WRITING, Phase.IN_DOUBT):
        before = replace(free, phase=phase)
        assert lost(before, show(before, again, 5.0), [P, Q], 5.0).stale_binds == (Doubt(P, 5.0), Doubt(Q, 5.0))


def test_a_claim_that_was_allocated_again_is_open_to_all() -> None:
    anew = replace(first_record(state(1, "p"), 0.0), stale_binds=(Doubt(Q, 0.0),))
    assert anew.is_open_to("uid-r")
    assert anew.is_open_to_all


def preempting(*users: str) -> ClaimRecord:
    """An allocation whose pod needs others evicted, reserved for `users`."""
    decided = decide(first_record(empty(1), 0.0), replace(SHARE, preempting=True))
    return show(send(decided, RecordEvent.SEND_ALLOCATION), state(2, *(users or ("p",))), 1.0)


def test_what_is_cleared_while_others_are_evicted_for_its_pod_stays_the_claims() -> None:
    record = show(preempting(), empty(3), 5.0)
    assert (record.phase, record.kept_s, devices(record)) == (Phase.KEPT, 5.0, {"gpu-1"})
    again = show(record, empty(4), 9.0)
    assert (again.phase, again.kept_s, devices(again)) == (Phase.KEPT, 5.0, {"gpu-1"})
    settled = settle(doubt_stale_binds(again, again, (P,), 9.0), (Doubt(P, 9.0),))
    assert devices(settled) == {"gpu-1"}, "no proof ends it"
    assert devices(meet(settled, RecordEvent.RELEASE)) == set()
    assert meet(settled, RecordEvent.RELEASE).phase is Phase.FREE


def test_a_decision_takes_the_place_of_what_was_kept() -> None:
    record = decide(
        show(preempting(), empty(3), 5.0), replace(SHARE, devices=frozenset({DeviceId(DRIVER, "m", "gpu-2")}))
    )
    assert (record.phase, record.rest, devices(record)) == (Phase.DECIDED, (), {"gpu-2"})


def test_only_an_allocation_for_that_pod_alone_that_is_not_taken_back_is_kept() -> None:
    assert show(preempting("p", "q"), empty(3), 5.0).phase is Phase.FREE
    assert show(end(preempting(), "collision", at_once=False), empty(3), 5.0).phase is Phase.FREE
    usual = decide(first_record(empty(1), 0.0), SHARE)
    shown = show(send(usual, RecordEvent.SEND_ALLOCATION), state(2, "p"), 1.0)
    assert show(shown, empty(3), 5.0).phase is Phase.FREE
