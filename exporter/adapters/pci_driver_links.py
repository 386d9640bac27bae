"""Which kernel driver has a GPU, by /sys: the NVIDIA driver does not list GPUs of other drivers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"([0-9a-f]{8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)
_VFIO: Final = re.compile(r"(?:[a-z0-9]+[-_])*vfio[-_]pci", re.ASCII)
"""vfio-pci and its product variants such as nvgrace-gpu-vfio-pci."""


class PciDriverLinks:
    """Reads below `root`, normally /sys. From any thread."""

    def __init__(self, root: str = "/sys") -> None:
        self._devices = Path(root) / "bus/pci/devices"

    def has_vfio(self, pci_bus_id: str) -> bool:
        """Whether a VFIO driver has the GPU at an address as NVML writes it (`00000000:18:00.0`), so that it is used by
        a virtual machine. False if that cannot be read.
        """
        match = _ADDRESS.fullmatch(pci_bus_id.lower())
        if match is None:
            return False
        try:
            driver = (self._devices / f"{int(match[1], 16):04x}:{match[2]}" / "driver").readlink().name
        except OSError:
            return False
        return _VFIO.fullmatch(driver) is not None
