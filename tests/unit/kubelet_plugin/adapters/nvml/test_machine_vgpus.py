"""vGPUs read beside the GPUs of the NVIDIA driver, and without it."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from dracaena.api.topology import TopologyError
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.host.facts.troubles import GpuDriverTroubleError, TroubleKind
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import GuestBuses, NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import SysfsVgpu
from dracaena.kubelet_plugin.discovery.build import reading_troubles
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import gpu_address
from support.fake_pci import FakePciBus
from support.fake_sysfs import write_machine
from support.fake_vgpu import A100_TYPES, H200_TYPES, FakeVgpus
from support.gpu_lists import gpu_list

RECORDED = read_machine("a100-pcie-pairs-cross-numa")
UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"
FIRST = str(gpu_address(RECORDED, 0))


def missing(reason: TroubleKind = TroubleKind.LIBRARY_MISSING) -> object:
    raise GpuDriverNotReadyError("waiting for the NVIDIA driver: no library", reason=reason)


def source_of(vgpus: FakeVgpus, library: object = missing) -> NvmlMachine:
    root = str(vgpus.root)
    load = library if callable(library) else lambda: library
    reader = NvmlReader(NvmlLibrary(load))
    return NvmlMachine("node", reader, Sysfs(root), guests=GuestBuses(SysfsPci(root), SysfsVgpu(root)))


@pytest.fixture
def vgpus(tmp_path: Path) -> FakeVgpus:
    return FakeVgpus(FakePciBus(tmp_path))


def test_where_the_vgpu_manager_has_all_gpus_no_nvml_is_needed(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES)
    vgpus.create("0000:e1:00.0", 475, UUID)
    reading = source_of(vgpus).read_all()
    (found,) = reading.machine.vgpus
    assert (found.identity, found.parent, found.numa_node, found.pcie_root) == (UUID, "0000:e1:00.0", 0, "pci0000:00")
    assert (reading.machine.gpus, reading.missing, reading.refused_vgpus) == ((), (), ())


def test_a_gpu_that_nobody_divides_is_waited_for(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES)
    vgpus.bus.add("0000:f1:00.0", 9, driver="nvidia")
    with pytest.raises(GpuDriverTroubleError, match="waiting for the NVIDIA driver"):
        source_of(vgpus).read()


def test_a_driver_that_we_were_asked_to_let_go_of_is_waited_for(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES)
    with pytest.raises(GpuDriverTroubleError):
        source_of(vgpus, lambda: missing(TroubleKind.RELEASED)).read()


def divided(vgpus: FakeVgpus, nvml: FakeNvml) -> list[str]:
    """Let the vGPU manager have the first GPU of a recorded machine, by functions; return these."""
    write_machine(vgpus.root, nvml.machine)
    return vgpus.take_gpu(FIRST, H200_TYPES, 2)


def test_the_driver_names_the_types_of_a_gpu_that_is_full_and_tells_their_size(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    functions = divided(vgpus, nvml)
    vgpus.set_type(functions[0], 1428)
    source = source_of(vgpus, nvml)
    reading = source.read_all()
    assert reading.machine.vgpus == ()
    (told,) = [one for one in reading_troubles(reading, reading.machine) if one.reason == "VgpuRefused"]
    assert told.subject == functions[0]
    assert "its type 1428 has no name" in told.text
    assert "nvidia-smi vgpu -q" in told.advice
    nvml.vgpu_types = {0: {1428: ("NVIDIA H200X-141C", 144_000 << 20)}, 1: {1428: ("NVIDIA A100-40C", 40 << 30)}}
    (found,) = source.read().vgpus
    assert (found.type_name, found.framebuffer_bytes) == ("NVIDIA H200X-141C", 144_000 << 20)


def test_what_is_told_of_a_type_stays_when_the_last_place_is_taken(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    nvml.vgpu_types = {0: {1414: ("NVIDIA H200X-1-18C", 18_000 << 20)}}
    functions = divided(vgpus, nvml)
    vgpus.set_type(functions[0], 1414)
    (before,) = source_of(vgpus, nvml).read().vgpus
    vgpus.set_type(functions[1], 1414)
    assert source_of(vgpus, nvml).read().vgpus[0] == before


def test_the_driver_tells_how_many_of_a_type_an_empty_gpu_has_room_for(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    nvml.vgpu_types = {0: {1414: ("NVIDIA H200X-1-18C", 18_000 << 20), 1428: ("NVIDIA H200X-141C", 141_000 << 20)}}
    nvml.most_vgpus = {1414: 7}
    divided(vgpus, nvml)
    source = source_of(vgpus, nvml)
    assert source.vgpu_types() == {}
    source.read()
    (types,) = source.vgpu_types().values()
    assert {number: each.most for number, each in types.items()} == {"1414": 7, "1428": None}


def test_a_driver_that_tells_no_types_leaves_them_to_sysfs(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    functions = divided(vgpus, nvml)
    vgpus.set_type(functions[0], 1414)
    for symbol in ("nvmlDeviceGetSupportedVgpus", "nvmlVgpuTypeGetName"):
        nvml.refuse(symbol, pynvml.NVML_ERROR_NOT_SUPPORTED)
        (found,) = source_of(vgpus, nvml).read().vgpus
        assert (found.type_name, found.framebuffer_bytes) == ("NVIDIA H200X-1-18C", None)
        nvml.allow()
        nvml.vgpu_types = {0: {1414: ("NVIDIA H200X-1-18C", 18_000 << 20)}}


def test_the_driver_is_asked_for_types_of_no_other_gpu(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    write_machine(vgpus.root, RECORDED)
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES)
    vgpus.create("0000:e1:00.0", 475, UUID)
    assert len(source_of(vgpus, nvml).read().vgpus) == 1
    assert "nvmlDeviceGetSupportedVgpus" not in nvml.calls


def test_the_topology_is_that_of_the_gpus_alone(vgpus: FakeVgpus) -> None:
    nvml = FakeNvml(RECORDED)
    functions = divided(vgpus, nvml)
    alone = NvmlMachine("node", NvmlReader(NvmlLibrary(lambda: nvml)), Sysfs(str(vgpus.root))).read()
    assert (alone.vgpus, alone.vgpu_parents) == ((), frozenset()), "without the setting they are not looked for"
    vgpus.set_type(functions[0], 1414)
    both = source_of(vgpus, nvml).read()
    assert (both.gpus, both.topology) == (alone.gpus, alone.topology)
    assert both.vgpu_parents == {FIRST}


def test_a_gpu_that_vfio_and_the_vgpu_manager_show_is_a_contradiction(vgpus: FakeVgpus) -> None:
    """It was moved between two looks; the next reading shows where it is."""
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES)
    (vgpus.root / "bus/pci/drivers/vfio-pci").mkdir()
    vgpus.bus.rebind("0000:e1:00.0", "vfio-pci")
    with pytest.raises(TopologyError, match=r"vGPU manager and a VFIO driver both show the GPU at 0000:e1:00\.0"):
        source_of(vgpus).read()


def test_a_gpu_that_the_vgpu_manager_has_is_bound_to_vfio_for_no_claim(vgpus: FakeVgpus) -> None:
    root = str(vgpus.root)
    vgpus.add_gpu("0000:e1:00.0", A100_TYPES, group=1)
    vgpus.bus.add("0000:f1:00.0", 9, driver="nvidia")

    def handed(reader: SysfsVgpu | None) -> list[str]:
        """GPUs that go to VFIO when claims get them, where the settings name all."""
        nvml = NvmlReader(NvmlLibrary(lambda: FakeNvml(RECORDED)))
        bus = SysfsPci(root)
        source = NvmlMachine(
            "node", nvml, Sysfs(root), guests=GuestBuses(bus, reader), gpu_list=gpu_list(passthrough="all")
        )
        return [gpu.pci_bus_id for gpu in source.read().passthrough]

    assert handed(None) == ["0000:e1:00.0", "0000:f1:00.0"], "without the setting nobody knows of the vGPU manager"
    assert handed(SysfsVgpu(root)) == ["0000:f1:00.0"]
