"""Writes a machine as the devices of a ResourceSlice: what dracaena.api.attributes lists, within the API's limits.

decode_pool (dracaena.api.devicepool) reads them back. Not carried: the machine's name and source, names and NUMA nodes
of NICs, rows of more than 63 GPUs or NICs, and values that break a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec

from dracaena.api import attributes as table
from dracaena.api import compact, limits
from dracaena.api.attributes import AttributeSpec, AttributeType
from dracaena.api.devicepool import DecodedGpu, DecodedMig, DecodedPool, DeviceProblem, decode_pool
from dracaena.api.fabric import PartitionedFabric
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice
from dracaena.api.mig_geometry import MigPlace, MigProfile, consumption, counters, places
from dracaena.api.names import DNS_LABEL, DeviceName, gpu_device_name
from dracaena.api.passthrough import PassthroughGpu, hexadecimal_id
from dracaena.api.quantity import format_bytes
from dracaena.api.resource_objects import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
)
from dracaena.api.topology import Topology, TopologyError
from dracaena.api.versions import to_semver
from dracaena.api.vgpu import Vgpu

__all__ = [
    "DecodedGpu",
    "DecodedMig",
    "DecodedPool",
    "DeviceProblem",
    "decode_pool",
    "encode_devices",
    "encode_gpus",
    "encode_mig_devices",
    "encode_mig_places",
    "encode_passthrough",
    "encode_vgpus",
    "mig_counter_set",
    "whole_counter_set",
    "with_whole_consumption",
]

_WHOLE: Mapping[str, int] = {"whole": 1}


def encode_devices(machine: Machine) -> tuple[Device, ...]:
    """Return, without taints, one device per GPU in ordinal order, then one per MIG device in the machine's order, then
    one per GPU that is passed through to virtual machines, then one per vGPU.

    A value that is unknown or breaks a limit is left out; a text for people is cut. Raises TopologyError for a UUID
    that makes no device name: a device without identity cannot be published. Equal machines give equal devices.
    """
    return (*encode_gpus(machine), *encode_mig_devices(machine), *encode_passthrough(machine), *encode_vgpus(machine))


def encode_gpus(machine: Machine) -> tuple[Device, ...]:
    """Return the first part of encode_devices: one device per GPU."""
    groups = _groups(machine.topology)
    return tuple(_device(machine, groups, ordinal) for ordinal in range(len(machine.gpus)))


def encode_mig_devices(machine: Machine) -> tuple[Device, ...]:
    """Return the second part of encode_devices: one device per MIG device."""
    parents = {gpu.uuid: gpu for gpu in machine.gpus}
    return tuple(_mig_device(machine, parents[mig.parent_uuid], mig) for mig in machine.mig_devices)


def encode_passthrough(machine: Machine) -> tuple[Device, ...]:
    """Return the third part of encode_devices, in ordinal order."""
    if not machine.passthrough:
        return ()
    groups = _groups(machine.topology)
    return tuple(
        Device(
            name=gpu.device_name,
            attributes=_attributes(table.VFIO_ATTRIBUTES, _passthrough_values(machine, groups, ordinal, gpu)),
        )
        for ordinal, gpu in enumerate(machine.passthrough, start=len(machine.gpus))
    )


def encode_vgpus(machine: Machine) -> tuple[Device, ...]:
    """Return the last part of encode_devices, in the machine's order."""
    if not machine.vgpus:
        return ()
    groups = _groups(machine.topology)
    ordinals = {gpu.pci_bus_id: ordinal for ordinal, gpu in enumerate(machine.gpus) if gpu.pci_bus_id is not None}
    return tuple(
        Device(
            name=vgpu.device_name,
            attributes=_attributes(table.VGPU_ATTRIBUTES, _vgpu_values(vgpu, groups, ordinals.get(vgpu.parent))),
            capacity=_memory(vgpu.framebuffer_bytes),
        )
        for vgpu in machine.vgpus
    )


