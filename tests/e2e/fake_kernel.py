"""The node's plugin on a kernel of the test: a /sys and a /proc/devices that it alone sees, in a mount namespace.

kubelet, containerd and the container are real. The device nodes of VFIO are those of a driver that is not there:
opening one gives ENXIO.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from e2e import isolation
from e2e.cluster import Cluster
from e2e.gpus import GPU_COUNT, MAJOR
from e2e.installation import MAIN
from e2e.waiting import eventually
from support.fake_pci import FakePciBus

GROUP: Final = 7
"""IOMMU group of the GPU, and minor of the group's node."""
VFIO_DEVICE: Final = 3
"""Number of the GPU's own node below /dev/vfio/devices, and its minor."""
IOMMU_MINOR: Final = 11
"""Of /dev/iommu, which the kernel numbers as it likes: one that the probe tries."""
VFIO_MINOR: Final = 196
"""Of /dev/vfio/vfio (miscdevice.h)."""

VFIO, IOMMU = Path("/dev/vfio"), Path("/dev/iommu")

PUBLISH_S: Final = 60.0
"""The plugin waits for more changes before it writes; well within a minute."""

_DRIVERS: Final = ("misc", "vfio", "vfio-dev", "nvidia")
_PROC_DEVICES = "".join(("Character devices:\n", *(f" {MAJOR} {name}\n" for name in _DRIVERS), "\nBlock devices:\n"))

_SEES_ANOTHER_KERNEL = """\
mount --rbind /sys/fs/cgroup "$1/fs/cgroup" && mount --rbind "$1" /sys && mount --bind "$2" /proc/devices || exit 1
shift 2
exec "$@"
"""


@contextmanager
def vfio_nodes() -> Iterator[None]:
    """Make the nodes of VFIO, of the group, of iommufd and of the GPU by itself, where only this run sees them.

    They are mounted over a folder and a file of the machine's /dev, which are removed where they were not there before.
    """
    had_vfio, had_iommu = VFIO.exists(), IOMMU.exists()
    VFIO.mkdir(exist_ok=True)
    IOMMU.touch()
    try:
        with _mounted(VFIO, "-t", "tmpfs", "tmpfs"):
            (VFIO / "devices").mkdir()
            of_iommu = isolation.ROOT / "iommu"
            of_iommu.unlink(missing_ok=True)
            nodes = {VFIO / "vfio": VFIO_MINOR, VFIO / str(GROUP): GROUP, of_iommu: IOMMU_MINOR}
            nodes[VFIO / "devices" / f"vfio{VFIO_DEVICE}"] = VFIO_DEVICE
            for path, minor in nodes.items():
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))
            with _mounted(IOMMU, "--bind", of_iommu):
                yield
    finally:
        if not had_vfio:
            VFIO.rmdir()
        if not had_iommu:
            IOMMU.unlink()


@contextmanager
def plugin_on(bus: FakePciBus, cluster: Cluster, name: str, *options: str | Path, main: str = MAIN) -> Iterator[None]:
    """Run the plugin on this kernel in the place of the node's own, which is back after it. `name`: of its log; `main`:
    the module that is run."""
    installation = cluster.installation
    (bus.root / "fs" / "cgroup").mkdir(parents=True)
    proc_devices = bus.root.with_name("proc-devices")
    proc_devices.write_text(_PROC_DEVICES, encoding="ascii")
    shell = ("sh", "-c", _SEES_ANOTHER_KERNEL, "sh", bus.root, proc_devices)
    within = ("unshare", "--mount", "--propagation", "slave", *shell)
    plugin = installation.plugin_of_another_machine(name, within, *options, main=main)
    installation.plugin.stop()
    try:
        plugin.start()
        yield
    finally:
        plugin.stop()
        installation.plugin.start()
        installation.wait_ready()
        eventually(lambda: len(published(cluster)) == GPU_COUNT, "the GPUs of before are back", within_s=PUBLISH_S)


def wait_published(cluster: Cluster, *names: str) -> None:
    """Wait until these devices are published, and no others."""
    eventually(lambda: published(cluster) == sorted(names), f"{len(names)} devices are published", within_s=PUBLISH_S)


def published(cluster: Cluster) -> list[str]:
    """Return the names of the node's devices."""
    return sorted(device["name"] for device in cluster.installation.devices())


@contextmanager
def _mounted(place: Path, *what: str | Path) -> Iterator[None]:
    subprocess.run(["mount", *what, place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)
