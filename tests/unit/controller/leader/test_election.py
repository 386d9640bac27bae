"""One replica and its Lease, event by event."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from dracaena.controller.leader.election import (
    LET_GO_S,
    RETRY_AFTER_FAILURE_S,
    RETRY_S,
    Election,
    NoElection,
    NotLeadingError,
    is_given_back,
)
from dracaena.controller.settings import ControllerSettings
from dracaena.kube.client import WRITE_TIMEOUT_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError
from dracaena.kube.lease import Lease, LeaseSpec
from support.clock import FakeClock
from support.lease import StoredLease

DURATION_S = 20


class Api(StoredLease):
    """A Lease whose server may be away: before a request has an effect, or after."""

    def __init__(self, clock: FakeClock, spec: LeaseSpec | None = None) -> None:
        self._clock = clock
        self.fault: Exception | None = None
        self.answers_get_lost = False
        self.takes_s = 0.0
        self.after_read: Callable[[], None] = lambda: None
        super().__init__(spec)

    def read(self) -> Lease | None:
        self._before()
        found = super().read()
        self.after_read()
        return found

    def create(self, spec: LeaseSpec) -> Lease:
        self._before()
        return self._after(super().create(spec))

    def write(self, lease: Lease, spec: LeaseSpec) -> Lease:
        self._before()
        return self._after(super().write(lease, spec))

    def _before(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _after(self, lease: Lease) -> Lease:
        self._clock.advance(self.takes_s)
        if self.answers_get_lost:
            raise ApiUnavailableError("PATCH", None, "", "the answer got lost")
        return lease


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def api(clock: FakeClock) -> Api:
    """A Lease that was given back."""
    return Api(clock, LeaseSpec(renew_time="then", lease_transitions=0))


@pytest.fixture
def election(api: Api, clock: FakeClock, lost: list[str]) -> Election:
    return replica("a", api, clock, lost)


def replica(name: str, api: Api, clock: FakeClock, lost: list[str] | None = None) -> Election:
    told = [] if lost is None else lost
    return Election(api, clock, random.Random(1), identity=name, duration_s=DURATION_S, on_lost=told.append)


def may_write(election: Election) -> bool:
    try:
        with election.writing():
            return True
    except NotLeadingError:
        return False


def spec(api: Api) -> LeaseSpec:
    assert api.stored is not None
    return api.stored.spec


def hold(api: Api, name: str, *, renewed: str = "t", duration_s: int | None = DURATION_S) -> None:
    """Somebody else writes the Lease."""
    assert api.stored is not None
    StoredLease.write(api, api.stored, LeaseSpec(name, duration_s, "t", renewed, 3))


def test_a_free_lease_is_taken_and_its_holder_may_write_at_once(election: Election, api: Api) -> None:
    assert not may_write(election)
    assert election.step() > 0
    assert may_write(election)
    assert election.leads()
    assert str(election) == "leading"
    assert spec(api) == LeaseSpec("a", 20, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 1)


def test_a_renewal_changes_its_time_alone(election: Election, api: Api, clock: FakeClock) -> None:
    election.step()
    clock.advance(2.5)
    assert election.step() == RETRY_S
    assert spec(api) == LeaseSpec("a", 20, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:02.500000Z", 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda api: api.delete(),
        lambda api: (api.delete(), api.create(LeaseSpec())),  # applied anew from a file
        lambda api: hold(api, ""),
    ],
)
def test_a_lease_that_somebody_deleted_or_emptied_may_have_had_a_leader_a_moment_ago(
    election: Election, api: Api, clock: FakeClock, change: Callable[[Api], None]
) -> None:
    change(api)
    election.step()
    assert api.holder == "a"
    for _ in range(DURATION_S + WRITE_TIMEOUT_S - 1):
        clock.advance(1)
        election.step()
        assert not may_write(election)
        assert election.leads()
    clock.advance(1)
    assert may_write(election)


def test_a_lease_is_taken_a_whole_duration_after_its_last_change_was_seen_and_not_before(
    election: Election, api: Api, clock: FakeClock
) -> None:
    hold(api, "b", renewed="1999-01-01T00:00:00.000000Z")  # whatever the other's clock says
    for _ in range(5):
        election.step()
        clock.advance(15)
        hold(api, "b", renewed=str(clock.now()))
    election.step()
    assert str(election) == "standing by, b leads"
    clock.advance(DURATION_S - 0.1)
    election.step()
    assert api.holder == "b"
    clock.advance(0.1)
    election.step()
    assert (api.holder, spec(api).lease_transitions) == ("a", 4)
    assert not may_write(election)
    clock.advance(WRITE_TIMEOUT_S / 2)
    election.step()
    clock.advance(WRITE_TIMEOUT_S / 2)
    assert may_write(election)


def test_the_duration_that_the_holder_was_promised_holds_when_it_is_longer(
    election: Election, api: Api, clock: FakeClock
) -> None:
    hold(api, "b", duration_s=60)
    election.step()
    clock.advance(59)
    election.step()
    assert api.holder == "b"
    clock.advance(1)
    election.step()
    assert api.holder == "a"


@pytest.mark.parametrize(
    "fault",
    [
        ApiUnavailableError("PATCH", None, "", "no answer"),
        ApiUnavailableError("PATCH", 503, "", "away"),
        ValueError("a defect of some library"),
        OSError("no route"),
    ],
)
def test_whatever_stops_renewals_stops_writes_while_the_lease_still_outlasts_a_write(
    election: Election, api: Api, clock: FakeClock, lost: list[str], fault: Exception
) -> None:
    election.step()
    api.fault = fault
    clock.advance(DURATION_S - WRITE_TIMEOUT_S - 0.01)
    assert election.step() == RETRY_AFTER_FAILURE_S
    assert may_write(election)
    clock.advance(0.01)
    assert not may_write(election)
    assert "cannot be renewed" in str(election)
    clock.advance(WRITE_TIMEOUT_S)
    election.step()
    assert not election.leads()
    api.fault = None
    election.step()
    assert may_write(election), "nobody took the lease, so nobody else led"
    assert lost == []


def test_the_lease_counts_from_before_its_renewal_was_sent(election: Election, api: Api, clock: FakeClock) -> None:
    election.step()
    api.takes_s = DURATION_S - WRITE_TIMEOUT_S
    election.step()
    assert not may_write(election)


def test_a_renewal_whose_answer_got_lost_is_found_and_the_lease_goes_on(
    election: Election, api: Api, clock: FakeClock, lost: list[str]
) -> None:
    election.step()
    api.answers_get_lost = True
    election.step()
    api.answers_get_lost = False
    clock.advance(9.5)
    assert election.step() == RETRY_AFTER_FAILURE_S  # a conflict: it looks who holds it
    clock.advance(0.5)
    assert not may_write(election), "a renewal without an answer lengthens nothing"
    election.step()
    assert may_write(election)
    assert lost == []


def test_a_lease_taken_by_a_request_without_an_answer_is_ours_after_the_longest_wait(
    election: Election, api: Api, clock: FakeClock
) -> None:
    api.answers_get_lost = True
    election.step()
    assert api.holder == "a"
    api.answers_get_lost = False
    election.step()
    assert election.leads()
    clock.advance(DURATION_S + WRITE_TIMEOUT_S - 0.1)
    election.step()
    assert not may_write(election)
    clock.advance(0.1)
    assert may_write(election)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda api: hold(api, "b"), "the Lease is held by b"),
        (lambda api: hold(api, ""), "the Lease is held by no instance"),
        (lambda api: api.delete(), "the Lease was deleted"),
    ],
)
def test_a_leader_that_finds_its_lease_in_other_hands_has_lost_for_good(
    election: Election, api: Api, clock: FakeClock, lost: list[str], change: Callable[[Api], None], why: str
) -> None:
    election.step()
    change(api)
    election.step()
    assert lost == [why]
    assert not may_write(election)
    assert str(election) == f"ending: {why}"
    clock.advance(1_000)
    election.run()  # ends by itself
    election.stop()
    assert api.holder != "a"
    assert lost == [why]


def test_a_third_party_that_labels_the_lease_takes_nothing_from_its_holder(
    election: Election, api: Api, lost: list[str]
) -> None:
    election.step()
    assert api.stored is not None
    StoredLease.write(api, api.stored, spec(api))
    assert election.step() == RETRY_AFTER_FAILURE_S
    assert election.step() == RETRY_S
    assert (may_write(election), lost) == (True, [])


def test_of_two_that_see_a_free_lease_one_gets_it(api: Api, clock: FakeClock) -> None:
    first, second = replica("a", api, clock), replica("b", api, clock)

    def overtaken() -> None:
        api.after_read = lambda: None
        second.step()

    api.after_read = overtaken
    first.step()
    assert (api.holder, may_write(first), may_write(second)) == ("b", False, True)


def test_a_leader_that_ends_gives_the_lease_back_and_the_next_begins_at_once(api: Api, clock: FakeClock) -> None:
    first, second = replica("a", api, clock), replica("b", api, clock)
    first.step()
    second.step()
    first.stop()
    assert not may_write(first)
    assert spec(api) == LeaseSpec(renew_time="2026-01-01T00:00:00.000000Z", lease_transitions=1)
    second.step()
    assert (may_write(second), spec(api).lease_transitions) == (True, 2)


@pytest.mark.parametrize("status", [None, 500, 504])
def test_a_leader_with_a_write_in_doubt_lets_its_lease_run_out(
    election: Election, api: Api, clock: FakeClock, status: int | None
) -> None:
    election.step()
    with pytest.raises(ApiUnavailableError), election.writing():
        raise ApiUnavailableError("PATCH", status, "", "no answer")
    clock.advance(WRITE_TIMEOUT_S - 0.1)
    election.step()
    election.stop()
    assert api.holder == "a"


def test_a_new_leader_that_ends_before_it_began_gives_nothing_back(api: Api, clock: FakeClock) -> None:
    """The next one would begin at once, while writes of the leader before both may still land."""
    api.delete()
    first = replica("a", api, clock)
    first.step()
    clock.advance(5)
    first.stop()
    assert api.holder == "a"


def test_a_write_that_was_refused_or_whose_time_is_over_leaves_no_doubt(
    election: Election, api: Api, clock: FakeClock
) -> None:
    election.step()
    with pytest.raises(ApiUnavailableError), election.writing():
        raise ApiUnavailableError("PATCH", None, "", "no answer")
    clock.advance(WRITE_TIMEOUT_S)
    election.step()
    with pytest.raises(ConflictError), election.writing():
        raise ConflictError("PATCH", 409, "Conflict", "it has changed")
    election.stop()
    assert api.holder is None


def test_waiting_to_begin_ends_when_this_process_leads(election: Election, clock: FakeClock) -> None:
    assert not election.wait_to_begin(0.0)
    election.step()
    assert election.wait_to_begin(0.0)


def test_without_an_election_everything_may_be_written() -> None:
    alone = NoElection()
    alone.start()
    assert (alone.wait_to_begin(0.0), alone.leads(), str(alone)) == (True, True, "leading, without an election")
    with alone.writing():
        alone.stop()


def test_a_lease_always_outlasts_a_write_by_two_renewals() -> None:
    fields = {field.name: field for field in dataclasses.fields(ControllerSettings)}
    least = fields["lease_duration_s"].metadata["least"]
    assert least >= WRITE_TIMEOUT_S + 2 * RETRY_S
    assert ControllerSettings().lease_duration_s >= least


def test_a_stand_by_that_cannot_read_the_lease_says_so(election: Election, api: Api) -> None:
    hold(api, "b")
    election.step()
    assert election.trouble() is None
    api.fault = ApiUnavailableError("GET lease", 403, "Forbidden", "may not")
    election.step()
    assert election.trouble() == "the Lease cannot be read or taken: GET lease: 403 Forbidden: may not"
    api.fault = None
    election.step()
    assert election.trouble() is None
    assert NoElection().trouble() is None


class Fitness:
    """What a process says of its caches."""

    def __init__(self) -> None:
        self.to_take: str | None = None
        self.to_lead: str | None = None


def fit_replica(api: Api, clock: FakeClock, lost: list[str], fitness: Fitness) -> Election:
    return Election(
        api,
        clock,
        random.Random(1),
        identity="a",
        duration_s=DURATION_S,
        on_lost=lost.append,
        unfit_to_take=lambda: fitness.to_take,
        unfit_to_lead=lambda: fitness.to_lead,
    )


def step_for(election: Election, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        election.step()


def test_a_free_lease_is_not_taken_while_the_caches_are_broken(api: Api, clock: FakeClock, lost: list[str]) -> None:
    fitness = Fitness()
    fitness.to_take = "pods are not being watched"
    election = fit_replica(api, clock, lost, fitness)
    step_for(election, clock, 60)
    assert spec(api).holder_identity is None
    api.delete()
    step_for(election, clock, 60)
    assert api.stored is None
    fitness.to_take = None
    election.step()
    assert api.holder == "a"


def test_a_leader_whose_caches_stay_broken_writes_no_more_and_gives_the_lease_back_when_it_ends(
    api: Api, clock: FakeClock, lost: list[str]
) -> None:
    fitness = Fitness()
    election = fit_replica(api, clock, lost, fitness)
    election.step()
    fitness.to_lead = "the cache of pods has not been fresh for 30 s"
    step_for(election, clock, int(LET_GO_S))
    assert may_write(election)
    assert lost == []
    step_for(election, clock, 1)
    assert lost == ["the cache of pods has not been fresh for 30 s"]
    assert not may_write(election)
    assert not election.leads()
    assert "ends" in (election.trouble() or "")
    assert str(election).startswith("ending: the cache of pods")
    election.stop()
    assert is_given_back(spec(api))
    next_one = replica("b", api, clock)
    next_one.step()
    assert may_write(next_one)


def test_caches_that_heal_in_time_end_nothing(api: Api, clock: FakeClock, lost: list[str]) -> None:
    fitness = Fitness()
    election = fit_replica(api, clock, lost, fitness)
    election.step()
    for _ in range(5):
        fitness.to_lead = "broken"
        step_for(election, clock, int(LET_GO_S) - 1)
        fitness.to_lead = None
        step_for(election, clock, 1)
    assert lost == []


def test_an_api_server_that_was_away_ends_no_leader_although_its_caches_are_old(
    api: Api, clock: FakeClock, lost: list[str]
) -> None:
    fitness = Fitness()
    election = fit_replica(api, clock, lost, fitness)
    election.step()
    api.fault, fitness.to_lead = ApiUnavailableError("PATCH", None, "", "away"), "broken"
    step_for(election, clock, 600)
    api.fault = None
    step_for(election, clock, int(LET_GO_S) - 2)
    assert lost == []
    assert may_write(election)
