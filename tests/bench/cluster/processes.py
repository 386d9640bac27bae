"""What running programs cost: CPU seconds and memory, as the kernel counts them (proc(5))."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB of a process."""

    now: float
    peak: float
    """The most since its start."""


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, user and system, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> Memory:
    """Return the resident memory of a process."""
    said = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    return Memory(*(int(said[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")))
