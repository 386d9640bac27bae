"""Held to what a real kube-apiserver answered: each creation in the transcripts gets the same verdict here.

A server that is asked to check strictly (as kubectl asks) refuses unknown fields; one that is not asked drops them and
warns. So such transcripts are left out unless they ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.validation import Severity, render_path, validate_object

GOLDEN = Path(__file__).parents[2] / "transcripts" / "golden"
CREATION = re.compile(r"POST (?:/api/v1|/apis/resource\.k8s\.io/v1)(?:/namespaces/[^/]+)?/(\w+)(?:\?.*)?")
KINDS = {
    "deviceclasses": "DeviceClass",
    "pods": "Pod",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "resourceslices": "ResourceSlice",
}
REPEATED = re.compile(r"<(.) × (\d+)>")
"""How a transcript shortens a text of one character."""
DIFFERENT = {
    ("admin_access", "without the label"): "needs to know the namespace",
    ("admin_access", "a template"): "needs to know the namespace",
    ("requests_not_understood", "an unknown fieldValidation"): "about the request, not the object",
    ("pod_validation", "no container"): "only the claims of pods are checked",
    ("pod_validation", "bad parts"): "only the claims of pods are checked",
    ("pod_validation", "bad resources"): "only the claims of pods are checked",
    ("pod_validation", "a bad affinity"): "only the claims of pods are checked",
}


def creations() -> Iterator[tuple[str, str, dict[str, Any], list[str] | None]]:
    """Yield (scenario, step, object, None or the fields that the server refused)."""
    for file in sorted(GOLDEN.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8").split("\n\n", 1)[1]
        for step in yaml.load(text, yaml.CSafeLoader):  # eight times as fast as the one in Python
            match = CREATION.fullmatch(step.get("request", ""))
            body = step.get("body")
            if not match or not isinstance(body, dict) or body.get("kind") != KINDS.get(match[1]):
                continue
            if "more>" in str(body) or (file.stem, step["step"]) in DIFFERENT:
                continue
            if step["status"] in (200, 201) and (file.stem != "unknown_fields" or "Strict" in step["request"]):
                yield file.stem, step["step"], whole(body), None
            elif step["status"] == 422:
                causes = step["answer"]["causes"]
                # A name that the server made from a bad generateName is not in the object.
                made = "generateName" in body["metadata"]
                fields = [field for field in causes if not (made and field == "metadata.name")]
                yield file.stem, step["step"], whole(body), fields


def whole(value: Any) -> Any:
    """Write out what a transcript shortened."""
    if isinstance(value, str):
        return REPEATED.sub(lambda match: match[1] * int(match[2]), value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {whole(key): whole(item) for key, item in value.items()}
    return value


CASES = list(creations())


def test_there_are_enough_transcripts_of_both_kinds() -> None:
    assert sum(refused is None for *_, refused in CASES) >= 80
    assert sum(refused is not None for *_, refused in CASES) >= 50


@pytest.mark.parametrize(
    ("document", "refused"), [case[2:] for case in CASES], ids=[f"{scenario}: {step}" for scenario, step, *_ in CASES]
)
def test_the_verdict_and_its_places_are_the_servers(document: dict[str, Any], refused: list[str] | None) -> None:
    errors = [finding for finding in validate_object(document) if finding.severity is Severity.ERROR]
    if refused is None:
        assert [str(error) for error in errors] == []
        return
    found = [steps(render_path(error.path)) for error in errors]
    for field in refused:
        assert any(is_near(steps(field), place) for place in found), (field, found)


def steps(path: str) -> list[str]:
    return [step for step in re.split(r'[."\[\]]+', path) if step and step != "<nil>"]


def is_near(one: list[str], other: list[str]) -> bool:
    """Whether one place is the other or in it: the server names some mistakes at the field, some at what holds it."""
    return all(a == b for a, b in zip(one, other, strict=False))
