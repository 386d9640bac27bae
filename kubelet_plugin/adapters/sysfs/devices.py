"""PCI devices and network cards as the kernel shows them in /sys."""

from __future__ import annotations

import os
from pathlib import Path

from dracaena.host.facts.machine import NicFacts
from dracaena.host.facts.pci import PciAddress, PciFacts, path_from_root

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers; 0x0680 are NVSwitches."""

_MELLANOX = "0x15b3"
"""Vendor whose plain Ethernet ports count as cards for GPU traffic even before their RDMA driver is loaded."""


class Sysfs:
    """Reads below `root`, normally /sys. What cannot be read is left out, never an error."""

    def __init__(self, root: str = "/sys") -> None:
        self._root = Path(os.path.realpath(root))

    def pci_device(self, address: PciAddress) -> PciFacts | None:
        """Return what sysfs has about a PCI device, None if there is none at that address."""
        return self._facts(self._root / "bus/pci/devices" / str(address))

    def bound_to_gpu_driver(self) -> frozenset[str]:
        """Return the PCI addresses that the kernel has bound to the NVIDIA driver; empty without the driver."""
        try:
            names = [entry.name for entry in (self._root / "bus/pci/drivers/nvidia").iterdir()]
        except OSError:
            return frozenset()
        return frozenset(name for name in names if PciAddress.parse(name) is not None)

    def nvidia_gpus(self) -> tuple[PciAddress, ...]:
        """Return the addresses of NVIDIA's GPUs, sorted, without those that another driver has (VFIO).

        Virtual functions are left out: they are the GPUs of guests.
        """
        try:
            devices = [entry for entry in (self._root / "bus/pci/devices").iterdir() if self._is_our_gpu(entry)]
        except OSError:
            return ()
        addresses = (PciAddress.parse(device.name) for device in devices)
        return tuple(sorted(address for address in addresses if address is not None))

    @staticmethod
    def _is_our_gpu(device: Path) -> bool:
        if _text(device / "vendor") != _NVIDIA or not (_text(device / "class") or "").startswith(_GPU_CLASSES):
            return False
        bound = device / "driver"
        return not (device / "physfn").exists() and (not bound.exists() or bound.resolve().name == "nvidia")

    def nics(self) -> tuple[NicFacts, ...]:
        """Return all physical network cards that can take part in GPU traffic, by PCI address and name.

        These are the RDMA devices (class/infiniband, also RoCE and EFA), and the ports of Mellanox cards without one.
        Virtual functions of a card on this machine are left out: they are in the same slot.
        """
        rdma = self._cards("class/infiniband")
        seen = {nic.pci.address for nic in rdma}
        ports = [nic for nic in self._cards("class/net", vendor=_MELLANOX) if nic.pci.address not in seen]
        return tuple(sorted([*rdma, *ports], key=lambda nic: (nic.pci.address, nic.name)))

    def _cards(self, folder: str, vendor: str | None = None) -> list[NicFacts]:
        try:
            names = sorted(entry.name for entry in (self._root / folder).iterdir())
        except OSError:
            return []
        cards = []
        for name in names:
            device = self._root / folder / name / "device"
            if (device / "physfn").exists() or (vendor is not None and _text(device / "vendor") != vendor):
                continue
            facts = self._facts(device)
            if facts is not None:
                cards.append(NicFacts(name, facts))
        return cards

    def _facts(self, device: Path) -> PciFacts | None:
        resolved = Path(os.path.realpath(device))
        address = PciAddress.parse(resolved.name)
        if address is None or not resolved.is_dir():
            return None
        devices = self._root / "devices"
        parts = resolved.relative_to(devices).parts if resolved.is_relative_to(devices) else ()
        path, under_devices = path_from_root(parts)
        return PciFacts(address, path, under_devices, _numa_node(resolved / "numa_node"))


def _numa_node(file: Path) -> int | None:
    """Return the node; the kernel writes -1 if the firmware does not know it."""
    try:
        node = int(_text(file) or "")
    except ValueError:
        return None
    return node if node >= 0 else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
