"""GPUs of the vGPU manager as /sys shows them: on which functions vGPUs can be made, of which types, and which exist.
Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.api.vgpu import vgpu_type
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.files import is_folder, is_there, names, text
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import MDEV_TYPE, MOST_TYPES_BYTES, NO_TYPE, SysfsVgpu
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OfferedType, VgpuFunction, VgpuGpu, VgpuOnGpu
from dracaena.kubelet_plugin.discovery.vm.vgpus import TypesOfGpus, VgpuBus, VgpuTypeFacts, creatable_types

_HEXADECIMAL: Final = re.compile(r"0x([0-9a-f]{4})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_MOST: Final = re.compile(r"(?:^|[ ,])max_instance=([1-9][0-9]{0,5})(?:$|[ ,])", re.ASCII)
"""In the description of a type of mediated devices."""

_Types = dict[str, OfferedType]


class SysfsVgpuGpus:
    """Reads below `root`, normally /sys. Cost: as SysfsVgpu, and three small files for each type of each function."""

    def __init__(self, root: str = "/sys") -> None:
        self._vgpus = SysfsVgpu(root)
        self._pci = f"{root}/bus/pci/devices"

    def read(self, told: TypesOfGpus) -> tuple[VgpuGpu, ...]:
        """Return all of NVIDIA's physical GPUs, by address. `told` are the types that the driver reported by number.

        Raises TemporaryError if a vGPU cannot be understood: it may be on any of them.
        """
        seen = dict(self._vgpus.functions())
        bus = self._vgpus.read(seen)
        if bus.unreadable:
            raise TemporaryError(f"vGPU {bus.unreadable[0].address} cannot be understood: {bus.unreadable[0].reason}")
        functions: dict[PciAddress, list[PciAddress]] = {}
        for name, gpu in seen.items():
            address = PciAddress.parse(name)
            if address is not None:
                functions.setdefault(gpu, []).append(address)
        there = sorted(gpu for gpu, found in functions.items() if gpu in found)
        return tuple(
            self._gpu(gpu, index, sorted(functions[gpu]), bus, told.get(gpu, {})) for index, gpu in enumerate(there)
        )

    def _gpu(
        self,
        gpu: PciAddress,
        index: int,
        functions: Sequence[PciAddress],
        bus: VgpuBus,
        told: Mapping[str, VgpuTypeFacts],
    ) -> VgpuGpu:
        types: _Types = {}
        found = [each for address in functions for each in self._function(str(address), types)]
        vgpus = tuple(
            VgpuOnGpu(each.identity, each.type_id, each.iommu_group) for each in bus.vgpus if each.parent == gpu
        )
        by_number = any(each.has_type_file for each in found)
        for number, facts in sorted({**bus.types.get(gpu, {}), **told}.items()) if by_number else ():
            _offer(types, facts.name, OfferedType(number, facts.most))
        return VgpuGpu(
            str(gpu),
            index,
            self._device_id(str(gpu)),
            tuple(found),
            tuple(sorted(vgpus, key=lambda each: each.identity)),
            types,
            knows_all_types=not by_number or bool(told) or not vgpus,
        )

    def _function(self, name: str, types: _Types) -> Iterator[VgpuFunction]:
        """Yield a function if vGPUs can be made on it, and record the types of mediated devices."""
        folder = f"{self._pci}/{name}"
        if is_folder(f"{folder}/mdev_supported_types"):
            yield VgpuFunction(name, dict(self._mediated_types(f"{folder}/mdev_supported_types", types)))
        elif is_there(f"{folder}/nvidia/creatable_vgpu_types"):
            free = text(f"{folder}/nvidia/current_vgpu_type") == NO_TYPE
            listed = text(f"{folder}/nvidia/creatable_vgpu_types", MOST_TYPES_BYTES) if free else None
            yield VgpuFunction(name, dict.fromkeys(creatable_types(listed or ""), 1), has_type_file=True)

    def _mediated_types(self, folder: str, types: _Types) -> Iterator[tuple[str, int]]:
        """Yield for each type how many more can be made."""
        for type_id in filter(MDEV_TYPE.fullmatch, names(folder)):
            most = _MOST.search(text(f"{folder}/{type_id}/description") or "")
            called = text(f"{folder}/{type_id}/name") or ""
            _offer(types, called, OfferedType(type_id, None if most is None else int(most[1])))
            available = text(f"{folder}/{type_id}/available_instances") or ""
            yield type_id, int(available) if _NUMBER.fullmatch(available) else 0

    def _device_id(self, name: str) -> int:
        """Return the PCI ID, the device in the upper half; 0 if sysfs does not have it."""
        found = [_HEXADECIMAL.fullmatch(text(f"{self._pci}/{name}/{file}") or "") for file in ("device", "vendor")]
        device, vendor = found
        return 0 if device is None or vendor is None else int(device[1], 16) << 16 | int(vendor[1], 16)


def _offer(types: _Types, called: str, offered: OfferedType) -> None:
    """Record a type; one without a valid name could not be in a file, and of two with one name the first counts."""
    read = vgpu_type(called)
    if read is not None:
        types.setdefault(read.short_name, offered)
