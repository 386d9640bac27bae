"""Wherever a slice has a field that is not known: what has it is given to nobody, and the field is named."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.slices import not_understood
from dracaena.controller.allocation.legal.search import solve
from support.allocator_cases import features_of, problem_of
from support.random_snapshots import Document, random_snapshot

SNAPSHOTS = 400

NAMES = ("later", "x" * 300, "é", "a b", "name ", "Name", "unknown", "devices[0]", "")
VALUES: tuple[Any, ...] = (0, False, "", [], {}, [1], {"a": {"b": None}}, 1e300, "x" * 1000)

RAW = ("nodeSelector", "taints")
"""What is kept as a document, and read by rules of its own."""

MAPS = ("attributes", "capacity", "counters")
"""Whose keys are names and no fields: a further one is one more attribute, capacity or counter."""


def objects_in(value: Any, *, is_map: bool = False) -> Iterator[Document]:
    """Yield each object whose fields the API knows."""
    if isinstance(value, list):
        for entry in value:
            yield from objects_in(entry)
    if isinstance(value, dict):
        if not is_map:
            yield value
        for name, entry in value.items():
            if name not in RAW or is_map:
                yield from objects_in(entry, is_map=name in MAPS and not is_map)


def damaged(case: Document, random: Random) -> tuple[Document, str, tuple[str, str, str | None]]:
    """Add a field to some slice; return the slice, the field, and whom it concerns: driver, pool, device or None."""
    one = random.choice(case["slices"])
    spec = one["spec"]
    pool = (spec["driver"], spec["pool"]["name"])
    name = random.choice(NAMES)
    devices = spec.get("devices") or []
    if devices and random.random() < 0.8:
        device = random.choice(devices)
        random.choice(list(objects_in(device)))[name] = random.choice(VALUES)
        return one, name, (*pool, device["name"])
    rest = {key: value for key, value in spec.items() if key != "devices"}
    target = random.choice(list(objects_in(rest)))
    (spec if target is rest else target)[name] = random.choice(VALUES)
    return one, name, (*pool, None)


def check(seed: int) -> bool:
    random = Random(f"unknown fields {seed}")
    case = random_snapshot(seed)
    one, name, (driver, pool, device) = damaged(case, random)
    text = not_understood(ResourceSlice.from_json(msgspec.json.encode(one)).spec)
    assert "unknown to this version" in text, (seed, name, text)
    assert name[:100] in text, (seed, name, text)
    features = features_of(case["features"])
    problem = problem_of(case, CelSelectors(features), features=features)
    outcome = solve(problem) if isinstance(problem, Problem) else problem
    if not isinstance(outcome, Plan):
        return False
    given = [pick.device.id for claim in outcome.claims for pick in claim.picks]
    if device is None or "the pool is left alone" in text:
        newest = max(
            entry["spec"]["pool"]["generation"]
            for entry in case["slices"]
            if (entry["spec"]["driver"], entry["spec"]["pool"]["name"]) == (driver, pool)
        )
        if one["spec"]["pool"]["generation"] == newest and _is_here(one):
            assert not [found for found in given if found[:2] == (driver, pool)], seed
    else:
        picks = [pick for claim in outcome.claims for pick in claim.picks if pick.device.id.device == device]
        assert one["metadata"]["name"] not in [pick.slice.name for pick in picks], seed
    return True


def _is_here(one: Document) -> bool:
    return one["spec"].get("nodeName") == "node-1" or bool(one["spec"].get("allNodes"))


def test_whatever_has_an_unknown_field_is_given_to_no_pod() -> None:
    given = sum(check(seed) for seed in range(SNAPSHOTS))
    assert given > SNAPSHOTS // 10, "others are still given"


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_reported(name: str) -> None:
    case = random_snapshot(1)
    case["slices"][0]["spec"][name] = 1
    assert name[:100] in not_understood(ResourceSlice.from_json(msgspec.json.encode(case["slices"][0])).spec)
