"""Facts become a machine: order, words, pairs, cards."""

from __future__ import annotations

from dataclasses import replace

import pynvml
import pytest

from dracaena.api.links import LinkLevel
from dracaena.api.topology import TopologyError
from dracaena.host.facts.machine import GpuFacts, LeftOut, MachineFacts, NicFacts, PairLevel
from dracaena.host.facts.pci import PciAddress, PciFacts
from dracaena.kubelet_plugin.discovery.build import build_machine, read_facts, reading_troubles
from dracaena.kubelet_plugin.discovery.nvml_words import ARCHITECTURES, BRANDS, NVLINK_GENERATIONS


def address(bus: int) -> PciAddress:
    return PciAddress(0, bus, 0, 0)


def facts(index: int, bus: int | None) -> GpuFacts:
    return GpuFacts(index=index, uuid=f"GPU-{index}", address=None if bus is None else address(bus), nvlinks=())


def at(bus: int, root: int, numa: int | None) -> PciFacts:
    return PciFacts(address(bus), (f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", str(address(bus))), True, numa)


def test_ordinals_follow_pci_addresses_and_not_indexes() -> None:
    machine = build_machine(MachineFacts(gpus=(facts(0, 0x9A), facts(1, 0x18), facts(2, None))), name="n")
    assert [gpu.index for gpu in machine.gpus] == [1, 0, 2]
    assert [gpu.pci_bus_id for gpu in machine.gpus] == ["0000:18:00.0", "0000:9a:00.0", None]


def test_levels_go_with_their_pair_whatever_the_order() -> None:
    told = MachineFacts(
        gpus=(facts(0, 0x9A), facts(1, 0x18), facts(2, 0x2A)),
        pair_levels=(PairLevel("GPU-0", "GPU-1", 50), PairLevel("GPU-2", "GPU-1", 10), PairLevel("GPU-0", "GPU-2", 33)),
    )
    topology = build_machine(told, name="n").topology
    assert topology.link(0, 1).level == LinkLevel.PIX
    assert topology.link(0, 2).level == LinkLevel.SYS
    assert topology.link(1, 2).level is None


def test_sysfs_gives_roots_numa_nodes_and_the_way_to_cards() -> None:
    told = MachineFacts(
        gpus=(facts(0, 0x18), facts(1, 0x9A)),
        pci=(at(0x9A, 0x97, 1), at(0x18, 0x15, 0)),
        nics=(NicFacts("mlx5_1", at(0x99, 0x97, 1)), NicFacts("mlx5_0", at(0x16, 0x15, 0))),
    )
    machine = build_machine(told, name="n")
    assert [gpu.pcie_root for gpu in machine.gpus] == ["pci0000:15", "pci0000:97"]
    assert machine.topology.numa_nodes == (0, 1)
    assert [nic.name for nic in machine.topology.nics] == ["mlx5_0", "mlx5_1"]
    assert machine.topology.nics[0].levels[1] == LinkLevel.SYS
    assert [nic.numa_node for nic in machine.topology.nics] == [0, 1]


def test_without_sysfs_all_of_that_is_unknown() -> None:
    told = MachineFacts(gpus=(facts(0, 0x18),), nics=(NicFacts("mlx5_0", at(0x16, 0x15, 0)),))
    machine = build_machine(told, name="n")
    assert machine.gpus[0].pcie_root is None
    assert machine.topology.numa_nodes == (None,)
    assert machine.topology.nics[0].levels == (None,)


@pytest.mark.parametrize(
    ("number", "text"), [(12020, "12.2"), (13000, "13.0"), (11040, "11.4"), (12090, "12.9"), (0, None), (None, None)]
)
def test_cuda_version_is_major_and_minor(number: int | None, text: str | None) -> None:
    assert build_machine(MachineFacts(gpus=(), cuda_driver_version=number), name="n").cuda_driver_version == text


def test_numbers_without_a_word_leave_the_field_out() -> None:
    strange = replace(facts(0, 0x18), brand=0, architecture=0xFFFFFFFF)
    gpu = build_machine(MachineFacts(gpus=(strange,)), name="n").gpus[0]
    assert (gpu.brand, gpu.architecture) == (None, None)


def test_two_gpus_with_one_uuid_are_refused() -> None:
    with pytest.raises(TopologyError, match="share one uuid"):
        build_machine(MachineFacts(gpus=(facts(0, 0x18), replace(facts(0, 0x9A), index=1))), name="n")


def test_the_words_cover_what_pynvml_knows() -> None:
    """A brand or architecture that a new pynvml adds must be given a word, or be left out on purpose."""
    constants = vars(pynvml)
    brands = {v for name, v in constants.items() if name.startswith("NVML_BRAND_") and name != "NVML_BRAND_COUNT"}
    assert brands - set(BRANDS) == {0, 17, 18, 19}  # unknown, and what is sold for no computing: DLA, vGameDev, NPU
    architectures = {v for name, v in constants.items() if name.startswith("NVML_DEVICE_ARCH_")}
    assert architectures - set(ARCHITECTURES) == {0xFFFFFFFF, 11, 12, 15}
    versions = {v for name, v in constants.items() if name.startswith("NVML_NVLINK_VERSION_")}
    assert versions - set(NVLINK_GENERATIONS) == {0}


def test_a_gpu_that_the_driver_does_not_list_is_missing_unless_it_was_there_before() -> None:
    refusal = LeftOut("GPU 1", "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")
    whole = read_facts(MachineFacts(gpus=(facts(0, 0x18), facts(1, 0x9A))), name="n")
    less = MachineFacts(gpus=(facts(0, 0x18),), pci_gpus=(address(0x9A), address(0x18)), left_out=(refusal,))
    reading = read_facts(less, name="n")
    ((reason, subject, text),) = [(t.reason, t.subject, t.text) for t in reading_troubles(reading, reading.machine)]
    assert (reason, subject) == ("GpuMissing", "0000:9a:00.0")
    assert str(refusal) in text
    assert reading_troubles(reading, whole.machine) == ()


def test_where_a_gpu_tells_no_address_nobody_can_say_which_is_missing() -> None:
    reading = read_facts(MachineFacts(gpus=(facts(0, None),), pci_gpus=(address(0x18), address(0x9A))), name="n")
    assert reading.missing == ()
