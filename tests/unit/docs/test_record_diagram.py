"""The diagram of a claim's phases, as the design page has it."""

from __future__ import annotations

import re
from pathlib import Path

from dracaena.controller.lifecycle.phases import TRANSITIONS, Phase, RecordEvent

PAGE = Path(__file__).parents[3] / "docs" / "design" / "allocation-lifecycle.md"
EDGE = re.compile(r"^ +(\w+) --> (\w+): (.+)$", re.MULTILINE)


def test_the_diagram_has_every_transition_of_the_table_and_no_other() -> None:
    drawn = [
        (Phase(source.replace("_", " ")), RecordEvent(event), Phase(target.replace("_", " ")))
        for source, target, events in EDGE.findall(PAGE.read_text(encoding="utf-8"))
        for event in events.split(", ")
    ]
    table = {(source, event, target) for source, events in TRANSITIONS.items() for event, target in events.items()}
    assert len(drawn) == len(set(drawn))
    assert set(drawn) ^ table == set()


def test_each_phase_can_be_reached_and_left() -> None:
    targets = {target for events in TRANSITIONS.values() for target in events.values()}
    assert targets | {Phase.FREE} == set(Phase)
    assert [phase for phase in Phase if not set(TRANSITIONS[phase].values()) - {phase}] == [Phase.GONE]


def test_each_event_happens_somewhere() -> None:
    assert {event for events in TRANSITIONS.values() for event in events} == set(RecordEvent)
