"""The one table of what may happen when."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dracaena.controller.lifecycle.phases import (
    OURS,
    TENDING,
    TRANSITIONS,
    UNDER_WAY,
    Phase,
    RecordEvent,
)


def in_order(phases: Iterable[Phase]) -> list[Phase]:
    return [phase for phase in Phase if phase in set(phases)]


ALIVE = in_order(set(Phase) - {Phase.GONE})
SHOWN = {
    RecordEvent.SHOWN_ALLOCATED,
    RecordEvent.SHOWN_UNRESERVED,
    RecordEvent.SHOWN_FREE,
    RecordEvent.SHOWN_FREED_EARLY,
    RecordEvent.SHOWN_GONE,
}
ENDS = {RecordEvent.REFUSED, RecordEvent.NO_ANSWER}
SENDS = {RecordEvent.SEND_ALLOCATION, RecordEvent.SEND_DROP, RecordEvent.SEND_RESERVATION, RecordEvent.SEND_CLEARING}


def test_every_phase_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Phase)


def test_every_event_may_happen_somewhere() -> None:
    assert {event for events in TRANSITIONS.values() for event in events} == set(RecordEvent)


def reachable(start: Phase) -> set[Phase]:
    found, ahead = {start}, [start]
    while ahead:
        new = set(TRANSITIONS[ahead.pop()].values()) - found
        found |= new
        ahead += new
    return found


def test_every_phase_is_reached_from_the_first() -> None:
    assert reachable(Phase.FREE) == set(Phase)


@pytest.mark.parametrize("phase", ALIVE)
def test_from_every_phase_but_the_last_there_is_a_way_to_free_and_to_the_end(phase: Phase) -> None:
    assert {Phase.FREE, Phase.GONE} <= reachable(phase)


def test_the_last_phase_has_no_way_out() -> None:
    assert TRANSITIONS[Phase.GONE] == {}


@pytest.mark.parametrize("phase", ALIVE)
def test_the_server_may_show_anything_at_any_time(phase: Phase) -> None:
    """But that something was freed early while a decision or a clearing of ours is under way, or devices are kept: none
    of these begins while a pod may be on its way."""
    allowed = SHOWN - {RecordEvent.SHOWN_FREED_EARLY} if phase in OURS | {Phase.CLEARING, Phase.KEPT} else SHOWN
    assert SHOWN & set(TRANSITIONS[phase]) == allowed


@pytest.mark.parametrize("phase", [*in_order(TENDING), Phase.WRITING])
def test_every_write_may_be_refused_or_get_no_answer_and_only_where_it_is_under_way(phase: Phase) -> None:
    assert set(TRANSITIONS[phase]) >= ENDS
    others = set(Phase) - TENDING - {Phase.WRITING}
    assert not any(ENDS & set(TRANSITIONS[other]) for other in others)


def test_a_write_leads_to_a_phase_in_which_it_is_under_way() -> None:
    under_way = {after for events in TRANSITIONS.values() for event, after in events.items() if event in SENDS}
    assert under_way == TENDING | {Phase.WRITING}


@pytest.mark.parametrize("phase", in_order(UNDER_WAY))
def test_nothing_is_decided_while_something_is_under_way(phase: Phase) -> None:
    assert RecordEvent.DECIDE not in TRANSITIONS[phase]


def test_devices_of_a_decision_are_held_from_the_decision_until_its_write_ended_or_is_shown() -> None:
    for phase in OURS:
        for event, reached in TRANSITIONS[phase].items():
            if reached not in OURS:
                is_end = event in SHOWN | ENDS | {RecordEvent.ABANDON, RecordEvent.ANSWERED, RecordEvent.EXPIRED}
                assert is_end, f"{phase} {event}"
    assert TRANSITIONS[Phase.WRITING][RecordEvent.NO_ANSWER] in OURS
    assert RecordEvent.ABANDON not in TRANSITIONS[Phase.WRITING], "what was sent may land"
    assert RecordEvent.SHOWN_FREE not in {
        event for event, reached in TRANSITIONS[Phase.WRITING].items() if reached is Phase.FREE
    }, "an older state than what is written"
