"""GPUs for virtual machines on the wire: what is published, and read back."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from dracaena.api import attributes as table
from dracaena.api import limits
from dracaena.api.resource_objects import DeviceAttribute
from dracaena.api.resourceslice import decode_pool, encode_devices, encode_gpus, encode_passthrough
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from support.passthrough import NO_GPUS, passthrough_gpu, with_passthrough

GPUS = (passthrough_gpu(0), passthrough_gpu(1))


@pytest.mark.parametrize("name", machine_names())
def test_both_kinds_of_gpus_are_read_back_with_one_topology(name: str) -> None:
    machine = with_passthrough(replace(read_machine(name), mig_devices=()), GPUS)
    decoded = decode_pool(encode_devices(machine))
    assert decoded.problems == ()
    nics = tuple(replace(nic, name=f"nic{place}", numa_node=None) for place, nic in enumerate(machine.topology.nics))
    assert decoded.topology == replace(machine.topology, nics=nics)
    last = decoded.gpus[len(machine.gpus) :]
    assert [(gpu.name, gpu.gpu.uuid, gpu.gpu.index) for gpu in last] == [
        (gpu.device_name, gpu.pci_bus_id, len(machine.gpus) + place) for place, gpu in enumerate(GPUS)
    ]
    assert {gpu.gpu.product_name for gpu in last} == {"NVIDIA H100 80GB HBM3"}


@pytest.mark.parametrize("name", machine_names())
def test_the_gpus_of_the_driver_are_published_as_without_them_but_for_longer_rows(name: str) -> None:
    machine = read_machine(name)
    rows = {table.PCIE_LEVELS.name, table.NVLINKS.name}
    for alone, both in zip(encode_gpus(machine), encode_gpus(with_passthrough(machine, GPUS)), strict=True):
        one, other = dict(alone.attributes), dict(both.attributes)
        for row in rows:
            assert (other.pop(row).string or "").startswith(one.pop(row).string or "")
        assert one == other


def test_a_device_says_all_that_sysfs_tells() -> None:
    machine = with_passthrough(NO_GPUS, GPUS)
    first, second = encode_passthrough(machine)
    assert first.name == "vfio-0000-20-00-0"
    told = {
        name: value.string if value.string is not None else value.int_value for name, value in first.attributes.items()
    }
    assert {name: told[name] for name in told if name not in ("pcieLevels", "nvlinks")} == {
        "type": "vfio", "productName": "NVIDIA H100 80GB HBM3", "vendorID": "0x10de", "deviceID": "0x2330",
        "iommuGroup": 40, "ordinal": 0, "resource.kubernetes.io/numaNode": 0,
        "resource.kubernetes.io/pcieRoot": "pci0000:20", "resource.kubernetes.io/pciBusID": "0000:20:00.0",
        "pcieSwitch": 0, "hostBridge": 0,
    }  # fmt: skip
    assert list(first.attributes) == [spec.name for spec in table.VFIO_ATTRIBUTES if spec.name in first.attributes]
    assert not first.capacity
    assert second.attributes["ordinal"].int_value == 1
    assert len(table.VFIO_ATTRIBUTES) <= limits.DEVICE_ATTRIBUTES_AND_CAPACITIES


def test_a_product_that_is_not_known_is_left_out() -> None:
    (device,) = encode_passthrough(with_passthrough(NO_GPUS, [passthrough_gpu(0, product_name=None)]))
    assert "productName" not in device.attributes


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        (table.PCI_BUS_ID, DeviceAttribute(string="0000:21:00.0")),
        (table.PCI_BUS_ID, DeviceAttribute(int_value=1)),
        (table.TYPE, DeviceAttribute(string="vm")),
        (table.ORDINAL, DeviceAttribute(int_value=-1)),
    ],
)
def test_a_device_that_contradicts_itself_is_named_and_left_out(
    attribute: table.AttributeSpec, value: DeviceAttribute
) -> None:
    device, other = encode_passthrough(with_passthrough(NO_GPUS, GPUS))
    wrong = msgspec.structs.replace(device, attributes={**device.attributes, attribute.name: value})
    decoded = decode_pool([wrong, other])
    assert [gpu.name for gpu in decoded.gpus] == [other.name]
    assert [(one.device, one.attribute) for one in decoded.problems] == [(device.name, attribute.name)]
