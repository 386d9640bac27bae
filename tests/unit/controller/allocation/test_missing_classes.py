"""What is said of a class that is not there is worked out once, and charged to whoever asks first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dracaena.api.reasons import no_class
from dracaena.controller.allocation.effort import Effort, OverdueError
from dracaena.controller.allocation.missing_classes import COMPARE_STEPS, MissingClasses
from dracaena.controller.allocation.request import Refused, RequestReader
from support.allocation import DRIVER, claim, device_class, request, requests_of

MISSPELT = "gpu.dracaena.dve"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were looked for among the classes, one after the other."""
    names: list[str] = []

    def counted(name: str, known: Iterable[str], driver: str) -> str:
        names.append(name)
        return no_class(name, known, driver)

    monkeypatch.setattr("dracaena.controller.allocation.missing_classes.no_class", counted)
    return names


def refused(reader: RequestReader, effort: Effort | None = None) -> str:
    found = reader.read([claim("c", request(device_class=MISSPELT))], effort)
    assert isinstance(found, Refused)
    return found.text


def test_a_misspelt_class_is_looked_for_once_however_often_the_claim_is_tried(asked: list[str]) -> None:
    reader = requests_of([device_class()])
    first, again = Effort(), Effort()
    assert refused(reader, first) == refused(reader, again)
    assert asked == [MISSPELT]
    assert sum(first.spent.values()) >= COMPARE_STEPS
    assert sum(again.spent.values()) < COMPARE_STEPS


def test_classes_that_come_and_go_change_what_is_said(asked: list[str]) -> None:
    reader = requests_of([device_class()])
    assert refused(reader).endswith(f"did you mean {DRIVER}?")
    reader.set_class(device_class())  # the same name: nothing to look for
    assert refused(reader).endswith(f"did you mean {DRIVER}?")
    reader.remove_class(DRIVER)
    assert refused(reader).endswith("an admin has to create it")
    reader.set_class(device_class(f"{MISSPELT}v"))
    assert refused(reader).endswith(f"did you mean {MISSPELT}v?")
    assert asked == [MISSPELT] * 3


def test_who_has_no_time_left_for_the_search_is_reported_at_the_next_try(asked: list[str]) -> None:
    missing, effort = MissingClasses(DRIVER), Effort()
    missing.know([f"class-{number}" for number in range(100)])
    effort.begin(lambda _: True)
    with pytest.raises(OverdueError):
        missing.text("class-x", effort)
    effort.begin(lambda _: True)
    assert missing.text("class-x", effort).startswith("DeviceClass class-x does not exist")
    assert asked == ["class-x"]
