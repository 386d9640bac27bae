"""PCI addresses, and how close two PCI devices are by their paths in sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dracaena.api.links import LinkLevel

_ADDRESS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)

MAX_SHORT_DOMAIN = 0xFFFF
"""Largest PCI domain that fits the form `dddd:bb:dd.f`. Domains that the kernel invents (VMD) can be larger."""


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """Domain, bus, device, function. Ordered as the numbers are: the order of ordinals."""

    domain: int
    bus: int
    device: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress | None:
        """Read `0000:18:00.0` or NVML's `00000000:18:00.0`, in either case; None for anything else."""
        match = _ADDRESS.fullmatch(text)
        return cls(*(int(part, 16) for part in match.groups())) if match else None

    def __str__(self) -> str:
        """Return the name of the device below /sys/bus/pci/devices."""
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function:x}"

    @property
    def is_short(self) -> bool:
        """Whether the text has the form that resource.kubernetes.io/pciBusID requires."""
        return self.domain <= MAX_SHORT_DOMAIN

    def same_card(self, other: PciAddress) -> bool:
        """Whether both are functions of one device."""
        return (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)


@dataclass(frozen=True, slots=True)
class PciFacts:
    """What sysfs reports about one PCI device."""

    address: PciAddress
    path: tuple[str, ...] = ()
    """Parts of the resolved path below /sys/devices, from the outermost `pci<domain>:<bus>` to the device itself."""
    under_devices: bool = False
    """Whether that root is directly below /sys/devices, not below a platform device."""
    numa_node: int | None = None

    @property
    def root(self) -> str | None:
        """PCIe root as resource.kubernetes.io/pcieRoot means it: the first part below /sys/devices, if it is one."""
        return self.path[0] if self.path and self.under_devices else None


def path_from_root(parts: Iterable[str]) -> tuple[tuple[str, ...], bool]:
    """Cut the parts of a path below /sys/devices to those from the PCIe root on, and return whether it came first.

    Without a root the path is empty.
    """
    all_parts = tuple(parts)
    for place, part in enumerate(all_parts):
        if _ROOT.fullmatch(part):
            return all_parts[place:], place == 0
    return (), False


def pci_level(one: PciFacts, other: PciFacts) -> LinkLevel | None:
    """Return the nearest common ancestor of two devices, in the words of `nvidia-smi topo`; None: sysfs does not say.

    A path is root, root port, then per switch one upstream and one downstream port, then the device. Two devices below
    the same upstream port with only its downstream ports between them are PIX; with more between them PXB; with only
    the root in common PHB; with different roots NODE or SYS, by NUMA node.
    """
    if not one.path or not other.path or one.path[0] != other.path[0]:
        return _across_roots(one.numa_node, other.numa_node)
    if one.address.same_card(other.address):
        return LinkLevel.PIX
    shared = _shared(one.path, other.path)
    ports = shared - 1  # bridges in common; the first of them is a root port
    if ports == 0:
        return LinkLevel.PHB
    direct = all(len(path) - shared <= 2 for path in (one.path, other.path))
    return LinkLevel.PIX if direct else LinkLevel.PXB


def _across_roots(one: int | None, other: int | None) -> LinkLevel | None:
    if one is None or other is None:
        return None
    return LinkLevel.NODE if one == other else LinkLevel.SYS


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return the length of the common prefix of two paths."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