def encode_mig_places(machine: Machine, gpu: Gpu) -> tuple[Device, ...]:
    """Return one device for each place that a MIG device can have on a GPU, small before large, without taints.

    Each takes what it needs from the counter set of its GPU (mig_counter_set). A GPU without profiles has none.
    """
    there = counters(gpu.mig_profiles)
    return tuple(
        Device(
            name=_checked_name(machine, place.device_name, gpu.uuid),
            attributes=_attributes(table.MIG_PLACE_ATTRIBUTES, _place_values(machine, gpu, place)),
            capacity=_place_capacity(place.profile),
            consumes_counters=[_consumption(gpu, consumption(place, there))],
        )
        for place in places(gpu.uuid, gpu.mig_profiles)
    )


def mig_counter_set(gpu: Gpu, taken: Mapping[str, int]) -> CounterSet:
    """Return what the claims of this driver can have of a GPU: all that it has, minus what others have `taken`."""
    left = {name: max(0, amount - taken.get(name, 0)) for name, amount in counters(gpu.mig_profiles).items()}
    return CounterSet(gpu_device_name(gpu.uuid), _wire_counters(left))


def whole_counter_set(gpu: Gpu) -> CounterSet:
    """Return the counter set of a GPU that can be given in two ways, as a whole in each."""
    return CounterSet(gpu_device_name(gpu.uuid), _wire_counters(_WHOLE))


def with_whole_consumption(device: Device, gpu: Gpu, *, divided: bool = True) -> Device:
    """Return a device that is a whole GPU, changed to take all of its counter set: mig_counter_set if the GPU is
    divided, else whole_counter_set.
    """
    there = counters(gpu.mig_profiles) if divided else _WHOLE
    return msgspec.structs.replace(device, consumes_counters=[_consumption(gpu, there)])


def _consumption(gpu: Gpu, amounts: Mapping[str, int]) -> CounterConsumption:
    return CounterConsumption(gpu_device_name(gpu.uuid), _wire_counters(amounts))


def _wire_counters(amounts: Mapping[str, int]) -> dict[str, Counter]:
    return {name: Counter(str(amount)) for name, amount in amounts.items()}


def _place_capacity(profile: MigProfile) -> dict[str, DeviceCapacity]:
    numbers = {
        table.MULTIPROCESSORS_CAPACITY: profile.multiprocessors,
        table.COPY_ENGINES_CAPACITY: profile.copy_engines,
        table.DECODERS_CAPACITY: profile.decoders,
        table.ENCODERS_CAPACITY: profile.encoders,
        table.JPEG_ENGINES_CAPACITY: profile.jpeg_engines,
        table.OFA_ENGINES_CAPACITY: profile.ofa_engines,
    }
    return {
        **{name: DeviceCapacity(value=str(number)) for name, number in numbers.items()},
        **_memory(profile.memory_bytes),
    }


@dataclass(frozen=True, slots=True)
class _Groups:
    """For each ordinal the lowest ordinal of its group; None if an unknown pair could make the group larger."""

    nvlink: tuple[int | None, ...]
    switch: tuple[int | None, ...]
    host_bridge: tuple[int | None, ...]


def _groups(topology: Topology) -> _Groups:
    return _Groups(
        nvlink=_certain_groups(topology, lambda link: None if link.nvlinks is None else link.nvlinks > 0),
        switch=_certain_groups(topology, lambda link: _within(link, LinkLevel.PIX)),
        host_bridge=_certain_groups(topology, lambda link: _within(link, LinkLevel.PHB)),
    )


def _within(link: Link, level: LinkLevel) -> bool | None:
    return None if link.level is None else link.level <= level


def _certain_groups(topology: Topology, joins: Callable[[Link], bool | None]) -> tuple[int | None, ...]:
    pairs = [(a, b, joins(topology.link(a, b))) for a, b in combinations(range(topology.gpu_count), 2)]
    lowest = lowest_in_group(topology.gpu_count, ((a, b) for a, b, joined in pairs if joined))
    open_pairs = [(a, b) for a, b, joined in pairs if joined is None and lowest[a] != lowest[b]]
    uncertain = {lowest[ordinal] for pair in open_pairs for ordinal in pair}
    return tuple(None if group in uncertain else group for group in lowest)


