"""Which VFIO driver a PCI function needs: the one that modules.alias names for it most exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

PLAIN_MODULE: Final = "vfio_pci"
"""The module that takes any function."""

_ALIAS: Final = re.compile(r"alias (vfio_pci:\S{1,200}) (\w{1,64})", re.ASCII)
_PCI: Final = "pci:"
_VFIO: Final = "vfio_pci:"


@dataclass(frozen=True, slots=True)
class VfioDriver:
    """A driver by both of its names."""

    module: str
    """As modprobe takes it: `nvgrace_gpu_vfio_pci`."""

    @property
    def name(self) -> str:
        """Return the name of its folder in /sys/bus/pci/drivers: `nvgrace-gpu-vfio-pci`."""
        return self.module.replace("_", "-")


def best_vfio_driver(modalias: str, lines: Iterable[str]) -> VfioDriver:
    """Return the driver for a function: of the `vfio_pci:` lines of modules.alias that match its modalias, the one with
    the fewest wildcards, and of equal ones the first by name. Without any that is vfio-pci itself.
    """
    wanted = _VFIO + modalias.removeprefix(_PCI)
    found = [(PLAIN_MODULE, "*" * len(wanted))]
    for line in lines:
        match = _ALIAS.fullmatch(line.strip())
        if match is not None and fnmatchcase(wanted, match[1]):
            found.append((match[2], match[1]))
    return VfioDriver(min(found, key=lambda each: (each[1].count("*"), each[0]))[0])
