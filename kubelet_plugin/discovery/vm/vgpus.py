"""Which vGPUs of a node can be given to virtual machines, and why others that seem to qualify cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.vgpu import Vgpu, is_mdev_uuid, vgpu_type
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.vm.passthrough import NO_IOMMU, IommuGroup, RefusedGpu

_FRAMEBUFFER: Final = re.compile(r"(?:^|[ ,])framebuffer=([1-9][0-9]{0,7})M(?:$|[ ,])", re.ASCII)
"""In the description of a type of mediated devices: mebibytes."""
_CREATABLE: Final = re.compile(r"\s*([1-9][0-9]{0,9})\s*:\s*(\S(?:.*\S)?)\s*", re.ASCII)
"""A line of creatable_vgpu_types: `1428 : NVIDIA H200X-141C`. A header precedes them."""
_MIB: Final = 1 << 20
_MDEV_DRIVERS: Final = frozenset({"vfio_mdev", "nvidia-vgpu-vfio"})
"""Drivers of NVIDIA's mediated devices: the kernel's module up to Linux 5.15, the vGPU manager's since then."""
_GPU_DRIVER: Final = "nvidia"
"""Driver of virtual functions that vfio-pci does not have: NVIDIA's driver then is the VFIO driver for them."""


@dataclass(frozen=True, slots=True)
class VgpuFacts:
    """What sysfs says about one vGPU."""

    identity: str
    """UUID, or the PCI address of a virtual function."""
    parent: PciAddress
    """The physical GPU."""
    type_id: str
    type_name: str | None = None
    """Name of a mediated device's type; a virtual function has only the number."""
    description: str | None = None
    """Of the type of a mediated device."""
    driver: str | None = None
    iommu_group: int | None = None


@dataclass(frozen=True, slots=True)
class VgpuTypeFacts:
    """What is known of a type by its number."""

    name: str
    framebuffer_bytes: int | None = None
    most: int | None = None
    """How many of it a GPU has room for if nothing else is on it."""


TypesOfGpus = Mapping[PciAddress, Mapping[str, VgpuTypeFacts]]
"""Physical GPU → number of a type, in decimal → the type. A number means one type on one GPU."""


