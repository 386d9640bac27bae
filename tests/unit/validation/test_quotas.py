"""What is told of the quota in a Namespace."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.validation import is_checked, validate_object

QUOTA = "gpu.dracaena.dev/quota"


def namespace(metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def told(quota: Any, driver: str = "gpu.dracaena.dev") -> list[tuple[str, str]]:
    document = namespace({"name": "research", "annotations": {QUOTA: quota}})
    return [(finding.message, finding.expected) for finding in validate_object(document, driver)]


def test_each_mistake_is_an_error_at_the_annotation() -> None:
    document = namespace({"name": "research", "annotations": {QUOTA: '{"gpus": -1, "gpu": 8}'}})
    findings = validate_object(document)
    assert [finding.path for finding in findings] == [("metadata", "annotations", QUOTA)] * 2
    assert [(finding.message, finding.expected) for finding in findings] == [
        ("gpus: -1", "a whole number of at least 0"),
        ("gpu: unknown", "one of gpus, gpusByProduct, shareMemory, shareCores, migSlices, migDevicesByProfile"),
    ]


@pytest.mark.parametrize("quota", ['{"gpus": 8}', "{}", None])
def test_a_quota_that_can_be_read_has_no_findings(quota: Any) -> None:
    assert told(quota) == []


def test_a_quota_of_another_driver_is_not_read() -> None:
    assert told("x", driver="other.example.com") == []


def test_a_value_that_is_no_text_is_an_error() -> None:
    assert told({"gpus": 8}) == [("no text", "a JSON object as text")]


@pytest.mark.parametrize("metadata", [None, [], 5, {"annotations": []}, {"annotations": None}])
def test_other_shapes_are_left_to_others(metadata: Any) -> None:
    assert is_checked(namespace(metadata))
    assert validate_object(namespace(metadata)) == ()