def _device(machine: Machine, groups: _Groups, ordinal: int) -> Device:
    gpu = machine.gpus[ordinal]
    return Device(
        name=_checked_name(machine, gpu_device_name(gpu.uuid), gpu.uuid),
        attributes=_fitting(_attributes(table.GPU_ATTRIBUTES, _gpu_values(machine, groups, ordinal))),
        capacity=_memory(gpu.memory_bytes),
    )


def _fitting(attributes: dict[str, DeviceAttribute]) -> dict[str, DeviceAttribute]:
    """Return as many attributes as a whole GPU may have next to the capacities of a shared one."""
    room = limits.DEVICE_ATTRIBUTES_AND_CAPACITIES - len(table.SHARED_GPU_CAPACITIES)
    there = [spec.name for spec in table.GIVING_WAY if spec.name in attributes]
    left_out = there[: max(0, len(attributes) - room)]
    return {name: value for name, value in attributes.items() if name not in left_out}


def _mig_device(machine: Machine, parent: Gpu, mig: MigDevice) -> Device:
    count = mig.multiprocessors
    multiprocessors = {} if count is None else {table.MULTIPROCESSORS_CAPACITY: DeviceCapacity(value=str(count))}
    return Device(
        name=_checked_name(machine, mig.device_name, mig.uuid),
        attributes=_attributes(table.MIG_ATTRIBUTES, _mig_values(machine, parent, mig)),
        capacity={**multiprocessors, **_memory(mig.memory_bytes)},
    )


def _checked_name(machine: Machine, name: DeviceName, identity: str) -> DeviceName:
    if not DNS_LABEL.fullmatch(name):
        raise TopologyError(f"{machine.name}: {identity!r} makes no device name: {name!r} is not a DNS label")
    return name


def _attributes(
    specs: Sequence[AttributeSpec], given: Iterable[tuple[AttributeSpec, int | str | None]]
) -> dict[str, DeviceAttribute]:
    """Return the attributes in the order of the table."""
    values = {spec.name: value for spec, value in given if value is not None}
    wire = {spec.name: _attribute(spec, values[spec.name]) for spec in specs if spec.name in values}
    return {key: attribute for key, attribute in wire.items() if attribute is not None}


def _mig_values(machine: Machine, parent: Gpu, mig: MigDevice) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield from _common_values(table.MIG_ATTRIBUTES, machine, parent)
    yield table.TYPE, table.MIG_TYPE
    yield table.UUID, mig.uuid
    yield table.PARENT_UUID, parent.uuid
    yield table.PROFILE, mig.profile


def _place_values(machine: Machine, gpu: Gpu, place: MigPlace) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield from _common_values(table.MIG_PLACE_ATTRIBUTES, machine, gpu)
    yield table.TYPE, table.MIG_TYPE
    yield table.PARENT_UUID, gpu.uuid
    yield table.PROFILE, place.profile.name
    yield table.PLACEMENT_START, place.placement.start
    yield table.PLACEMENT_SIZE, place.placement.size


def _common_values(
    specs: Iterable[AttributeSpec], machine: Machine, gpu: Gpu
) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    """Return what a GPU and its parts have in common."""
    for spec in specs:
        if spec.gpu_field is not None:
            yield spec, getattr(gpu, spec.gpu_field)
    yield table.CUDA_COMPUTE_CAPABILITY, gpu.cuda_compute_capability
    yield table.DRIVER_VERSION, machine.driver_version
    yield table.DRIVER_VERSION_TEXT, machine.driver_version
    yield table.CUDA_DRIVER_VERSION, machine.cuda_driver_version
    yield table.CUDA_DRIVER_VERSION_TEXT, machine.cuda_driver_version


def _gpu_values(machine: Machine, groups: _Groups, ordinal: int) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield from _common_values(table.GPU_ATTRIBUTES, machine, machine.gpus[ordinal])
    yield table.TYPE, table.GPU_TYPE
    yield table.NVLINK_GROUP, groups.nvlink[ordinal]
    yield from _partition_values(machine.fabric, machine.gpus[ordinal].module_id)
    yield from _link_values(machine.topology, groups, ordinal)


