"""Which device nodes open a MIG device, as the NVIDIA driver reports it in /proc.

A process may use a MIG device if it can open two nodes of /dev/nvidia-caps besides the parent's own: one for the GPU
instance, one for the compute instance. Their minor numbers are in driver/nvidia-caps/mig-minors, all in one file, and
again in driver/nvidia/capabilities, one file per instance. Both number GPUs by their own minor number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_LINE = re.compile(r"(gpu[0-9]+/gi[0-9]+(?:/ci[0-9]+)?)/access ([0-9]+)", re.ASCII)
_MINOR = re.compile(r"DeviceFileMinor:\s*([0-9]+)", re.ASCII)


class MigAccess:
    """Reads below `root`, normally /proc. Missing information is None, never an error."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = Path(root)

    def minors(self, gpu_minor: int, gpu_instance_id: int, compute_instance_id: int) -> tuple[int, int] | None:
        """Return the numbers of the two /dev/nvidia-caps/nvidia-cap<n>; None unless both are known."""
        table = self._table()
        instance = f"gpu{gpu_minor}/gi{gpu_instance_id}"
        one = self._minor(table, instance, f"gpu{gpu_minor}/mig/gi{gpu_instance_id}")
        place = f"gpu{gpu_minor}/mig/gi{gpu_instance_id}/ci{compute_instance_id}"
        other = self._minor(table, f"{instance}/ci{compute_instance_id}", place)
        return (one, other) if one is not None and other is not None else None

    def _minor(self, table: Mapping[str, int], key: str, folder: str) -> int | None:
        if key in table:
            return table[key]
        match = _MINOR.search(_text(self._root / "driver/nvidia/capabilities" / folder / "access"))
        return int(match[1]) if match is not None else None

    def _table(self) -> Mapping[str, int]:
        lines = _text(self._root / "driver/nvidia-caps/mig-minors").splitlines()
        matches = (_LINE.fullmatch(line.strip()) for line in lines)
        return {match[1]: int(match[2]) for match in matches if match is not None}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
