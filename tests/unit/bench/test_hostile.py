"""The section on hostile input: that it times what it says, and finds a controller that bad input holds up."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import Any

import pytest

from bench import hostile
from bench.report import as_text
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.state.intake import Intake
from support.hostile_objects import DEEPEST, PARAMETERS_MAX_BYTES, WORST, many_small, nested
from support.random_hostile_objects import random_objects

FIGURES = {"before_p50": 2.0, "before_max": 9.0, "p99": 40.0, "max": 52.0, "honest": 100.0, "lost": 0.0}
WEIGHT = {"bytes": 1_000_000.0, "objects": 10.0, "lost": 0.0}


def measured(**changed: float) -> Any:
    """Stand in for the processes that measure."""

    def answer(what: str, name: str) -> dict[str, float]:
        return {**(FIGURES if what == "delay" else {"grown": 2_000_000.0, **WEIGHT}), **changed}

    return answer


def test_the_delay_of_the_median_before_is_not_blamed_on_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(hostile, "_measured", measured())
    section = hostile.rows(told.append)
    assert len(told) == len(hostile.ALL)
    assert [(floor.measured, floor.holds) for floor in section.floors] == [(50.0, True), (2.0, True)]
    assert {len(row) for table in section.tables for row in table.rows} == {9}


@pytest.mark.parametrize(
    ("changed", "holds"), [({"max": 253.0}, [False, True]), ({"grown": 4_100_000.0}, [True, False])]
)
def test_what_delays_or_costs_too_much_breaks_its_floor(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, float], holds: list[bool]
) -> None:
    monkeypatch.setattr(hostile, "_measured", measured(**changed))
    assert [floor.holds for floor in hostile.rows(lambda text: None).floors] == holds


def test_a_pod_that_waits_in_vain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "_measured", measured(lost=1.0, max=15_002.0))
    assert "over 15000.0" in as_text(hostile.rows(lambda text: None))


def test_an_honest_pod_gets_its_gpu_from_the_controller_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "NODES", 2)
    world = hostile.World(2)
    with world.controller() as controller:
        assert [world.ask() < hostile.PATIENCE_S * 1000 for _ in range(20)] == [True] * 20  # more than there are GPUs
        controller.stop()


def test_a_decision_that_holds_others_up_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault as large as the floor, planted where claims of one namespace are taken in."""
    planted_s = 0.3
    taken_in = Intake.claim_changed

    def slow(intake: Intake, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if new is not None and new.metadata.namespace == "hostile":
            time.sleep(planted_s)
        taken_in(intake, old, new)

    monkeypatch.setattr(Intake, "claim_changed", slow)
    monkeypatch.setattr(hostile, "NODES", 2)
    monkeypatch.setattr(hostile, "OBJECTS", 2)
    monkeypatch.setattr(hostile, "BEFORE", 5)
    found = hostile.delay(WORST["built patterns"])
    assert found["max"] - found["before_p50"] > planted_s * 1000 / 2


def test_random_objects_are_the_same_for_a_seed_and_of_every_kind() -> None:
    some, same = (list(islice(random_objects(7), 300)) for _ in range(2))
    assert some == same
    assert {item.resource for item in some} == {"resourceclaims", "deviceclasses", "resourceslices"}
    assert len({item.name for item in some}) == len(some)
    assert some != list(islice(random_objects(8), 300))


def test_the_worst_of_each_kind_fills_what_the_api_allows() -> None:
    assert len(nested(DEEPEST)) in (PARAMETERS_MAX_BYTES - 1, PARAMETERS_MAX_BYTES)
    assert len(many_small(99)) > PARAMETERS_MAX_BYTES - 5
    assert json.loads(many_small(99))["n"] == 99
    for name, kind in WORST.items():
        assert kind(1).name != kind(2).name
        assert kind(1).spec != kind(2).spec or "deep" in name
