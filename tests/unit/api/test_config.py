from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from dracaena.api.config.v1alpha1 import (
    API_VERSION,
    ConfigError,
    GpuConfig,
    Requirement,
    TopologyPolicy,
    decode_config,
)


def policy(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "TopologyPolicy", **fields}


def test_a_policy_without_fields_asks_for_best_effort() -> None:
    assert decode_config(policy()) == TopologyPolicy(Requirement.BEST_EFFORT)


@pytest.mark.parametrize("requirement", list(Requirement))
def test_every_requirement_is_read(requirement: Requirement) -> None:
    assert decode_config(policy(requirement=requirement.value)) == TopologyPolicy(requirement)


def test_the_gpu_config_has_no_fields() -> None:
    assert decode_config({"apiVersion": API_VERSION, "kind": "GpuConfig"}) == GpuConfig()


@pytest.mark.parametrize(
    ("parameters", "path", "text"),
    [
        ({}, "$.apiVersion", "$.apiVersion: nothing, expected 'gpu.dracaena.dev/v1alpha1'"),
        (
            {"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"},
            "$.apiVersion",
            "$.apiVersion: 'gpu.nvidia.com/v1beta1', expected 'gpu.dracaena.dev/v1alpha1'",
        ),
        (
            {"apiVersion": "gpu.dracaena.dev/v1", "kind": "GpuConfig"},
            "$.apiVersion",
            "$.apiVersion: 'gpu.dracaena.dev/v1', expected 'gpu.dracaena.dev/v1alpha1'",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "MigConfig"},
            "$.kind",
            "$.kind: 'MigConfig', expected one of 'TopologyPolicy', 'GpuConfig'",
        ),
        ({"apiVersion": API_VERSION, "kind": ["x"]}, "$.kind", "expected one of 'TopologyPolicy', 'GpuConfig'"),
        (
            policy(requirement="nvlnk"),
            "$.requirement",
            "$.requirement: 'nvlnk', expected one of 'BestEffort', 'NVLink', 'PIX', 'PXB', 'PHB', 'NODE'",
        ),
        (policy(requirement=None), "$.requirement", "$.requirement: nothing, expected one of"),
        (
            policy(requirment="NVLink"),
            "$.requirment",
            "$.requirment: 'NVLink', expected no such field (known are apiVersion, kind, requirement)",
        ),
        (
            {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}},
            "$.sharing",
            "$.sharing: {'strategy': 'MPS'}, expected no such field (known are apiVersion, kind)",
        ),
    ],
)
def test_a_broken_config_says_where_what_was_seen_and_what_was_expected(
    parameters: dict[str, Any], path: str, text: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(parameters)
    assert caught.value.path == path
    assert text in str(caught.value)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config(policy(requirement="x" * 10_000))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("kind", ["topologypolicy", "gpuconfig"])
def test_the_schemas_are_package_data_and_refer_to_nothing_outside(kind: str) -> None:
    folder = resources.files("dracaena.api.config.v1alpha1")
    text = folder.joinpath(f"{kind}.schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert '"$ref"' not in text
