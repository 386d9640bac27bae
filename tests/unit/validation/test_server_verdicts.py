"""Held to kube-apiserver's own validation: 600 edits of valid objects, each with its verdict.

server_verdicts.json was made with the strict decoder, the defaults and the validation of Kubernetes 1.36.3 on edits of
the objects in tests/support/api_documents.py. `refused` is null, or the fields that the server named; "" for a value
that it could not decode. What is found beyond the server (opaque parameters of our driver) is left out by another name
of the driver; where the two mean to differ, docs/check.md says so.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dracaena.validation import Severity, render_path, validate_object
from support.api_documents import ABSENT, BASES, edited

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("server_verdicts.json").read_text(encoding="utf-8"))


def test_there_are_enough_verdicts_of_both_kinds() -> None:
    assert sum(case["refused"] is None for case in CASES) >= 150
    assert sum(case["refused"] is not None for case in CASES) >= 400


@pytest.mark.parametrize("base", sorted(BASES))
def test_verdicts_and_their_places_are_the_servers(base: str) -> None:
    cases = [case for case in CASES if case["base"] == base]
    assert len(cases) >= 40
    assert [case for case in cases if not agrees(case)] == []


def agrees(case: dict[str, Any]) -> bool:
    path, *value = case["edit"]
    document = edited(BASES[case["base"]](), path, value[0] if value else ABSENT)
    findings = validate_object(document, driver="another.example.com")
    found = [steps(render_path(each.path)) for each in findings if each.severity is Severity.ERROR]
    if case["refused"] is None:
        return not found
    return bool(found) and all(any(is_near(steps(field), place) for place in found) for field in case["refused"])


def steps(path: str) -> list[str]:
    return [step for step in re.split(r'[."\[\]]+', path) if step]


def is_near(one: list[str], other: list[str]) -> bool:
    """Whether one place is the other or in it: the server names some mistakes at the field, some at what holds it."""
    return all(a == b for a, b in zip(one, other, strict=False))
