"""vGPUs as the kernel and NVIDIA's vGPU manager show them in /sys. Nothing is written.

There are two forms. Up to Ampere, and on older kernels, a vGPU is a mediated device (mdev): a UUID below
/sys/bus/mdev/devices, whose parent is the GPU, or a virtual function of it. Since vGPU 17, on Linux 6.8 and Ada or
later, it is a virtual function with a type in its nvidia/current_vgpu_type, where 0 means none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dracaena.api.passthrough import NVIDIA_VENDOR_ID, hexadecimal_id
from dracaena.api.vgpu import is_mdev_uuid
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.files import (
    DRIVER_NAME,
    IOMMU_GROUP,
    UnreadableSysfsError,
    is_folder,
    is_there,
    last_part,
    link,
    matched,
    names,
    text,
)
from dracaena.kubelet_plugin.discovery.vm.passthrough import IommuGroup, RefusedGpu
from dracaena.kubelet_plugin.discovery.vm.vgpus import VgpuBus, VgpuFacts, VgpuTypeFacts, creatable_types

MOST_TYPES_BYTES: Final = 65_536
"""Longest list of types that is read: the largest page size, since an attribute of sysfs holds at most a page."""

MDEV_TYPE: Final = re.compile(r"nvidia-[0-9]{1,10}", re.ASCII)
_CURRENT: Final = re.compile(r"(0|[1-9][0-9]{0,9})", re.ASCII)
_NAME: Final = re.compile(r"([ -~]{1,80})", re.ASCII)
NO_TYPE: Final = "0"
_DISPLAYS: Final = ("0x0300", "0x0302")
"""VGA and 3D controllers, including virtual functions."""

Read = Callable[[], VgpuFacts | None]
"""Reads one candidate. Raises UnreadableSysfsError."""


class SysfsVgpu:
    """Reads below `root`, normally /sys. Cost: one small file for each function of the bus, some five for each virtual
    function of NVIDIA's and for each mediated device.
    """

    def __init__(self, root: str = "/sys") -> None:
        self._pci = f"{root}/bus/pci/devices"
        self._mdevs = Path(root) / "bus/mdev/devices"
        self._groups = Path(root) / "kernel/iommu_groups"

    def read(self, functions: Mapping[str, PciAddress] | None = None) -> VgpuBus:
        """Return all vGPUs of NVIDIA's GPUs, or of these functions(). One that disappears meanwhile is left out; one
        that cannot be fully understood is listed as unreadable.
        """
        gpus = dict(self.functions()) if functions is None else functions
        found: list[VgpuFacts] = []
        unreadable: list[RefusedGpu] = []
        for folder, read in (*self._candidates(gpus), *self._mediated_candidates(gpus)):
            try:
                facts = read()
            except UnreadableSysfsError as error:
                if folder.exists():
                    unreadable.append(RefusedGpu(folder.name, str(error)))
                continue
            if facts is not None:
                found.append(facts)
        return VgpuBus(
            vgpus=tuple(found),
            groups={number: self._group(number) for number in _group_numbers(found)},
            types=self._types(gpus),
            parents=frozenset(gpu for name, gpu in gpus.items() if self._offers_types(name)),
            unreadable=tuple(sorted(unreadable)),
        )

    def functions(self) -> Iterator[tuple[str, PciAddress]]:
        """Yield NVIDIA's GPUs and their virtual functions by name, each with the address of the physical GPU."""
        for name in names(self._pci):
            address = PciAddress.parse(name)
            folder = f"{self._pci}/{name}"
            if address is None or str(address) != name or text(f"{folder}/vendor") != hexadecimal_id(NVIDIA_VENDOR_ID):
                continue
            if not (text(f"{folder}/class") or "").startswith(_DISPLAYS):
                continue
            physical = _last_part(f"{folder}/physfn")
            gpu = address if physical is None else PciAddress.parse(physical)
            if gpu is not None:
                yield name, gpu

    def _offers_types(self, name: str) -> bool:
        folder = f"{self._pci}/{name}"
        return is_folder(f"{folder}/mdev_supported_types") or is_there(f"{folder}/nvidia/creatable_vgpu_types")

    def _types(self, gpus: Mapping[str, PciAddress]) -> Mapping[PciAddress, Mapping[str, VgpuTypeFacts]]:
        """Return the types that the functions of each GPU list. A function that has a type lists few or none."""
        types: dict[PciAddress, dict[str, VgpuTypeFacts]] = {}
        for name, gpu in gpus.items():
            content = text(f"{self._pci}/{name}/nvidia/creatable_vgpu_types", MOST_TYPES_BYTES)
            for number, called in creatable_types(content or "").items():
                types.setdefault(gpu, {})[number] = VgpuTypeFacts(called)
        return types

    def _candidates(self, gpus: Mapping[str, PciAddress]) -> Iterator[tuple[Path, Read]]:
        for name, gpu in gpus.items():
            if name != str(gpu) and is_there(f"{self._pci}/{name}/nvidia/current_vgpu_type"):
                folder = Path(self._pci, name)
                yield folder, partial(_virtual_function, folder, gpu)

    def _mediated_candidates(self, gpus: Mapping[str, PciAddress]) -> Iterator[tuple[Path, Read]]:
        for name in filter(is_mdev_uuid, names(self._mdevs)):
            # /sys/devices/…/<function of the GPU>/<UUID>. Other vendors have mediated devices too.
            gpu = gpus.get(Path(os.path.realpath(self._mdevs / name)).parent.name)
            if gpu is not None:
                yield self._mdevs / name, partial(_mediated_device, self._mdevs / name, gpu)

    def _group(self, number: int) -> IommuGroup:
        folder = self._groups / str(number)
        return IommuGroup(tuple(sorted(names(folder / "devices"))), text(folder / "name") or None)


def _virtual_function(folder: Path, gpu: PciAddress) -> VgpuFacts | None:
    """Return the vGPU of a virtual function, None if it has no type."""
    type_id = matched(folder / "nvidia/current_vgpu_type", _CURRENT, "the number of a type, or 0")[1]
    if type_id == NO_TYPE:
        return None
    return VgpuFacts(folder.name, gpu, type_id, driver=_driver(folder), iommu_group=_iommu_group(folder))


def _mediated_device(folder: Path, gpu: PciAddress) -> VgpuFacts:
    type_id = link(folder / "mdev_type", MDEV_TYPE, "nvidia-<number>")
    if type_id is None:
        raise UnreadableSysfsError(f"{folder / 'mdev_type'} is missing, expected a link to nvidia-<number>")
    return VgpuFacts(
        folder.name,
        gpu,
        type_id,
        type_name=matched(folder / "mdev_type/name", _NAME, "the name of a type")[1],
        description=text(folder / "mdev_type/description"),
        driver=_driver(folder),
        iommu_group=_iommu_group(folder),
    )


def _driver(folder: Path) -> str | None:
    return link(folder / "driver", DRIVER_NAME, "the name of a driver")


def _iommu_group(folder: Path) -> int | None:
    number = link(folder / "iommu_group", IOMMU_GROUP, "the number of a group")
    return None if number is None else int(number)


def _group_numbers(vgpus: Sequence[VgpuFacts]) -> list[int]:
    return sorted({one.iommu_group for one in vgpus if one.iommu_group is not None})


def _last_part(path: str) -> str | None:
    try:
        return last_part(os.readlink(path))  # noqa: PTH115 - a Path costs four times as much
    except OSError:
        return None
