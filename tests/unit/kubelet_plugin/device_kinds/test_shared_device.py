"""The device of a shared GPU, against what the API takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api import limits
from dracaena.api.machine import Machine
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import decode_pool, encode_gpus
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.device_kinds.device_kind import NO_ROLES, GpuRoles
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu
from dracaena.kubelet_plugin.discovery.publish.sharing import LEAST_MEMORY_BYTES
from support.api_documents import errors
from support.machines import plain_machine
from transcripts.scenarios.slices import SHARED_GPU

MIB, GIB = 1 << 20, 1 << 30


def shared(machine: Machine) -> tuple[Device, ...]:
    return WholeGpu().publish(machine, GpuRoles(frozenset(gpu.uuid for gpu in machine.gpus)))


def gpu_with(memory_bytes: int | None) -> Machine:
    return plain_machine(1, memory_bytes=memory_bytes)


def document(device: Device) -> Any:
    return msgspec.to_builtins(device)


def test_a_shared_gpu_is_one_device_and_whole_by_default() -> None:
    (device,) = map(document, shared(gpu_with(80 * GIB)))
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"] == {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi", "step": "1Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    }


def test_memory_that_is_no_whole_mebibytes_keeps_its_value_and_is_given_out_in_whole_ones() -> None:
    (device,) = map(document, shared(gpu_with(80 * GIB + 5)))
    assert device["capacity"]["memory"]["value"] == str(80 * GIB + 5)
    policy = device["capacity"]["memory"]["requestPolicy"]
    assert (policy["default"], policy["validRange"]["max"]) == ("80Gi", "80Gi")


def test_a_gpu_without_the_role_or_without_known_memory_is_as_before() -> None:
    machine = gpu_with(80 * GIB)
    assert WholeGpu().publish(machine, NO_ROLES) == encode_gpus(machine)
    assert shared(gpu_with(None)) == encode_gpus(gpu_with(None))


@given(st.integers(LEAST_MEMORY_BYTES, 2**50))
def test_the_api_takes_a_shared_gpu_of_any_size(memory_bytes: int) -> None:
    spec = {
        "driver": "gpu.dracaena.dev",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [document(device) for device in shared(gpu_with(memory_bytes))],
    }
    api = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}
    assert errors(api) == []


@pytest.mark.parametrize("name", machine_names())
def test_recorded_machines_come_back_shared_and_stay_within_the_limits(name: str) -> None:
    machine = read_machine(name)
    machine = replace(machine, gpus=tuple(replace(gpu, memory_bytes=80 * GIB) for gpu in machine.gpus))
    devices = shared(machine)
    assert decode_pool(devices) == decode_pool(encode_gpus(machine))
    for device in devices:
        assert len(device.attributes) + len(device.capacity) <= limits.DEVICE_ATTRIBUTES_AND_CAPACITIES


def test_the_transcript_shows_what_we_publish() -> None:
    """What a kube-apiserver makes of it is recorded there."""
    (device,) = map(document, shared(gpu_with(81559 * MIB + 512)))
    assert {name: SHARED_GPU[name] for name in ("allowMultipleAllocations", "capacity")} == {
        name: device[name] for name in ("allowMultipleAllocations", "capacity")
    }
