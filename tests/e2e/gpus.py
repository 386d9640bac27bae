"""Stand-ins for what an NVIDIA driver puts on a host: device nodes that no driver answers, and library files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.adapters.recorded.mig import access_minors
from support.elf import library

RECORDING = Path(__file__).parents[2] / "kubelet_plugin" / "machines" / "dgx-1v.json"
"""The recorded machine that the node plays. Its GPUs are linked unequally, so a careless choice shows."""

DRIVER_VERSION = "535.104.05"
"""A real driver's version that is not SemVer: the API server would refuse it as it is."""

GPU_COUNT = 8
MOST_SLICES = 7
"""MIG devices that a GPU can have at once."""

MAJOR = 60
"""LOCAL/EXPERIMENTAL USE (Linux, Documentation/admin-guide/devices.txt): no driver owns it, opening gives ENXIO."""

CONTROL_MINORS = {"nvidiactl": 13, "nvidia-uvm": 14, "nvidia-uvm-tools": 15}
"""Above those of the GPUs, below what the probe tries."""

LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = {
    f"libcuda.so.{DRIVER_VERSION}": ("libcuda.so.1", "libcuda.so"),
    f"libnvidia-ml.so.{DRIVER_VERSION}": ("libnvidia-ml.so.1",),
}
"""File → further names by which programs open it, the first of them its SONAME."""


class StandInGpus:
    """A dev root and a driver root with all of it."""

    def __init__(self, root: Path) -> None:
        self.machine = root / "machine.json"
        self.dev_root = root / "dev-root"
        self.driver_root = root / "driver-root"

    def make(self) -> None:
        """Make the files. Minor N of the stand-in is GPU N of the recorded machine."""
        self._make_device_nodes()
        self._make_libraries()
        recording = json.loads(RECORDING.read_text(encoding="utf-8"))
        self.machine.write_text(json.dumps({**recording, "driver_version": DRIVER_VERSION}), encoding="utf-8")

    def make_capability_nodes(self, machine: Machine) -> None:
        """Make the nodes that open MIG devices: a driver tells their numbers, for each instance that there can be."""
        folder = self.dev_root / "dev" / "nvidia-caps"
        folder.mkdir(exist_ok=True)
        for gpu in machine.gpus:
            for instance in range(1, MOST_SLICES + 1):
                for number in access_minors(gpu.minor or 0, instance, 0):
                    path = folder / f"nvidia-cap{number}"
                    if not path.exists():
                        os.mknod(path, 0o444 | stat.S_IFCHR, os.makedev(MAJOR, number))

    def _make_device_nodes(self) -> None:
        folder = self.dev_root / "dev"
        folder.mkdir(parents=True)
        nodes = {f"nvidia{number}": number for number in range(GPU_COUNT)} | CONTROL_MINORS
        for name, minor in nodes.items():
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))

    def _make_libraries(self) -> None:
        libraries = self.driver_root / LIBRARY_FOLDER.lstrip("/")
        libraries.mkdir(parents=True)
        for name, (soname, *_) in LIBRARIES.items():
            # The last line is what the probe is looked at for.
            (libraries / name).write_bytes(library(soname) + f"\n{name}\n".encode())
            (libraries / soname).symlink_to(name)
