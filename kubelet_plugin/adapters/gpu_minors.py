"""Which device node each GPU has right now, as the NVIDIA driver tells in /proc: a read that never waits for a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.ASCII | re.MULTILINE)


def read_gpu_minors(proc_root: str = "/proc") -> Mapping[str, int]:
    """Return minors by PCI address, `dddd:bb:dd.f` in lower case; empty where the driver is not there or tells none.

    From driver/nvidia/gpus/<PCI address>/information. A GPU that the driver lost has no folder there.
    """
    found = {}
    for file in sorted(Path(proc_root, "driver/nvidia/gpus").glob("*/information")):
        try:
            match = _MINOR.search(file.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue  # it went this moment
        if match is not None:
            found[file.parent.name.lower()] = int(match[1])
    return found
