"""A GPU for virtual machines on the real kubelet and containerd: what the container of a launcher gets.

The plugin sees a /sys and a /proc/devices of the test, in a mount namespace of its own: a kernel that has bound the
node's only GPU to vfio-pci. Everything else is real; its device nodes are those of a driver that is not there.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import seen_inside, traces, wait_free
from e2e.gpus import GPU_COUNT, MAJOR
from e2e.installation import DRIVER
from e2e.pods import Pod, create_pod, create_template, delete_pod, pod_claims
from e2e.waiting import eventually
from support.fake_pci import FakePciBus

ADDRESS, GROUP = "0000:e1:00.0", 7
DEVICE = "vfio-0000-e1-00-0"
VFIO_MINOR = 196
"""Of /dev/vfio/vfio (miscdevice.h)."""
VFIO = Path("/dev/vfio")
PROC_DEVICES = f"Character devices:\n {MAJOR} misc\n {MAJOR} vfio\n\nBlock devices:\n"

PUBLISH_S = 60.0

SEES_ANOTHER_KERNEL = """\
mount --rbind /sys/fs/cgroup "$1/fs/cgroup" && mount --rbind "$1" /sys && mount --bind "$2" /proc/devices || exit 1
shift 2
exec "$@"
"""


@pytest.fixture
def vfio_nodes() -> Iterator[None]:
    """Make the nodes of VFIO and of the group, which opening answers with ENXIO, in a folder that only this run sees.

    It is mounted on a folder of the machine's /dev, which is removed where it was not there before.
    """
    was_there = VFIO.exists()
    VFIO.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", VFIO], check=True)
    try:
        for name, minor in (("vfio", VFIO_MINOR), (str(GROUP), GROUP)):
            os.mknod(VFIO / name, 0o666 | stat.S_IFCHR, os.makedev(MAJOR, minor))
        yield
    finally:
        subprocess.run(["umount", VFIO], check=True)
        if not was_there:
            VFIO.rmdir()


@pytest.fixture
def with_vfio(installed: Cluster, vfio_nodes: None, tmp_path: Path) -> Iterator[Cluster]:
    """Give the cluster with a node whose only GPU has a VFIO driver, and none of NVIDIA."""
    sys, proc_devices, root = tmp_path / "sys", tmp_path / "devices", tmp_path / "no-driver"
    FakePciBus(sys).add(ADDRESS, GROUP, driver="vfio-pci", bridges=("pci0000:e0", "0000:e0:01.0"))
    (sys / "fs" / "cgroup").mkdir(parents=True)
    proc_devices.write_text(PROC_DEVICES, encoding="ascii")
    root.mkdir()
    installation = installed.installation
    within = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", SEES_ANOTHER_KERNEL, "sh", sys, proc_devices)
    plugin = installation.plugin_of_another_machine("vfio", within, "--passthrough=existing", f"--driver-root={root}")
    installation.plugin.stop()
    try:
        plugin.start()
        eventually(lambda: published(installed) == [DEVICE], "the GPU is published", within_s=PUBLISH_S)
        yield installed
    finally:
        plugin.stop()
        installation.plugin.start()
        installation.wait_ready()
        eventually(lambda: len(published(installed)) == GPU_COUNT, "the GPUs of before are back", within_s=PUBLISH_S)


def published(cluster: Cluster) -> list[str]:
    return [device["name"] for device in cluster.installation.devices()]


def test_a_launcher_gets_the_nodes_of_vfio_and_the_variable_that_names_its_gpu(with_vfio: Cluster) -> None:
    api = with_vfio.api
    exactly = {"deviceClassName": f"vfio.{DRIVER}"}
    template = create_template(api, "machine", {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})
    pod = Pod("launcher", templates={"gpu": "machine"})
    create_pod(api, pod)
    seen = seen_inside(api, pod)
    assert set(seen.nodes) == {"/dev/vfio/vfio", f"/dev/vfio/{GROUP}"}
    assert seen.usable == {GROUP}, "the kernel lets it open its group, and no other"
    assert seen.environment["PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3"] == ADDRESS
    assert seen.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert seen.libraries == {}, "the guest brings its own driver"
    (claim,) = pod_claims(api, pod).values()
    assert traces(with_vfio, claim["metadata"]["uid"])
    delete_pod(api, pod)
    wait_free(with_vfio, claim)
    api.delete(template)
