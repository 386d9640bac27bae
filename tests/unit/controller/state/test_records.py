"""The tables of claims and pods: what is news, whose write an answer belongs to, and what is settled by which pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.allocation.state.gangs import Family
from dracaena.controller.lifecycle.claim_record import ClaimRecord, ClaimShare, Doubt, PodIdentity
from dracaena.controller.lifecycle.phases import NotAllowedError, Phase, RecordEvent
from dracaena.controller.lifecycle.pod_record import Growth, leave_all_out, leave_out, preempt_later
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.state.records import Records
from support.allocation import DRIVER, claim, holding, pod

P = PodIdentity("default/p", "uid-p")
KEY = "default/c"


def state(version: int, *users: str, uid: str = "uid-c") -> ResourceClaim:
    held = holding(claim("c", resource_version=str(version), uid=uid), "n", "gpu-1")
    references = [ConsumerReference("pods", user, f"uid-{user}") for user in users]
    return msgspec.structs.replace(held, status=msgspec.structs.replace(held.status, reserved_for=references))


def empty(version: int, uid: str = "uid-c") -> ResourceClaim:
    return claim("c", resource_version=str(version), uid=uid)


def share(decision_id: str = "d1") -> ClaimShare:
    return ClaimShare(decision_id, P, "n", frozenset({DeviceId(DRIVER, "n", "gpu-1")}))


class Books:
    def __init__(self) -> None:
        self.changes: list[tuple[ClaimRecord | None, ClaimRecord | None]] = []
        self.blocked: list[tuple[str, ...]] = []
        """Who was blocked at each change, when it was told."""
        self.faults: list[NotAllowedError] = []
        self.records = Records(
            DRIVER,
            Bounds(settle_s=2.0, longest_bind_s=100.0, late_write_s=12.0),
            self.changed,
            lambda record, error: self.faults.append(error),
        )

    def changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        self.changes.append((before, after))
        self.blocked.append(self.records.blocked_pods(KEY))

    @property
    def phase(self) -> Phase:
        return self.record.phase

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return self.record.doubts

    @property
    def record(self) -> ClaimRecord:
        found = self.records.claim(KEY)
        assert found is not None
        return found

    def writing(self, decision_id: str = "d1") -> None:
        self.records.show(empty(1), 0.0)
        assert self.records.decide(KEY, share(decision_id))
        assert self.records.send(KEY, RecordEvent.SEND_ALLOCATION, decision_id) is not None


# What is news


def test_the_same_state_again_and_an_older_one_are_no_news_wherever_they_come_from() -> None:
    books = Books()
    assert books.records.show(state(5, "p"), 1.0)
    before = books.record
    assert not books.records.show(state(5, "p"), 2.0)
    assert not books.records.show(empty(4), 3.0)
    assert books.record is before
    assert len(books.changes) == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_states_in_any_order_and_however_often_leave_the_newest(versions: list[int]) -> None:
    books = Books()
    newest = 0
    for version in versions:
        assert books.records.show(state(version, *("p" * (version % 2))), float(version)) == (version > newest)
        newest = max(newest, version)
        assert books.record.version == newest
    assert books.faults == []


def test_a_claim_of_the_same_name_begins_again_and_the_first_one_is_reported_to_be_gone() -> None:
    books = Books()
    books.writing()
    assert books.records.show(empty(7, uid="another"), 1.0)
    assert (books.record.uid, books.phase, books.record.share) == ("another", Phase.FREE, None)
    first, last = books.changes[-2:]
    assert first[1] is None
    assert last[0] is None


def test_a_late_state_of_a_claim_that_was_made_again_changes_nothing() -> None:
    books = Books()
    books.records.show(empty(7, uid="another"), 1.0)
    assert not books.records.show(state(3, "p"), 2.0)
    assert books.record.uid == "another"


def test_the_end_of_an_earlier_claim_of_the_name_is_not_that_of_this_one() -> None:
    books = Books()
    books.records.show(empty(7, uid="another"), 1.0)
    books.records.gone(KEY, 2.0, "uid-c")
    assert books.record.uid == "another"
    books.records.gone(KEY, 3.0, "another")
    assert books.records.claim(KEY) is None
    books.records.gone(KEY, 4.0)
    assert books.changes[-1][1] is None


# Whose write an answer belongs to


def test_a_late_answer_of_a_decision_that_another_one_took_the_place_of_changes_nothing() -> None:
    books = Books()
    books.writing("d1")
    books.records.end_write(KEY, RecordEvent.REFUSED, 1.0, decision_id="d1")
    assert books.records.decide(KEY, share("d2"))
    before = books.record
    books.records.end_write(KEY, RecordEvent.NO_ANSWER, 2.0, decision_id="d1")
    assert books.record is before
    assert books.records.send(KEY, RecordEvent.SEND_ALLOCATION, "d1") is None
    assert books.faults == []


def test_an_answer_of_a_write_for_an_earlier_state_changes_nothing() -> None:
    books = Books()
    books.records.show(state(1, "p"), 0.0)
    books.records.end(KEY, "refused")
    sent = books.records.send(KEY, RecordEvent.SEND_DROP)
    assert sent is not None
    books.records.show(state(2, "p"), 1.0)
    again = books.records.send(KEY, RecordEvent.SEND_DROP)
    assert again is not None
    books.records.end_write(KEY, RecordEvent.REFUSED, 2.0, guard=sent.guard)
    phases = [books.phase]
    books.records.end_write(KEY, RecordEvent.REFUSED, 2.0, guard=again.guard)
    assert [*phases, books.phase] == [Phase.DROPPING, Phase.ALLOCATED], "the second one was under way"


def test_the_time_of_doubt_counts_from_the_end_of_the_last_write() -> None:
    books = Books()
    books.writing()
    books.records.end_write(KEY, RecordEvent.NO_ANSWER, 16.0, decision_id="d1")
    assert (books.phase, books.record.last_write_s) == (Phase.IN_DOUBT, 16.0)


def test_a_claim_that_is_gone_is_written_no_more() -> None:
    books = Books()
    assert books.records.send(KEY, RecordEvent.SEND_DROP) is None
    books.records.end_write(KEY, RecordEvent.REFUSED, 1.0, decision_id="d1")
    books.records.end(KEY, "refused")
    books.records.prove(KEY)
    assert books.changes == []


# What may not happen


def test_what_may_not_happen_is_reported_changes_nothing_and_is_not_done() -> None:
    books = Books()
    books.records.show(empty(1), 0.0)
    before = books.record
    assert books.records.send(KEY, RecordEvent.SEND_DROP) is None
    assert not books.records.decide("default/unknown", share())
    assert books.record is before
    assert [(error.phase, error.event) for error in books.faults] == [(Phase.FREE, RecordEvent.SEND_DROP)]


def test_a_state_that_may_not_come_is_healed_by_it_and_what_was_held_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is right whatever our table says; the devices of before may still be in use."""
    books = Books()
    books.records.show(state(1, "p"), 0.0)

    def refuse(*args: object) -> ClaimRecord:
        raise NotAllowedError(Phase.ALLOCATED, RecordEvent.SHOWN_FREE)

    monkeypatch.setattr("dracaena.controller.lifecycle.claim_record.show", refuse)
    assert books.records.show(empty(2), 1.0)
    assert len(books.faults) == 1
    assert (books.phase, books.doubts) == (Phase.RESTING, (Doubt(P, 1.0),))
    assert books.record.held(DRIVER)[0] == {DeviceId(DRIVER, "n", "gpu-1")}