@dataclass(frozen=True, slots=True)
class VgpuBus:
    """What sysfs says about all vGPUs of a node."""

    vgpus: tuple[VgpuFacts, ...] = ()
    groups: Mapping[int, IommuGroup] = field(default_factory=dict)
    types: TypesOfGpus = field(default_factory=dict)
    """Types by the lists of what can be made now, which leave out types without room."""
    parents: frozenset[PciAddress] = frozenset()
    """Physical GPUs that the vGPU manager offers types on, whether or not there are vGPUs of them."""
    unreadable: tuple[RefusedGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class ExistingVgpus:
    """What a node has for virtual machines."""

    vgpus: tuple[Vgpu, ...] = ()
    """By GPU, then by identity."""
    refused: tuple[RefusedGpu, ...] = ()
    """By identity."""
    parents: frozenset[PciAddress] = frozenset()
    """GPUs that the vGPU manager has."""


def gpus_with_numbered_types(bus: VgpuBus) -> tuple[PciAddress, ...]:
    """Return the GPUs whose types sysfs knows by number, sorted. The driver knows their names, sizes and maximum
    counts; the lists in sysfs only have names, and only while there is room for another one.
    """
    return tuple(sorted({one.parent for one in bus.vgpus if one.type_name is None}.union(bus.types)))


def existing_vgpus(bus: VgpuBus, told: TypesOfGpus | None = None) -> ExistingVgpus:
    """Return the vGPUs that can be given to virtual machines, and those that cannot, with the reason.

    `told` are the types that the driver reported, which take precedence over those that sysfs lists.
    """
    vgpus, refused = [], list(bus.unreadable)
    twice = {identity for identity, count in Counter(one.identity for one in bus.vgpus).items() if count > 1}
    for facts in sorted(bus.vgpus, key=lambda one: (one.parent, one.identity)):
        found = _vgpu(facts, bus, told or {})
        if facts.identity in twice:
            found = "sysfs shows two of them under this name"
        if isinstance(found, Vgpu):
            vgpus.append(found)
        else:
            refused.append(RefusedGpu(facts.identity, found))
    return ExistingVgpus(tuple(vgpus), tuple(sorted(set(refused))), bus.parents)


def creatable_types(text: str) -> Mapping[str, str]:
    """Return number → name of the types in a creatable_vgpu_types. Lines of another form are ignored."""
    lines = map(_CREATABLE.fullmatch, text.splitlines())
    return {match[1]: match[2] for match in lines if match is not None}


def _vgpu(facts: VgpuFacts, bus: VgpuBus, told: TypesOfGpus) -> Vgpu | str:
    """Return a vGPU, or why it is refused."""
    reason = _why_refused(facts, bus)
    if reason is not None:
        return reason
    known = _type_of(facts, bus, told)
    if known is None:
        return (
            f"its type {facts.type_id} has no name: no virtual function of GPU {facts.parent} has room for another one "
            "of it, and the NVIDIA driver does not tell either"
        )
    read = vgpu_type(known.name)
    if read is None:
        return f"its type {facts.type_id} is called {known.name[:80]!r}, expected a name as `NVIDIA A100-40C`"
    assert facts.iommu_group is not None
    size = read.framebuffer_bytes if known.framebuffer_bytes is None else known.framebuffer_bytes
    return Vgpu(
        identity=facts.identity,
        parent=str(facts.parent),
        type_id=facts.type_id,
        type_name=known.name,
        iommu_group=facts.iommu_group,
        framebuffer_bytes=size,
    )


def _type_of(facts: VgpuFacts, bus: VgpuBus, told: TypesOfGpus) -> VgpuTypeFacts | None:
    if facts.type_name is not None:
        match = _FRAMEBUFFER.search(facts.description or "")
        return VgpuTypeFacts(facts.type_name, None if match is None else int(match[1]) * _MIB)
    # The driver first, even if sysfs lists it: what is published must not change when the last place is taken.
    return _known(facts, told) or _known(facts, bus.types)


def _known(facts: VgpuFacts, types: TypesOfGpus) -> VgpuTypeFacts | None:
    return types.get(facts.parent, {}).get(facts.type_id)


def _why_refused(facts: VgpuFacts, bus: VgpuBus) -> str | None:
    is_mediated = is_mdev_uuid(facts.identity)
    function = None if is_mediated else PciAddress.parse(facts.identity)
    if not facts.parent.is_short or (function is not None and not function.is_short):
        return "the PCI domain, its own or its GPU's, has more than 16 bits, which pciBusID has no form for"
    expected = _MDEV_DRIVERS if is_mediated else {_GPU_DRIVER}
    if facts.driver not in expected:
        had = f"driver {facts.driver}" if facts.driver else "no driver"
        return f"it has {had}, expected {' or '.join(sorted(expected))}: nobody could open it"
    group = None if facts.iommu_group is None else bus.groups.get(facts.iommu_group)
    if group is None:
        return "it is in no IOMMU group: turn the IOMMU on in the firmware and for the kernel (intel_iommu=on on Intel)"
    # The kernel also gives this name to groups of mediated devices, whose pages are pinned by the GPU's driver.
    if group.name == NO_IOMMU and not is_mediated:
        return (
            f"IOMMU group {facts.iommu_group} is one of VFIO without an IOMMU: its virtual machine could write to all "
            "of the host's memory; turn the IOMMU on, and enable_unsafe_noiommu_mode of module vfio off"
        )
    if facts.identity not in group.members:
        return f"IOMMU group {facts.iommu_group} does not list it: sysfs was read while the group changed"
    others = [member[:80] for member in group.members if member != facts.identity]
    if others:
        return (
            f"IOMMU group {facts.iommu_group} also holds {', '.join(map(repr, others[:3]))}, and whoever gets the "
            "group gets all of it: turn on ACS in the firmware"
        )
    return None
