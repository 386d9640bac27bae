"""Fields that only one version has, and fields behind gates."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.demo.apiserver.decode import decode
from dracaena.demo.apiserver.schema import structs, without_gated

DEVICE: dict[str, Any] = {
    "name": "gpu",
    "attributes": {"a": {"string": "x"}, "b": {"ints": [1]}},
    "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}, "compatibilityGroups": ["g"]}],
    "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}},
}
SLICE = {"spec": {"devices": [DEVICE], "skipNodeOperations": ["Prepare"], "partitionTypeAttribute": "a/b"}}


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("1.37", []),
        (
            "1.36",
            [
                "spec.devices[0].consumesCounters[0].compatibilityGroups",
                "spec.devices[0].nodeAllocatableResources",
                "spec.skipNodeOperations",
                "spec.partitionTypeAttribute",
            ],
        ),
    ],
)
def test_a_field_of_another_version_is_unknown(version: str, unknown: list[str]) -> None:
    read = decode(structs()["ResourceSlice"], SLICE, version=version)
    assert read.strict_errors == [f'unknown field "{field}"' for field in unknown]


def test_fields_behind_gates_are_dropped_wherever_they_are_and_nothing_else() -> None:
    read = decode(structs()["ResourceSlice"], SLICE, version="1.37").document
    kept = without_gated(structs()["ResourceSlice"], read)
    assert kept["spec"].keys() == read["spec"].keys() - {"skipNodeOperations", "partitionTypeAttribute"}
    (device,) = kept["spec"]["devices"]
    assert device["attributes"] == {"a": {"string": "x"}, "b": {}}
    assert device["consumesCounters"] == [{"counterSet": "c", "counters": {"m": {"value": "1"}}}]
    assert "nodeAllocatableResources" not in device
    assert read["spec"]["skipNodeOperations"] == ["Prepare"], "what was read stays as it is"