# Who came meanwhile


def test_who_came_while_nothing_can_be_decided_is_remembered_until_something_can() -> None:
    books = Books()
    books.writing()
    books.records.note_blocked_pod(KEY, "default/q")
    assert books.records.blocked_pods(KEY) == ("default/q",)
    books.records.end_write(KEY, RecordEvent.REFUSED, 1.0, decision_id="d1")
    assert books.blocked[-1] == ("default/q",)  # when the change is told
    assert books.records.blocked_pods(KEY) == ()
    books.records.note_blocked_pod(KEY, "default/q")
    assert books.records.blocked_pods(KEY) == ()


# What pods settle


def named(name: str = "p", uid: str = "", **spec: Any) -> Pod:
    made = pod(name, "c", **spec)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid=uid or f"uid-{name}"))


def in_doubt() -> Books:
    books = Books()
    books.records.see(None, named(), 0.0)
    books.records.show(state(1, "p"), 0.0)
    books.records.show(state(2), 5.0)
    assert books.doubts == (Doubt(P, 5.0),)
    return books


def with_phase(item: Pod, phase: str) -> Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, phase=phase))


def going(item: Pod) -> Pod:
    metadata = msgspec.structs.replace(item.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(item, metadata=metadata)


@pytest.mark.parametrize(
    "becomes",
    [None, named(nodeName="n"), named(uid="another"), with_phase(named(), "Failed"), going(named())],
    ids=["gone", "bound", "made again", "ended", "being deleted"],
)
def test_a_pod_that_cannot_be_bound_any_more_settles_the_doubts_about_it(becomes: Pod | None) -> None:
    books = in_doubt()
    books.records.see(named(), becomes, 6.0)
    assert books.doubts == ()


def test_a_pod_that_changed_otherwise_settles_nothing_and_events_may_come_twice() -> None:
    books = in_doubt()
    for _ in range(2):
        books.records.see(named(), named(priority=1), 6.0)
        books.records.see(None, named("q", nodeName="n"), 6.0)
    assert list(books.doubts) == [Doubt(P, 5.0)]
    for _ in range(2):
        books.records.see(named(), None, 7.0)
    assert list(books.doubts) == []


def test_a_list_that_hides_that_a_pod_was_made_again_settles_the_doubts_about_the_first() -> None:
    books = in_doubt()
    books.records.see(None, named(uid="another"), 6.0)
    assert books.doubts == ()
    found = books.records.unbound("default/p")
    assert found is not None
    assert (found.uid, found.first_seen_s) == ("another", 6.0)


def test_a_new_leader_trusts_no_doubt_of_its_time_as_a_stand_by() -> None:
    books = in_doubt()
    books.records.begin(60.0)
    assert books.doubts == (Doubt(None, 60.0),)
    assert books.record.unreserved_s == 60.0
    books.records.show(state(9, "p"), 61.0)
    books.records.begin(62.0)
    assert books.phase is Phase.ALLOCATED


def test_a_new_leader_that_finds_something_at_rest_goes_on_to_let_it_rest() -> None:
    books = in_doubt()
    books.records.show(empty(3), 6.0)
    books.records.begin(60.0)
    assert books.phase is Phase.RESTING
    assert books.record.held(DRIVER)[0]


def test_pods_are_found_by_their_claims_and_forgotten_with_them() -> None:
    books = Books()
    books.records.see(None, named("q"), 0.0)
    books.records.see(None, named("p"), 0.0)
    assert books.records.naming(KEY) == ("default/q", "default/p")
    books.records.show(empty(1), 0.0)
    books.records.see(named("p"), None, 3.0)
    books.records.see(named("q"), pod("q"), 4.0)
    assert books.records.naming(KEY) == ()
    assert books.records.pods_of(KEY).last_s == 4.0
    assert books.records.pod("default/q") is None
    assert books.records.unbound("default/q") is not None, "it stands in kube-scheduler's queue"


def test_the_claims_that_a_pod_names_are_those_of_the_state_that_is_asked_about() -> None:
    records = Books().records
    first = pod("p", "c", templates=["made"])
    made = msgspec.convert(
        msgspec.to_builtins(first)
        | {"status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made"}]}},
        Pod,
    )
    bound = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, node_name="n"))
    assert records.named_by(first) == pod_claims(first)
    before: Pod | None = None
    for shown in (first, made, bound, None):
        records.see(before, shown, 0.0)
        before = shown
        for asked in (first, made, bound):
            assert records.named_by(asked) == pod_claims(asked)
        is_kept = shown in (first, made)
        assert shown is None or (records.named_by(shown) is records.named_by(shown)) == is_kept


