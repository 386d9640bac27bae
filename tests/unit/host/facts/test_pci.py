"""Levels from paths in sysfs, on paths as real machines have them."""

from __future__ import annotations

import pytest

from dracaena.api.links import LinkLevel
from dracaena.host.facts.pci import PciAddress, PciFacts, path_from_root, pci_level


def device(path: str, numa: int | None = 0) -> PciFacts:
    parts, under_devices = path_from_root(path.split("/"))
    address = PciAddress.parse(path.rpartition("/")[2])
    assert address is not None
    return PciFacts(address, parts, under_devices, numa)


SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
GPU = device(f"{SWITCH}/0000:17:00.0/0000:18:00.0")


@pytest.mark.parametrize(
    ("other", "level"),
    [
        (device(f"{SWITCH}/0000:17:01.0/0000:19:00.0"), LinkLevel.PIX),
        (device(f"{SWITCH}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0"), LinkLevel.PXB),
        (device("pci0000:15/0000:15:02.0/0000:1d:00.0"), LinkLevel.PHB),
        (device("pci0000:15/0000:15:03.0"), LinkLevel.PHB),
        (device("pci0000:37/0000:37:01.0/0000:38:00.0"), LinkLevel.NODE),
        (device("pci0000:97/0000:97:01.0/0000:98:00.0", numa=1), LinkLevel.SYS),
        (device("pci0000:97/0000:97:01.0/0000:98:00.0", numa=None), None),
        (device("platform/0000:98:00.0"), LinkLevel.NODE),
        (device("platform/0000:98:00.0", numa=None), None),
        (device(f"{SWITCH}/0000:17:00.0/0000:18:00.1"), LinkLevel.PIX),
    ],
)
def test_level_of_two_paths(other: PciFacts, level: LinkLevel | None) -> None:
    assert pci_level(GPU, other) == level
    assert pci_level(other, GPU) == level


def test_two_nested_switches_are_several() -> None:
    inner = f"{SWITCH}/0000:17:00.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0"
    beside = f"{SWITCH}/0000:17:01.0/0000:2a:00.0/0000:2b:00.0/0000:2c:00.0"
    assert pci_level(device(inner), device(beside)) == LinkLevel.PXB


def test_functions_of_one_card_below_a_root_port_are_next_to_each_other() -> None:
    port = "pci0000:15/0000:15:01.0"
    assert pci_level(device(f"{port}/0000:16:00.0"), device(f"{port}/0000:16:00.1")) == LinkLevel.PIX


def test_guests_with_all_devices_on_one_bus_see_a_host_bridge() -> None:
    assert pci_level(device("pci0000:00/0000:00:05.0"), device("pci0000:00/0000:00:06.0")) == LinkLevel.PHB


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("pci0000:15/0000:15:01.0/0000:16:00.0", "pci0000:15"),
        ("pci10000:e0/10000:e0:06.0/10000:e1:00.0", "pci10000:e0"),
        ("LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/pci0001:00/0001:00:00.0", None),
        ("platform/soc/0000:16:00.0", None),
    ],
)
def test_the_root_is_the_first_part_below_devices(path: str, root: str | None) -> None:
    assert device(path).root == root


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:AF:1F.7", "0000:af:1f.7"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_an_address_is_named_as_sysfs_names_it(text: str, name: str) -> None:
    assert str(PciAddress.parse(text)) == name


@pytest.mark.parametrize(
    "text", ["", "18:00.0", "0000:18:00", "0000:18:00.8", "0000:18:00.0 ", "0000:1g:00.0", "٠٠٠٠:18:00.0"]
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert PciAddress.parse(text) is None


def test_addresses_are_ordered_as_numbers() -> None:
    texts = ["0000:18:00.0", "0000:9a:00.0", "0001:01:00.0", "10000:01:00.0"]
    addresses = [PciAddress.parse(text) for text in reversed(texts)]
    assert [str(address) for address in sorted(a for a in addresses if a is not None)] == texts
