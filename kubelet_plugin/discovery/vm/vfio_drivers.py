"""Which module of the kernel has the VFIO driver that a PCI function needs: the best match in modules.alias."""

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
    """A driver with both of its names. The second does not follow from the first: module vfio_pci registers the driver
    vfio-pci, and module nvgrace_gpu_vfio_pci one that is called as the module is.
    """

    module: str
    """The name for modprobe: `nvgrace_gpu_vfio_pci`."""
    name: str | None
    """The name of its folder in /sys/bus/pci/drivers; None: the module is not loaded."""


def best_vfio_module(modalias: str, lines: Iterable[str]) -> str:
    """Return the module for a function: among the `vfio_pci:` lines of modules.alias that match its modalias, the one
    with the fewest wildcards, in a tie the first by name. Without a match it is vfio_pci itself.
    """
    wanted = _VFIO + modalias.removeprefix(_PCI)
    found = [(PLAIN_MODULE, "*" * len(wanted))]
    for line in lines:
        match = _ALIAS.fullmatch(line.strip())
        if match is not None and fnmatchcase(wanted, match[1]):
            found.append((match[2], match[1]))
    return min(found, key=lambda each: (each[1].count("*"), each[0]))[0]