def _passthrough_values(
    machine: Machine, groups: _Groups, ordinal: int, gpu: PassthroughGpu
) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield table.TYPE, table.VFIO_TYPE
    yield table.PRODUCT_NAME, gpu.product_name
    yield table.VENDOR_ID, hexadecimal_id(gpu.vendor_id)
    yield table.DEVICE_ID, hexadecimal_id(gpu.device_id)
    yield table.IOMMU_GROUP, gpu.iommu_group
    yield table.PCIE_ROOT, gpu.pcie_root
    yield table.PCI_BUS_ID, gpu.pci_bus_id
    yield table.CC_MODE, gpu.cc_mode
    yield table.GPU_MODULE_ID, gpu.module_id
    yield from _partition_values(machine.fabric, gpu.module_id)
    yield from _link_values(machine.topology, groups, ordinal)


def _partition_values(
    fabric: PartitionedFabric | None, module: int | None
) -> Iterator[tuple[AttributeSpec, int | None]]:
    if fabric is None or module is None:
        return
    for size, spec in table.PARTITION_SIZES.items():
        partition = fabric.of_size(module, size)
        if partition is not None:
            yield spec, partition.id


def _vgpu_values(vgpu: Vgpu, groups: _Groups, parent: int | None) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield table.TYPE, table.VGPU_TYPE
    yield table.VGPU_TYPE_NAME, vgpu.type.name
    yield table.VGPU_MIG_BACKED, int(vgpu.type.is_mig_backed)
    yield table.PARENT_PCI_BUS_ID, vgpu.parent
    for spec in (table.MDEV_UUID, table.MDEV_UUID_FOR_KUBEVIRT) if vgpu.is_mediated else (table.PCI_BUS_ID,):
        yield spec, vgpu.identity
    yield table.IOMMU_GROUP, vgpu.iommu_group
    yield table.NUMA_NODE, vgpu.numa_node
    yield table.PCIE_ROOT, vgpu.pcie_root
    if parent is not None:
        yield table.PCIE_SWITCH, groups.switch[parent]
        yield table.HOST_BRIDGE, groups.host_bridge[parent]


def _link_values(topology: Topology, groups: _Groups, ordinal: int) -> Iterator[tuple[AttributeSpec, int | str | None]]:
    yield table.ORDINAL, ordinal
    yield table.NUMA_NODE, topology.numa_nodes[ordinal]
    yield table.PCIE_SWITCH, groups.switch[ordinal]
    yield table.HOST_BRIDGE, groups.host_bridge[ordinal]
    yield table.PCIE_LEVELS, _row(topology, ordinal, lambda link: compact.level_number(link.level))
    yield table.NVLINKS, _row(topology, ordinal, lambda link: link.nvlinks)
    if topology.nics:
        yield table.NIC_LEVELS, compact.encode(compact.level_number(nic.levels[ordinal]) for nic in topology.nics)


def _row(topology: Topology, ordinal: int, entry: Callable[[Link], int | None]) -> str:
    others = range(topology.gpu_count)
    return compact.encode(
        compact.SELF if other == ordinal else entry(topology.link(ordinal, other)) for other in others
    )


def _attribute(spec: AttributeSpec, value: int | str) -> DeviceAttribute | None:
    """Return the value in the form of its type, or None if the API would refuse it."""
    if isinstance(value, bool):
        return DeviceAttribute(bool_value=value) if spec.type is AttributeType.BOOL else None
    if isinstance(value, int):
        return DeviceAttribute(int_value=value) if spec.holds(value) else None
    if spec.type is AttributeType.VERSION:
        version = to_semver(value)
        return None if version is None else DeviceAttribute(version=version)
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        return None
    if len(encoded) <= limits.ATTRIBUTE_VALUE_BYTES:
        return DeviceAttribute(string=value)
    if spec.type is not AttributeType.TEXT:
        return None
    return DeviceAttribute(string=encoded[: limits.ATTRIBUTE_VALUE_BYTES].decode(errors="ignore"))


def _memory(count_bytes: int | None) -> dict[str, DeviceCapacity]:
    if count_bytes is None or not 0 <= count_bytes <= table.MAX_BYTES:
        return {}
    return {table.MEMORY_CAPACITY: DeviceCapacity(value=format_bytes(count_bytes))}
