"""Which processes of this node have a GPU open, by /proc: the kernel waits for them when the GPU leaves its driver.

To find out which device an open file is, its file system is queried, and one whose server is gone may never answer. So
a separate process looks at the open files, with a deadline.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.kernel.gpu_minors import MINOR_LINE
from dracaena.kubelet_plugin.adapters.programs.child_process import printed_by
from dracaena.kubelet_plugin.discovery.vm.passthrough import VFIO_DRIVER
from dracaena.kubelet_plugin.ports import OpeningProcess
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import GPU_DRIVERS

_MAJOR: Final = re.compile(r"^ *([0-9]+) (\S+)$", re.ASCII | re.MULTILINE)
_NUMBERS: Final = re.compile(r"([0-9]+):([0-9]+)", re.ASCII)
_NODES_IN_SYSFS: Final = ("drm/*/dev", "vfio-dev/*/dev", "sound/*/*/dev")
"""Below a function: its nodes of the display, of VFIO, and of the sound card that a GPU has as a second function."""
_DISPLAY: Final = "0x03"
_MOST_MINOR: Final = 253
"""Minors of GPUs' own nodes; 254 and 255 are nvidia-modeset and nvidiactl (nv.h)."""

LOOK_S: Final = 5.0
"""Longest look at all open files of a node: 100,000 of them take less than a second. kubelet allows a call 45 s."""

_CHILD: Final = """
import os, stat, sys
wanted = set(sys.argv[2:])
for process in filter(str.isdecimal, os.listdir(sys.argv[1])):
    folder = f"{sys.argv[1]}/{process}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:
        continue
    for descriptor in descriptors:
        try:
            found = os.stat(f"{folder}/{descriptor}")
        except OSError:
            continue
        if stat.S_ISCHR(found.st_mode) and f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}" in wanted:
            print(process)
            break
"""
"""Prints the IDs of processes that have any of the given nodes open."""


class PciHolders:
    """Reads below `proc` and `root`, normally /sys. Needs the process IDs of the host (hostPID) and the right to see
    the open files of other users' processes; a process that has just ended counts as having nothing open.
    """

    def __init__(self, proc: str = "/proc", root: str = "/sys", *, look_s: float = LOOK_S) -> None:
        self._proc = Path(proc)
        self._sys = Path(root)
        self._look_s = look_s

    def holders(self, address: str, iommu_group: int | None) -> tuple[OpeningProcess, ...]:
        """Return who has a function of a GPU or its IOMMU group open, by process ID.

        If the NVIDIA driver does not say which node is the GPU's, the nodes of all GPUs count. What a process has only
        mapped is not seen. Raises TemporaryError if the answer is not known in time. Cost: a process, and one look at
        each open file of the node.
        """
        device = self._sys / "bus/pci/devices" / address
        return self._processes({*self._gpu_nodes(address), *self._sysfs_nodes(device, iommu_group)})

    def vgpu_holders(self, vgpu: str, iommu_group: int | None) -> tuple[OpeningProcess, ...]:
        """Return who has a vGPU or its IOMMU group open; see holders(). `vgpu` is its folder below /sys."""
        return self._processes(set(self._sysfs_nodes(self._sys / vgpu, iommu_group)))

    def _processes(self, numbers: Collection[tuple[int, int]]) -> tuple[OpeningProcess, ...]:
        pids = sorted(self._who_opened(numbers)) if numbers else []
        return tuple(OpeningProcess(pid, _text(self._proc / str(pid) / "comm").strip()) for pid in pids)

    def _gpu_nodes(self, address: str) -> Iterator[tuple[int, int]]:
        """Return the nodes of a GPU, unless a VFIO driver has it. One without a driver may be about to lose it."""
        device = self._sys / "bus/pci/devices" / address
        driver = (device / "driver").resolve().name
        if not _text(device / "class").startswith(_DISPLAY) or VFIO_DRIVER.fullmatch(driver) is not None:
            return
        majors = [int(major) for major, name in _MAJOR.findall(_text(self._proc / "devices")) if name in GPU_DRIVERS]
        minor = MINOR_LINE.search(_text(self._proc / "driver/nvidia/gpus" / address / "information"))
        minors = range(_MOST_MINOR + 1) if minor is None else (int(minor[1]),)
        yield from ((major, number) for major in majors for number in minors)

    def _sysfs_nodes(self, device: Path, iommu_group: int | None) -> Iterator[tuple[int, int]]:
        files = [file for form in _NODES_IN_SYSFS for file in device.glob(form)]
        if iommu_group is not None:
            files.append(self._sys / "class/vfio" / str(iommu_group) / "dev")
        for file in files:
            match = _NUMBERS.fullmatch(_text(file).strip())
            if match is not None:
                yield int(match[1]), int(match[2])

    def _who_opened(self, numbers: Collection[tuple[int, int]]) -> Iterator[int]:
        words = [f"{major}:{minor}" for major, minor in sorted(numbers)]
        command = [sys.executable, "-I", "-S", "-c", _CHILD, str(self._proc), *words]
        try:
            printed, status = printed_by(command, self._look_s)
        except OSError as error:
            raise TemporaryError(
                f"cannot start a process that looks for who has a GPU open: {error.strerror}"
            ) from error
        except subprocess.TimeoutExpired:
            raise TemporaryError(
                f"it is not known who has a GPU open: scanning all open files of the node took more than "
                f"{self._look_s:g} s; look for a file system that does not answer (NFS, FUSE), and end what uses it"
            ) from None
        if status != 0:
            raise TemporaryError(f"it is not known who has a GPU open: the scan of {self._proc} failed")
        yield from map(int, printed.split())


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
