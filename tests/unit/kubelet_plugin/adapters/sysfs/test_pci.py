from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.files import MOST_BYTES
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.discovery.vm.passthrough import IommuGroup, PciBus, PciFunction, handed_through
from support.fake_pci import AUDIO_CLASS, BRIDGE_CLASS, H100, NETWORK_CLASS, NVIDIA, FakePciBus, UnbindHangsError

GPU, AUDIO, BRIDGE = "0000:18:00.0", "0000:18:00.1", "0000:17:00.0"


@pytest.fixture
def bus(tmp_path: Path) -> FakePciBus:
    made = FakePciBus(tmp_path)
    made.add(GPU, 7, driver="vfio-pci")
    made.add(AUDIO, 7, driver="vfio-pci", ids=(NVIDIA, 0x22BA), pci_class=AUDIO_CLASS)
    made.add(BRIDGE, 7, driver="pcieport", ids=(0x8086, 0x352A), pci_class=BRIDGE_CLASS)
    made.add("0000:19:00.0", 8, driver="igb", ids=(0x8086, 0x1521), pci_class=NETWORK_CLASS)
    return made


def read(bus: FakePciBus) -> PciBus:
    return SysfsPci(str(bus.root)).read()


def offered(bus: FakePciBus) -> list[str]:
    return [gpu.pci_bus_id for gpu in handed_through(read(bus)).gpus]


def problem(bus: FakePciBus) -> str:
    assert offered(bus) == []
    return {one.address: one.reason for one in handed_through(read(bus)).refused}[GPU]


def test_a_gpu_is_read_with_all_that_shares_its_group_and_nothing_else(bus: FakePciBus) -> None:
    found = read(bus)
    assert {str(address) for address in found.functions} == {GPU, AUDIO, BRIDGE}
    assert found.groups == {7: IommuGroup((BRIDGE, GPU, AUDIO))}
    assert found.functions[PciAddress(0, 0x18, 0, 0)] == PciFunction(
        PciAddress(0, 0x18, 0, 0), NVIDIA, H100, 0x0302, "vfio-pci", 7
    )
    assert offered(bus) == [GPU]


def test_a_gpu_is_offered_while_vfio_has_it(bus: FakePciBus) -> None:
    bus.rebind(GPU, "nvidia")
    assert offered(bus) == []
    bus.rebind(GPU, "vfio-pci")
    assert offered(bus) == [GPU]
    bus.write("bus/pci/drivers/vfio-pci/unbind", GPU)
    assert offered(bus) == []


def test_a_gpu_is_not_offered_while_its_driver_waits_for_somebody_who_has_it_open(bus: FakePciBus) -> None:
    bus.open_by[GPU] = [4711]
    with pytest.raises(UnbindHangsError, match="4711"):
        bus.rebind(GPU, "nvidia")
    assert offered(bus) == []
    with pytest.raises(UnbindHangsError, match="lock of the device"):
        bus.write("bus/pci/drivers/vfio-pci/bind", GPU)


def test_virtual_functions_are_no_gpus(bus: FakePciBus) -> None:
    virtual = bus.add("0000:18:01.0", 9, driver="vfio-pci")
    (virtual / "physfn").symlink_to("../0000:18:00.0")
    assert offered(bus) == [GPU]


def test_a_machine_without_a_pci_bus_has_none(tmp_path: Path) -> None:
    assert SysfsPci(str(tmp_path / "no")).read() == PciBus()


def test_a_group_made_without_an_iommu_is_told_by_its_name(bus: FakePciBus) -> None:
    (bus.root / "kernel/iommu_groups/7/name").write_text("vfio-noiommu\n")
    assert "without an IOMMU" in problem(bus)


@pytest.mark.parametrize(
    ("attribute", "content", "words"),
    [
        ("device", b"zz\n", r"/device says 'zz', expected 0x and 4 hex digits"),
        ("device", b"", r"/device says '', expected"),
        ("device", b"0x2330\n0x2331\n", r"/device says '0x2330\\n0x2331', expected"),
        ("device", b"\xff\xfe\x00", r"/device says .*, expected"),
        ("device", b"0x2330" + b" " * MOST_BYTES, r"/device says '…', expected"),
        ("class", b"0x03\n", r"/class says '0x03', expected 0x and 6 hex digits"),
    ],
)
def test_what_no_kernel_says_is_named_with_its_file(
    bus: FakePciBus, attribute: str, content: bytes, words: str
) -> None:
    (bus.device(GPU) / attribute).write_bytes(content)
    found = problem(bus)
    assert found.startswith(str(bus.root))

    assert re.search(words, found), found


def test_a_file_that_never_ends_or_never_answers_holds_up_nothing(bus: FakePciBus) -> None:
    device = bus.device(GPU) / "device"
    device.unlink()
    os.mkfifo(device)
    assert "expected 0x and 4 hex digits" in problem(bus)
    device.unlink()
    device.symlink_to("/dev/zero")
    assert "expected 0x and 4 hex digits" in problem(bus)


@pytest.mark.parametrize("target", ["../../..", "../../drivers/vfio pci", "../" + "x" * 90])
def test_a_driver_without_a_name_is_named_with_its_file(bus: FakePciBus, target: str) -> None:
    link = bus.device(GPU) / "driver"
    link.unlink()
    link.symlink_to(target)
    assert "/driver leads to" in problem(bus)


def test_a_group_that_is_no_number_is_named_with_its_file(bus: FakePciBus) -> None:
    link = bus.device(GPU) / "iommu_group"
    link.unlink()
    link.symlink_to("../../../kernel/iommu_groups/seven")
    assert "/iommu_group leads to 'seven', expected the number of a group" in problem(bus)


def test_a_file_in_place_of_a_link_is_named(bus: FakePciBus) -> None:
    link = bus.device(GPU) / "driver"
    link.unlink()
    link.write_text("vfio-pci")
    assert "/driver cannot be read" in problem(bus)


def test_an_unreadable_member_keeps_the_gpu_from_being_offered_by_name(bus: FakePciBus) -> None:
    (bus.device(AUDIO) / "class").write_text("sound\n")
    assert "also holds '0000:18:00.1', of which nothing is known" in problem(bus)


def test_entries_that_are_no_addresses_are_passed_over(bus: FakePciBus) -> None:
    for name in ("0000:18:00.9", "..x", "0000:1A:00.0"):
        (bus.root / "bus/pci/devices" / name).mkdir()
        (bus.root / "bus/pci/devices" / name / "vendor").write_text("0x10de\n")
    assert offered(bus) == [GPU]
