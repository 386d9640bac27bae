"""Which processes of this node have a GPU open, by /proc: the kernel waits for them when the GPU leaves its driver."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from dracaena.kubelet_plugin.discovery.passthrough import VFIO_DRIVER
from dracaena.kubelet_plugin.ports import OpeningProcess

_MINOR: Final = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.ASCII | re.MULTILINE)
_MAJOR: Final = re.compile(r"^ *([0-9]+) (\S+)$", re.ASCII | re.MULTILINE)
_NUMBERS: Final = re.compile(r"([0-9]+):([0-9]+)", re.ASCII)
_GPU_DRIVERS: Final = ("nvidia", "nvidia-frontend")
_NODES_IN_SYSFS: Final = ("drm/*/dev", "vfio-dev/*/dev", "sound/*/*/dev")
"""Below a function: its nodes of the display, of VFIO, and of the sound card that a GPU has as a second function."""
_DISPLAY: Final = "0x03"
_MOST_MINOR: Final = 253
"""Of a GPU's own node; 254 and 255 are nvidia-modeset and nvidiactl (nv.h)."""


class PciHolders:
    """Reads below `proc` and `sys`. It needs the process IDs of the host (hostPID) and the right to see what processes
    of others have open; a process that has just ended has nothing open.
    """

    def __init__(self, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc = Path(proc)
        self._sys = Path(sys)

    def holders(self, address: str, iommu_group: int | None) -> tuple[OpeningProcess, ...]:
        """Return who has a function of a GPU or its IOMMU group open, by process ID.

        Where the NVIDIA driver does not say which node is the GPU's, the nodes of all GPUs count: it may be any of
        them. What a process has only mapped is not seen. Cost: one look at each open file of the node.
        """
        numbers = {*self._gpu_nodes(address), *self._sysfs_nodes(address, iommu_group)}
        found = (self._holder(process, numbers) for process in self._processes())
        return tuple(sorted(holder for holder in found if holder is not None))

    def _gpu_nodes(self, address: str) -> Iterator[tuple[int, int]]:
        """Return the nodes of a GPU, unless a VFIO driver has it. One without a driver may be about to lose it."""
        device = self._sys / "bus/pci/devices" / address
        driver = (device / "driver").resolve().name
        if not _text(device / "class").startswith(_DISPLAY) or VFIO_DRIVER.fullmatch(driver) is not None:
            return
        majors = [int(major) for major, name in _MAJOR.findall(_text(self._proc / "devices")) if name in _GPU_DRIVERS]
        minor = _MINOR.search(_text(self._proc / "driver/nvidia/gpus" / address / "information"))
        minors = range(_MOST_MINOR + 1) if minor is None else (int(minor[1]),)
        yield from ((major, number) for major in majors for number in minors)

    def _sysfs_nodes(self, address: str, iommu_group: int | None) -> Iterator[tuple[int, int]]:
        device = self._sys / "bus/pci/devices" / address
        files = [file for form in _NODES_IN_SYSFS for file in device.glob(form)]
        if iommu_group is not None:
            files.append(self._sys / "class/vfio" / str(iommu_group) / "dev")
        for file in files:
            match = _NUMBERS.fullmatch(_text(file).strip())
            if match is not None:
                yield int(match[1]), int(match[2])

    def _processes(self) -> Iterator[Path]:
        try:
            yield from [entry for entry in self._proc.iterdir() if entry.name.isdecimal()]
        except OSError:
            return

    def _holder(self, process: Path, numbers: Collection[tuple[int, int]]) -> OpeningProcess | None:
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:
            return None
        for descriptor in descriptors:
            try:
                found = descriptor.stat()
            except OSError:
                continue
            if stat.S_ISCHR(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) in numbers:
                return OpeningProcess(int(process.name), _text(process / "comm").strip())
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
