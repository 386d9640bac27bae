"""A GPU that is bound to VFIO for a pod of the real kubelet, and is the NVIDIA driver's again when the pod has gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dracaena.api.names import gpu_device_name
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS
from e2e.cluster import Cluster
from e2e.fake_kernel import GROUP, plugin_on, vfio_nodes, wait_published
from e2e.gpu_pods import seen_inside, wait_free
from e2e.installation import DRIVER
from e2e.plugin_of_fake_kernel import ADDRESS, LAST, MACHINE
from e2e.pods import Pod, create_pod, create_template, delete_pod, pod_claims
from support.fake_nvml_values import gpu_address
from support.fake_pci import AUDIO_CLASS, NVIDIA, FakePciBus
from support.fake_sysfs import write_machine
from support.gpu_driver_root import put, put_gpu_driver
from support.gpu_lists import flag

WHOLE: Final = tuple(gpu_device_name(gpu.uuid) for gpu in MACHINE.gpus)
VFIO: Final = passthrough_device_name(ADDRESS)
SOUND: Final = f"{ADDRESS[:-1]}1"
SOUND_DRIVER: Final = "snd_hda_intel"


@dataclass(frozen=True, slots=True)
class HandedNode:
    """A node whose last GPU, and the sound card in its IOMMU group, go to virtual machines."""

    cluster: Cluster
    bus: FakePciBus

    def drivers(self) -> tuple[str | None, str | None]:
        """Return what the kernel shows as drivers of the two."""
        return self.bus.driver_of(ADDRESS), self.bus.driver_of(SOUND)


@pytest.fixture
def node(installed: Cluster, tmp_path: Path) -> Iterator[HandedNode]:
    sys, driver = tmp_path / "sys", tmp_path / "driver"
    write_machine(sys, MACHINE)
    bus = FakePciBus(sys)
    for ordinal in range(len(MACHINE.gpus)):
        bus.adopt(str(gpu_address(MACHINE, ordinal)), GROUP if ordinal == LAST else 20 + ordinal)
    bus.add(SOUND, GROUP, driver=SOUND_DRIVER, ids=(NVIDIA, 0x22BA), pci_class=AUDIO_CLASS)
    bus.load("vfio_pci")
    put_gpu_driver(driver)
    put(driver, "usr/bin/nvidia-cdi-hook", " ".join(COMMANDS).encode()).chmod(0o755)
    options = (flag("passthrough", f"'{ADDRESS}'"), f"--driver-root={driver}")
    with (
        vfio_nodes(),
        plugin_on(bus, installed, "vfio-on-demand", *options, main="e2e.plugin_of_fake_kernel"),
    ):
        installed.installation.wait_ready()
        wait_published(installed, *WHOLE, VFIO)
        yield HandedNode(installed, bus)


def test_a_gpu_is_bound_while_a_pod_has_it_and_nobody_else_is_offered_it(node: HandedNode) -> None:
    api = node.cluster.api
    exactly = {"deviceClassName": f"vfio.{DRIVER}"}
    template = create_template(api, "on-demand", {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}})
    assert node.drivers() == ("nvidia", SOUND_DRIVER)
    pod = Pod("launcher", templates={"gpu": "on-demand"})
    create_pod(api, pod)
    seen = seen_inside(api, pod)
    assert set(seen.nodes) == {"/dev/vfio/vfio", f"/dev/vfio/{GROUP}"}
    assert [address for name, address in seen.environment.items() if "PCI_RESOURCE" in name] == [ADDRESS]
    assert node.drivers() == ("vfio-pci", "vfio-pci")
    wait_published(node.cluster, *WHOLE[:LAST], VFIO)
    (claim,) = pod_claims(api, pod).values()
    delete_pod(api, pod)
    wait_free(node.cluster, claim)
    assert node.drivers() == ("nvidia", SOUND_DRIVER)
    wait_published(node.cluster, *WHOLE, VFIO)
    api.delete(template)
