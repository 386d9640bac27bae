"""What is published of Fabric Manager's partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.api import attributes as table
from dracaena.api import limits
from dracaena.api.fabric import FabricPartition, PartitionedFabric
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import decode_pool, encode_devices
from dracaena.api.topology import Nic
from dracaena.kubelet_plugin.device_kinds.shared_device import shared_device
from support.fake_fabric_manager import HGX_H100
from support.machines import plain_machine

FABRIC = PartitionedFabric(
    tuple(FabricPartition(number, frozenset(modules)) for number, modules in sorted(HGX_H100.items()))
)
NAMES = ("gpuModuleID", "partition1", "partition2", "partition4", "partition8")


def partitioned(fabric: PartitionedFabric | None = FABRIC, **facts: object) -> Machine:
    machine = plain_machine(2, memory_bytes=80 << 30, **facts)
    gpus = tuple(replace(gpu, module_id=module) for gpu, module in zip(machine.gpus, (3, 8), strict=True))
    return replace(machine, gpus=gpus, fabric=fabric)


def told(device: Device) -> list[int | None]:
    return [device.attributes[name].int_value if name in device.attributes else None for name in NAMES]


def test_each_gpu_names_its_partitions_by_their_size() -> None:
    assert [told(device) for device in encode_devices(partitioned())] == [[3, 9, 3, 1, 0], [8, 14, 6, 2, 0]]
    few = PartitionedFabric(tuple(each for each in FABRIC.partitions if len(each.modules) in (2, 8)))
    assert [told(device) for device in encode_devices(partitioned(few))] == [
        [3, None, 3, None, 0],
        [8, None, 6, None, 0],
    ]
    assert decode_pool(encode_devices(partitioned())).gpus[1].gpu.module_id == 8


def test_a_gpu_for_virtual_machines_names_them_too() -> None:
    gpu = PassthroughGpu("0000:18:00.0", 0x10DE, 0x2330, 40, "vfio-pci", module_id=8)
    machine = partitioned()
    topology = replace(machine.topology, gpu_count=3, pairs=(Link(LinkLevel.SYS, 0),) * 3, numa_nodes=(None,) * 3)
    machine = replace(machine, passthrough=(gpu,), topology=topology)
    assert told(encode_devices(machine)[2]) == [8, 14, 6, 2, 0]
    without = replace(machine, passthrough=(replace(gpu, module_id=None),))
    assert told(encode_devices(without)[2]) == [None] * 5


@pytest.mark.parametrize("unknown", [(), ("fabric_clique", "brand", "minor"), ("pcie_width",)])
def test_a_gpu_with_more_than_fits_lacks_what_others_say_too(unknown: tuple[str, ...]) -> None:
    facts = {
        "minor": 3, "product_name": "P", "brand": "B", "architecture": "A", "cuda_compute_capability": "9.0",
        "pcie_root": "pci0000:00", "pcie_generation": 5, "pcie_width": 16, "nvlink_count": 18, "nvlink_generation": 4,
        "fabric_clique": "c.1", "cc_capable": False, "cc_mode": "off",
    }  # fmt: skip
    machine = partitioned(FABRIC, **{name: value for name, value in facts.items() if name not in (*unknown, "minor")})
    if "minor" not in unknown:
        machine = replace(machine, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in machine.gpus))
    machine = replace(
        machine,
        gpus=tuple(replace(gpu, pci_bus_id=f"0000:0{gpu.index}:00.0") for gpu in machine.gpus),
        driver_version="535.104.05",
        cuda_driver_version="12.2",
        topology=replace(machine.topology, numa_nodes=(1, 1), nics=(Nic("mlx5_0", (LinkLevel.PIX,) * 2),)),
    )
    (device, _) = encode_devices(machine)
    device = shared_device(device, 80 << 30)
    left_out = [spec.name for spec in table.GIVING_WAY if spec.name not in device.attributes]
    giving_way = [spec.name for spec in table.GIVING_WAY if spec.gpu_field not in unknown]
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES
    assert len(device.attributes) + len(device.capacity) == room
    assert set(giving_way[: 5 - len(unknown)]) <= set(left_out)
    assert told(device) == [3, 9, 3, 1, 0]


def board(**facts: object) -> Machine:
    machine = plain_machine(8, **facts)
    gpus = tuple(replace(gpu, module_id=place + 1) for place, gpu in enumerate(machine.gpus))
    return replace(machine, gpus=gpus, fabric=FABRIC)


def test_who_reads_the_slices_finds_the_partitions() -> None:
    devices = encode_devices(board())
    every = [frozenset(module - 1 for module in modules) for _, modules in sorted(HGX_H100.items())]
    assert list(decode_pool(devices).partitions) == every
    assert list(decode_pool(devices[:7]).partitions) == [gpus for gpus in every if 7 not in gpus]
    assert decode_pool(encode_devices(replace(board(), fabric=None))).partitions == ()


def test_a_gpu_that_is_published_twice_is_in_partitions_of_each_kind() -> None:
    machine = board()
    handed = tuple(
        PassthroughGpu(f"0000:{18 + place}:00.0", 0x10DE, 0x2330, place, "vfio-pci", module_id=1 + 2 * place)
        for place in range(2)
    )
    pairs = tuple(Link(LinkLevel.SYS, 0) for _ in range(45))
    topology = replace(machine.topology, gpu_count=10, pairs=pairs, numa_nodes=(None,) * 10)
    found = decode_pool(encode_devices(replace(machine, passthrough=handed, topology=topology))).partitions
    assert [gpus for gpus in found if max(gpus) >= 8] == [{8, 9}, {8}, {9}]
    assert len(found) == 15 + 3
