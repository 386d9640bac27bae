"""Reads the mode that Fabric Manager is started in from the file of NVIDIA's package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FILE: Final = "usr/share/nvidia/nvswitch/fabricmanager.cfg"
"""Below the root of the host (Fabric Manager User Guide, config options)."""

MOST_BYTES: Final = 64 << 10
"""The file has some 200 lines, nearly all of them comments."""

_MODE: Final = re.compile(rb"^\s*FABRIC_MODE\s*=\s*(\d{1,3})\s*$", re.MULTILINE)


def configured_mode(host_root: str) -> int | None:
    """Return FABRIC_MODE, the last one of several: 0 bare metal or passthrough of the whole board, 1 shared
    NVSwitch, 2 vGPU. None if the file is missing, cannot be read, or does not set it.
    """
    try:
        with Path(host_root, FILE).open("rb") as file:
            found = _MODE.findall(file.read(MOST_BYTES))
    except OSError:
        return None
    return int(found[-1]) if found else None
