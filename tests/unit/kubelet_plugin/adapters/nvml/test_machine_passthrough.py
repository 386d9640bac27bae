"""GPUs that a VFIO driver has, read beside those of the NVIDIA driver and without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.links import Link, LinkLevel
from dracaena.api.topology import TopologyError
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.host.facts.health import Poll
from dracaena.host.facts.troubles import GpuDriverTroubleError, TroubleKind
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import GuestBuses, NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.build import reading_troubles
from support.fake_nvml import FakeNvml
from support.fake_pci import NETWORK_CLASS, FakePciBus
from support.fake_sysfs import write_machine

RECORDED = read_machine("a100-pcie-pairs-cross-numa")
FIRST, SECOND, THIRD = "0000:e1:00.0", "0000:e2:00.0", "0001:18:00.0"


def missing(reason: TroubleKind = TroubleKind.LIBRARY_MISSING) -> object:
    raise GpuDriverNotReadyError("waiting for the NVIDIA driver: no library", reason=reason)


def source_of(bus: FakePciBus, library: object = missing) -> NvmlMachine:
    root = str(bus.root)
    load = library if callable(library) else lambda: library
    return NvmlMachine("node", NvmlReader(NvmlLibrary(load)), Sysfs(root), guests=GuestBuses(SysfsPci(root)))


@pytest.fixture
def bus(tmp_path: Path) -> FakePciBus:
    """Two GPUs behind one switch on NUMA node 0, and one on a root of NUMA node 1."""
    made = FakePciBus(tmp_path)
    switch = ("pci0000:e0", "0000:e0:01.0", "0000:e0:02.0")
    made.add(FIRST, 1, driver="vfio-pci", bridges=(*switch, "0000:e0:03.0"))
    made.add(SECOND, 2, driver="vfio-pci", bridges=(*switch, "0000:e0:04.0"))
    made.add(THIRD, 3, driver="vfio-pci", bridges=("pci0001:10", "0001:10:01.0"), numa=1)
    return made


def test_where_vfio_has_all_gpus_no_driver_is_needed(bus: FakePciBus) -> None:
    source = source_of(bus)
    machine = source.read()
    assert machine.gpus == ()
    assert [(gpu.pci_bus_id, gpu.iommu_group, gpu.pcie_root) for gpu in machine.passthrough] == [
        (FIRST, 1, "pci0000:e0"),
        (SECOND, 2, "pci0000:e0"),
        (THIRD, 3, "pci0001:10"),
    ]
    assert machine.topology.numa_nodes == (0, 0, 1)
    assert machine.topology.pairs == (
        Link(LinkLevel.PIX, None),
        Link(LinkLevel.SYS, None),
        Link(LinkLevel.SYS, None),
    ), "NVLinks of GPUs that the NVIDIA driver does not have are unknown"
    assert (source.events(), source.poll()) == ((), Poll()), "no health is asked of a driver that is not there"


@pytest.mark.parametrize("driver", ["nvidia", None])
def test_a_gpu_that_needs_the_driver_is_waited_for(bus: FakePciBus, driver: str | None) -> None:
    bus.add("0000:f1:00.0", 9, driver=driver)
    with pytest.raises(GpuDriverTroubleError, match="waiting for the NVIDIA driver"):
        source_of(bus).read()


@pytest.mark.parametrize("reason", [TroubleKind.NOT_LOADED, TroubleKind.INIT_FAILED, TroubleKind.VERSION_MISMATCH])
def test_a_driver_that_has_no_gpu_may_fail_as_it_likes(bus: FakePciBus, reason: TroubleKind) -> None:
    assert len(source_of(bus, lambda: missing(reason)).read().passthrough) == 3


def test_a_driver_that_we_were_asked_to_let_go_of_is_waited_for(bus: FakePciBus) -> None:
    with pytest.raises(GpuDriverTroubleError):
        source_of(bus, lambda: missing(TroubleKind.RELEASED)).read()


def test_without_the_setting_such_gpus_are_not_looked_for(bus: FakePciBus) -> None:
    source = NvmlMachine("node", NvmlReader(NvmlLibrary(lambda: FakeNvml(RECORDED))), Sysfs(str(bus.root)))
    assert source.read().passthrough == ()


def test_they_come_after_the_gpus_of_the_driver_and_change_nothing_of_those(bus: FakePciBus) -> None:
    write_machine(bus.root, RECORDED)
    alone = NvmlMachine("node", NvmlReader(NvmlLibrary(lambda: FakeNvml(RECORDED))), Sysfs(str(bus.root))).read()
    both = source_of(bus, FakeNvml(RECORDED)).read()
    count = len(RECORDED.gpus)
    assert (both.gpus, both.mig_devices) == (alone.gpus, alone.mig_devices)
    assert [gpu.pci_bus_id for gpu in both.passthrough] == [FIRST, SECOND, THIRD]
    assert both.topology.numa_nodes == (*alone.topology.numa_nodes, 0, 0, 1)
    for a in range(count):
        for b in range(a + 1, count):
            assert both.topology.link(a, b) == alone.topology.link(a, b)
        for b in range(count, count + 3):
            assert both.topology.link(a, b).nvlinks == 0, "no program reaches both"
            assert both.topology.link(a, b).level in (LinkLevel.NODE, LinkLevel.SYS)


def test_a_gpu_that_both_drivers_show_is_a_contradiction(bus: FakePciBus) -> None:
    """It was moved between two looks; the next reading shows where it is."""
    write_machine(bus.root, RECORDED)
    address = next(gpu.pci_bus_id for gpu in source_of(bus, FakeNvml(RECORDED)).read().gpus)
    assert address is not None
    folder = bus.device(address)
    (folder / "device").write_text("0x20f1\n")
    (folder / "driver").unlink()
    bus.root.joinpath("kernel/iommu_groups/40/devices").mkdir(parents=True)
    bus.root.joinpath("kernel/iommu_groups/40/devices", address).symlink_to(folder.resolve())
    (folder / "iommu_group").symlink_to(bus.root / "kernel/iommu_groups/40")
    (folder / "driver").symlink_to(bus.root / "bus/pci/drivers/vfio-pci")
    with pytest.raises(TopologyError, match=f"both show the GPU at {address}"):
        source_of(bus, FakeNvml(RECORDED)).read()


def test_a_refused_gpu_is_a_trouble_of_the_node_that_names_what_is_in_the_way(bus: FakePciBus) -> None:
    bus.add("0000:e5:00.0", 1, driver="igb", ids=(0x8086, 0x1521), pci_class=NETWORK_CLASS)
    reading = source_of(bus).read_all()
    assert [gpu.pci_bus_id for gpu in reading.machine.passthrough] == [SECOND, THIRD]
    (found,) = reading_troubles(reading, reading.machine)
    assert (found.reason, found.subject) == ("PassthroughRefused", FIRST)
    assert "0000:e5:00.0 (0x8086:0x1521, driver igb), which is not part of this GPU" in found.text
    assert f"lspci -nnk -s {FIRST}" in found.advice


def test_a_gpu_comes_and_goes_with_its_driver(bus: FakePciBus) -> None:
    source = source_of(bus)
    bus.write("bus/pci/drivers/vfio-pci/unbind", THIRD)
    with pytest.raises(GpuDriverTroubleError):
        source.read()  # nobody has it now: it may be on its way to the NVIDIA driver
    bus.rebind(THIRD, "vfio-pci")
    assert len(source.read().passthrough) == 3
