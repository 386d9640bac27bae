"""PCI functions with their drivers and IOMMU groups, as the kernel shows them in /sys. Nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from dracaena.api.passthrough import NVIDIA_VENDOR_ID, hexadecimal_id
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.files import (
    DRIVER_NAME,
    IOMMU_GROUP,
    UnreadableSysfsError,
    is_there,
    link,
    matched,
    names,
    text,
)
from dracaena.kubelet_plugin.discovery.vm.passthrough import IommuGroup, PciBus, PciFunction, RefusedGpu, members_of

_ID: Final = re.compile(r"0x([0-9a-f]{4})", re.ASCII)
_CLASS: Final = re.compile(r"0x([0-9a-f]{4})[0-9a-f]{2}", re.ASCII)
_COUNT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


class SysfsPci:
    """Reads below `root`, normally /sys. Cost: one small file for each function of the bus, some ten for each GPU."""

    def __init__(self, root: str = "/sys") -> None:
        self._devices = f"{root}/bus/pci/devices"
        self._groups = f"{root}/kernel/iommu_groups"

    def read(self) -> PciBus:
        """Return NVIDIA's GPUs and what shares an IOMMU group with them.

        A GPU that disappears meanwhile is left out. One that cannot be fully understood is listed as unreadable, and
        what shares a group with it counts as unknown, so callers can use neither.
        """
        functions: dict[PciAddress, PciFunction] = {}
        unreadable: list[RefusedGpu] = []
        for address in self._gpus():
            self._add(address, functions, unreadable)
        numbers = sorted({one.iommu_group for one in functions.values() if one.iommu_group is not None})
        groups = {number: self._group(number) for number in numbers}
        for address in members_of(groups.values()):
            if address not in functions:
                self._add(address, functions, [])
        return PciBus(functions, groups, tuple(sorted(unreadable)))

    def _add(self, address: PciAddress, found: dict[PciAddress, PciFunction], unreadable: list[RefusedGpu]) -> None:
        try:
            function = self._function(address)
        except UnreadableSysfsError as error:
            if is_there(f"{self._devices}/{address}"):
                unreadable.append(RefusedGpu(str(address), str(error)))
            return
        found[address] = function

    def _gpus(self) -> Iterator[PciAddress]:
        """Return the functions that may be physical GPUs: NVIDIA's displays, and those without a readable class."""
        for name in names(self._devices):
            address = PciAddress.parse(name)
            if address is None or str(address) != name:
                continue
            folder = f"{self._devices}/{name}"
            if text(f"{folder}/vendor") != hexadecimal_id(NVIDIA_VENDOR_ID):
                continue
            display = text(f"{folder}/class")
            if display is None or display.startswith("0x03") or not _CLASS.fullmatch(display):
                yield address

    def _function(self, address: PciAddress) -> PciFunction:
        folder = f"{self._devices}/{address}"
        return PciFunction(
            address=address,
            vendor_id=_number(f"{folder}/vendor", _ID, "0x and 4 hex digits"),
            device_id=_number(f"{folder}/device", _ID, "0x and 4 hex digits"),
            pci_class=_number(f"{folder}/class", _CLASS, "0x and 6 hex digits"),
            driver=link(f"{folder}/driver", DRIVER_NAME, "the name of a driver"),
            iommu_group=_whole(link(f"{folder}/iommu_group", IOMMU_GROUP, "the number of a group")),
            is_virtual=os.path.lexists(f"{folder}/physfn"),
            virtual_functions=_count(f"{folder}/sriov_numvfs"),
            has_console=text(f"{folder}/boot_vga") == "1",
        )

    def _group(self, number: int) -> IommuGroup:
        folder = f"{self._groups}/{number}"
        return IommuGroup(tuple(sorted(names(f"{folder}/devices"))), text(f"{folder}/name") or None)


def _number(file: str, form: re.Pattern[str], expected: str) -> int:
    return int(matched(file, form, expected)[1], 16)


def _count(file: str) -> int:
    """Return a number that not every device has, 0 if it is missing. Raises UnreadableSysfsError."""
    return 0 if text(file) is None else int(matched(file, _COUNT, "a number")[0])


def _whole(number: str | None) -> int | None:
    return None if number is None else int(number)
