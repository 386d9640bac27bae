"""Random cases beside the reference allocators: what is asked, and that a difference is found. Go itself is asked by
`make conformance-go` only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conformance.allocator import features_of_case, posed_case
from conformance.beside_reference import (
    CUT_OFF,
    Reference,
    compare_snapshots,
    compare_worlds,
    question,
    snapshot,
    world,
)
from conformance.kube_scheduler import answer_of

from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from support.allocation import DRIVER

VERSIONS = ((1, 36), (1, 37))


class OwnRules(Reference):
    """Answers by the plain search over our own rules, spoilt as the test wants."""

    spoil: Callable[[dict[str, Any]], dict[str, Any]] = staticmethod(lambda answer: answer)

    def ask(self, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [type(self).spoil(self._answer({**one, "version": self.version})) for one in documents]

    def _answer(self, case: dict[str, Any]) -> dict[str, Any]:
        found = answer_of(posed_case(case, CelSelectors(features_of_case(case))))
        return {"results": None, "error": "", **found}


class NothingEver(OwnRules):
    spoil = staticmethod(lambda _: {"results": None, "error": ""})


class LastDeviceMissing(OwnRules):
    @staticmethod
    def _without_last(answer: dict[str, Any]) -> dict[str, Any]:
        for result in answer["results"] or ():
            del result["devices"]["results"][-1:]
        return answer

    spoil = _without_last


@pytest.mark.parametrize("version", VERSIONS)
def test_equal_answers_differ_in_nothing(version: tuple[int, int]) -> None:
    kinds = Counter[str]()
    for kind, found in compare_snapshots(OwnRules(version, Path()), range(60)):
        assert not found
        kinds[kind] += 1
    assert {"allocated", "nothing", "error"} == set(kinds)


@pytest.mark.parametrize("spoilt", [NothingEver, LastDeviceMissing])
def test_a_reference_that_answers_otherwise_is_reported_with_the_seed(spoilt: type[OwnRules]) -> None:
    found = [text for _, text in compare_snapshots(spoilt((1, 37), Path()), range(60)) if text]
    assert found
    assert all(text.startswith("snapshot ") for text in found)


def test_a_case_of_1_36_has_no_field_of_1_37() -> None:
    cases = [snapshot(seed, (1, 36)) for seed in range(60)]
    assert "compatibilityGroups" in str([snapshot(seed, (1, 37)) for seed in range(60)])
    assert "compatibilityGroups" not in str(cases)
    assert not [gate for case in cases for gate in case["features"] if "Groups" in gate or "Fractional" in gate]


def test_the_whole_allocator_serves_a_pod_wherever_the_rules_do() -> None:
    kinds = Counter[str]()
    for kind, found in compare_worlds(OwnRules((1, 37), Path()), range(24)):
        assert not found
        kinds[kind] += 1
    assert {"allocated", "nothing"} <= set(kinds) <= {"allocated", "nothing", CUT_OFF}


def test_an_allocation_that_the_reference_does_not_give_is_reported() -> None:
    found = [text for _, text in compare_worlds(NothingEver((1, 37), Path()), range(8)) if text]
    assert found
    assert all("ours allocates on node-" in text for text in found)


def test_of_a_choice_the_reference_sees_only_its_devices_and_those_in_use() -> None:
    there = world(1)
    assert there.allocation is not None
    names = frozenset(result.device for entry in there.allocation.claims for result in entry.results)
    asked = question(there, there.allocation.node, only=names)
    held = {one["Device"] for one in (*asked["allocatedDevices"], *asked["aggregatedCapacity"])}
    shown = {device["name"] for item in asked["slices"] for device in item["spec"].get("devices", ())}
    assert names <= shown <= names | held
    assert f"{DRIVER}/controller-allocated" not in str(asked["slices"])
