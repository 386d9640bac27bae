"""Devices as CEL sees them."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.legal import cel_selectors
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.legal.selectors import SelectorFailure
from dracaena.controller.allocation.state import pool
from support.structured import World, device, published

EVERYTHING = device(
    "gpu",
    allow_multiple_allocations=True,
    capacity={"memory": "80Gi", "other.example/slots": "7"},
    attributes={
        "count": 3,
        "model": "H100",
        "fast": True,
        "driver": {"version": "1.2.3"},
        "other.example/rack": "r1",
        "numbers": [1, 2],
        "words": ["a", "b"],
        "flags": [True],
        "versions": {"versions": ["1.0.0", "2.0.0"]},
    },
)


def read(document: object = EVERYTHING) -> PublishedDevice:
    problem = World([published("slice-1", document)]).problem()  # type: ignore[arg-type]
    assert isinstance(problem, Problem)
    return problem.candidates[0].reachable.device


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "driver-a"',
        "device.allowMultipleAllocations",
        'device.attributes["driver-a"].count == 3',
        'device.attributes["driver-a"].model == "H100"',
        'device.attributes["driver-a"].fast',
        'device.attributes["driver-a"].driver.isLessThan(semver("1.10.0"))',
        'device.attributes["other.example"].rack == "r1"',
        '1 in device.attributes["driver-a"].numbers',
        'device.attributes["driver-a"].words == ["a", "b"]',
        'device.attributes["driver-a"].flags[0]',
        'device.attributes["driver-a"].versions[1] == semver("2.0.0")',
        'device.capacity["driver-a"].memory.compareTo(quantity("80Gi")) == 0',
        'device.capacity["other.example"].slots.asInteger() == 7',
    ],
)
def test_everything_that_is_published_can_be_selected_by(expression: str) -> None:
    assert CelSelectors(Features(list_attributes=True)).evaluate(expression, read()) is True


@pytest.mark.parametrize("attributes", [{"odd": {}}, {"numbers": [1]}, {"version": {"version": "1.2"}}])
def test_a_device_with_a_value_that_cannot_be_read_has_no_answer(attributes: dict[str, object]) -> None:
    found = CelSelectors(Features()).evaluate("true", read(device("gpu", attributes=attributes)))
    assert isinstance(found, SelectorFailure)


def test_no_more_devices_are_kept_for_selectors_than_are_kept_read() -> None:
    """Beyond, what is remembered is only of devices that nobody asks about again."""
    assert cel_selectors.MOST_DEVICES <= pool.MOST_DEVICES


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cel_selectors, "MOST_DEVICES", 2)
    asked = CelSelectors(Features())
    gpus = [read(device(f"gpu-{n}", attributes={"n": n})) for n in range(5)]
    for _ in range(2):
        answers = [asked.evaluate('device.attributes["driver-a"].n == 3', gpu) for gpu in gpus]
        assert answers == [False, False, False, True, False]