def test_a_group_waits_while_none_of_its_pods_is_bound_and_is_forgotten_with_its_last() -> None:
    books = Books()
    group: dict[str, Any] = {"schedulingGroup": {"podGroupName": "g"}}
    family = Family("default", "PodGroup", "g")
    first, second = named("p", **group), named("q", **group)
    bound = named("q", nodeName="n", **group)
    books.records.see(None, first, 0.0)
    books.records.see(None, second, 0.0)
    assert books.records.groups.unbound() == (family,)
    assert books.records.groups.pods(family) == ("default/p", "default/q")
    books.records.see(second, bound, 1.0)
    assert books.records.groups.unbound() == ()
    books.records.see(bound, None, 2.0)
    assert books.records.groups.unbound() == (family,)
    books.records.see(first, None, 3.0)
    assert books.records.groups._groups == {}


def test_only_a_pod_with_a_back_off_is_asked_about_it() -> None:
    books = Books()
    asking = pod("p", "c")
    books.records.see(None, asking, 0.0)
    known = books.records.unbound(asking.key)
    assert known is not None
    assert books.records.backed_off(asking.key) is None
    assert books.records.backed_off("default/nobody") is None
    times = 1.0, datetime(2026, 1, 1, tzinfo=UTC), Growth(first_s=10.0, longest_s=100.0)
    for changed in (
        leave_out(known, "n", *times),
        leave_all_out(known, *times),
        preempt_later(known, *times),
    ):
        books.records.change_pod(changed)
        assert books.records.backed_off(asking.key) is changed
    books.records.change_pod(known)
    assert not books.records.must_not_preempt(asking, 1.0)
