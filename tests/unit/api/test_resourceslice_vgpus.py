"""vGPUs as devices of a ResourceSlice, and back."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from dracaena.api.attributes import VGPU_ATTRIBUTES
from dracaena.api.devicepool import DecodedVgpu, decode_pool
from dracaena.api.resource_objects import Device, DeviceAttribute
from dracaena.api.resourceslice import encode_devices
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.passthrough import NO_GPUS
from support.vgpus import mediated, virtual_function, with_vgpus

MACHINE = read_machine("a100-pcie-pairs-cross-numa")


def attributes(device: Device) -> dict[str, int | str | None]:
    return {name: one.string if one.string is not None else one.int_value for name, one in device.attributes.items()}


def test_a_vgpu_says_its_type_and_its_gpu() -> None:
    mdev, function = encode_devices(with_vgpus(NO_GPUS, mediated(0), virtual_function(1)))
    common = {
        "parentPCIBusID": "0000:20:00.0",
        "resource.kubernetes.io/numaNode": 1,
        "resource.kubernetes.io/pcieRoot": "pci0000:20",
        "type": "vgpu",
        "vgpuMigBacked": 1,
    }
    assert attributes(mdev) == {
        **common,
        "vgpuType": "A100-1-5C",
        "resource.kubernetes.io/mDevUUID": mediated(0).identity,
        "mdevUUID": mediated(0).identity,
        "iommuGroup": 100,
    }
    assert attributes(function) == {
        **common,
        "vgpuType": "H200X-1-18C",
        "resource.kubernetes.io/pciBusID": "0000:20:04.1",
        "iommuGroup": 201,
    }
    assert mdev.capacity["memory"].value == "4864Mi"
    assert set(attributes(mdev)) | set(attributes(function)) <= {spec.name for spec in VGPU_ATTRIBUTES}


def test_a_vgpu_has_switch_and_bridge_of_a_gpu_that_the_driver_lists() -> None:
    gpu = MACHINE.gpus[1]
    machine = replace(
        MACHINE, gpus=tuple(replace(one, pci_bus_id=f"0000:2{n}:00.0") for n, one in enumerate(MACHINE.gpus))
    )
    parent = next(one for one in machine.gpus if one.uuid == gpu.uuid).pci_bus_id
    assert parent is not None
    *gpus, vgpu = encode_devices(with_vgpus(machine, mediated(0, parent=parent)))
    for name in ("pcieSwitch", "hostBridge"):
        assert vgpu.attributes.get(name) == gpus[1].attributes.get(name)
    assert "ordinal" not in vgpu.attributes
    decoded = decode_pool([*gpus, vgpu])
    assert (decoded.problems, decoded.topology.gpu_count) == ((), len(gpus)), "it is no row of the topology"


def test_what_is_published_is_read_back() -> None:
    devices = encode_devices(with_vgpus(MACHINE, mediated(0), mediated(1), virtual_function(0)))
    assert decode_pool(devices).vgpus == (
        DecodedVgpu(virtual_function(0).device_name, "H200X-1-18C", "0000:20:00.0"),
        DecodedVgpu(mediated(0).device_name, "A100-1-5C", "0000:20:00.0"),
        DecodedVgpu(mediated(1).device_name, "A100-1-5C", "0000:20:00.0"),
    )


@pytest.mark.parametrize(
    ("changes", "attribute"),
    [
        ({"vgpuType": None}, "vgpuType"),
        ({"resource.kubernetes.io/mDevUUID": None}, "resource.kubernetes.io/pciBusID"),
        ({"resource.kubernetes.io/mDevUUID": DeviceAttribute(string="x")}, "resource.kubernetes.io/mDevUUID"),
        ({"type": DeviceAttribute(string="vgpus")}, "type"),
        ({"vgpuType": DeviceAttribute(int_value=4)}, "vgpuType"),
    ],
)
def test_what_is_no_vgpu_of_ours_is_named_and_left_out(
    changes: dict[str, DeviceAttribute | None], attribute: str
) -> None:
    (device,) = encode_devices(with_vgpus(NO_GPUS, mediated(0)))
    left = {name: one for name, one in {**device.attributes, **changes}.items() if one is not None}
    found = decode_pool([msgspec.structs.replace(device, attributes=left)])
    assert (found.vgpus, [problem.attribute for problem in found.problems]) == ((), [attribute])


def test_of_two_of_one_name_one_is_left_out() -> None:
    (device,) = encode_devices(with_vgpus(NO_GPUS, mediated(0)))
    found = decode_pool([device, device])
    assert (len(found.vgpus), [problem.attribute for problem in found.problems]) == (1, ["name"])
