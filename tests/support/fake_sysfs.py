"""A /sys below a folder of the test: PCI devices, network cards, and the whole of a recorded machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel
from dracaena.api.machine import Machine
from dracaena.host.facts.pci import PciAddress
from support.fake_nvml_values import gpu_address

_ALONE = 100
"""First NUMA node of cards that are SYS to every GPU."""


def add_device(root: Path, bridges: Sequence[str], address: str, *, numa: int | None = None, vendor: str = "") -> Path:
    """Add a PCI device below its bridges, the first of them the PCIe root."""
    folder = root.joinpath("devices", *bridges, address)
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{-1 if numa is None else numa}\n", encoding="ascii")
    (folder / "vendor").write_text(f"{vendor}\n", encoding="ascii")
    links = root / "bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / address).symlink_to(os.path.relpath(folder, links))
    return folder


def make_gpu(root: Path, device: Path, driver: str | None = "nvidia") -> None:
    """Make a PCI device a GPU that the kernel has bound to a driver."""
    (device / "vendor").write_text("0x10de\n", encoding="ascii")
    (device / "class").write_text("0x030200\n", encoding="ascii")
    if driver is not None:
        bound = root / "bus/pci/drivers" / driver
        bound.mkdir(parents=True, exist_ok=True)
        (bound / device.name).symlink_to(os.path.relpath(device, bound))
        (device / "driver").symlink_to(os.path.relpath(bound, device))


def add_card(root: Path, kind: str, name: str, device: Path) -> None:
    """Add an entry of class/infiniband or class/net for a PCI device."""
    entry = root / "class" / kind / name
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(os.path.relpath(device, entry))


@dataclass(frozen=True, slots=True)
class _Placed:
    address: PciAddress
    numa: int | None
    nic: str | None


def write_machine(root: Path, machine: Machine) -> None:
    """Add all GPUs and cards of a machine, below switches and roots that give the levels it records."""
    placed = [*_gpus(machine), *_nics(machine)]
    levels = _levels(machine)
    switch, switches, bridge = (
        lowest_in_group(len(placed), [pair for pair, level in levels.items() if level <= limit])
        for limit in (LinkLevel.PIX, LinkLevel.PXB, LinkLevel.PHB)
    )
    for place, device in enumerate(placed):
        path = (
            f"pci0000:{bridge[place]:02x}",
            f"0000:{bridge[place]:02x}:{switches[place]:02x}.0",
            f"upper-{switches[place]}",
            f"upper-{switches[place]}-port-{switch[place]}",
            f"lower-{switch[place]}",
            f"lower-{switch[place]}-port-{place}",
        )
        folder = add_device(root, path, str(device.address), numa=device.numa)
        if device.nic is None:
            make_gpu(root, folder)
        if device.nic is not None:
            add_card(root, "infiniband", device.nic, folder)


def _gpus(machine: Machine) -> list[_Placed]:
    numa = machine.topology.numa_nodes
    return [_Placed(gpu_address(machine, ordinal), numa[ordinal], None) for ordinal in range(len(machine.gpus))]


def _nics(machine: Machine) -> list[_Placed]:
    placed = []
    for number, nic in enumerate(machine.topology.nics):
        near = [ordinal for ordinal, level in enumerate(nic.levels) if level is not None and level <= LinkLevel.NODE]
        numa = machine.topology.numa_nodes[near[0]] if near else _ALONE + number
        placed.append(_Placed(PciAddress(0, 0x80 + number, 0, 0), numa, nic.name))
    return placed


def _levels(machine: Machine) -> dict[tuple[int, int], LinkLevel]:
    """Return all known levels by the places of the two devices: GPUs first, then cards."""
    gpus = len(machine.gpus)
    known = {pair: machine.topology.link(*pair).level for pair in combinations(range(gpus), 2)}
    for number, nic in enumerate(machine.topology.nics):
        known.update({(ordinal, gpus + number): level for ordinal, level in enumerate(nic.levels)})
    return {pair: level for pair, level in known.items() if level is not None}
