"""Configurations of NVIDIA's group are refused with the line to write instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from dracaena.api.config.v1alpha1 import (
    ConfigError,
    Enforcement,
    GpuConfig,
    GpuSharing,
    SharingStrategy,
    TimeSliceInterval,
    decode_config,
)

V1BETA1 = "resource.nvidia.com/v1beta1"


def refused(**parameters: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        decode_config({"apiVersion": V1BETA1, **parameters})
    assert caught.value.path == "$.apiVersion"
    return str(caught.value)


def config(strategy: Any, kind: str = "GpuConfig", **sharing: Any) -> dict[str, Any]:
    return {"kind": kind, "sharing": {"strategy": strategy, **sharing}}


def lines(text: str) -> list[Any]:
    """What stands between backticks, read as YAML."""
    return [yaml.safe_load(part) for part in text.split("`")[1::2]]


MPS = GpuSharing(strategy=SharingStrategy.MPS)
SLICES = GpuSharing(strategy=SharingStrategy.TIME_SLICING, enforcement=Enforcement.BEST_EFFORT)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (config("MPS"), MPS),
        (config("MPS", timeSlicingConfig={"interval": "Long"}), MPS),
        (config("TimeSlicing"), SLICES),
        (config("TimeSlicing", timeSlicingConfig={"interval": "Forever"}), SLICES),
        (config("TimeSlicing", timeSlicingConfig={"interval": ["Long"]}), SLICES),
        *(
            (config("TimeSlicing", timeSlicingConfig={"interval": each.value}), replace(SLICES, interval=each))
            for each in TimeSliceInterval
        ),
    ],
)
def test_the_line_is_one_that_our_driver_reads(theirs: dict[str, Any], ours: GpuSharing) -> None:
    said = refused(**theirs)
    assert said.startswith(f"$.apiVersion: '{V1BETA1}', expected 'gpu.dracaena.dev/v1alpha1': instead of NVIDIA's")
    written, capacity = lines(said)
    assert decode_config(written["parameters"]) == GpuConfig(ours)
    assert capacity == {"capacity": {"requests": {"memory": "10Gi"}}}


def test_what_mps_was_reported_becomes_what_the_request_asks_for() -> None:
    told = {"defaultActiveThreadPercentage": 30, "defaultPinnedDeviceMemoryLimit": "6Gi"}
    _, capacity = lines(refused(**config("MPS", mpsConfig=told)))
    assert capacity == {"capacity": {"requests": {"memory": "6Gi", "cores": "30"}}}


@pytest.mark.parametrize("memory", [5, None, "", "much", "-1Gi", "0", "1Gi`; rm", {"a": 1}])
@pytest.mark.parametrize("percentage", [0, 101, -1, True, "30", None, [30]])
def test_what_is_not_of_the_documented_form_is_not_repeated(memory: Any, percentage: Any) -> None:
    told = {"defaultActiveThreadPercentage": percentage, "defaultPinnedDeviceMemoryLimit": memory}
    _, capacity = lines(refused(**config("MPS", mpsConfig=told)))
    assert capacity == {"capacity": {"requests": {"memory": "10Gi"}}}


@pytest.mark.parametrize(
    "sharing", [None, 3, "x", [], {}, {"strategy": None}, {"strategy": ["MPS"]}, {"strategy": "x"}]
)
def test_one_without_sharing_is_to_be_left_out(sharing: Any) -> None:
    assert "NVIDIA's GpuConfig without sharing says nothing: leave it out" in refused(kind="GpuConfig", sharing=sharing)


def test_one_for_mig_devices_is_to_be_left_out() -> None:
    said = refused(**config("MPS", kind="MigDeviceConfig"))
    assert "instead of NVIDIA's MigDeviceConfig write nothing: each MIG device is one claim's" in said


@pytest.mark.parametrize("kind", ["VfioDeviceConfig", "ComputeDomainChannelConfig", None, 3, ["x"]])
def test_other_kinds_have_nothing_like_them_here(kind: Any) -> None:
    assert "there is nothing like that kind here: leave it out" in refused(kind=kind)


@pytest.mark.parametrize("version", ["gpu.nvidia.com/v1", "resource.nvidia.company/v1", None, 3])
def test_other_groups_get_no_such_line(version: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_config({**config("MPS"), "apiVersion": version})
    assert caught.value.expected == "'gpu.dracaena.dev/v1alpha1'"
