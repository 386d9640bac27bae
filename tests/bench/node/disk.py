"""What one replacement of a file with fsync costs here: all else of a prepare stands beside it."""

from __future__ import annotations

import os
import time
from pathlib import Path

REPLACEMENTS = 100


def replacement_s(folder: Path) -> tuple[float, ...]:
    """Return how long each of some replacements took: written, synced, renamed."""
    target, temporary = folder / "probe", folder / ".probe.tmp"
    took = []
    for _ in range(REPLACEMENTS):
        began_s = time.perf_counter()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, b"x" * 500)
        os.fsync(descriptor)
        os.close(descriptor)
        temporary.replace(target)
        took.append(time.perf_counter() - began_s)
    target.unlink()
    return tuple(took)


def file_system(folder: Path) -> str:
    """Return the type of the file system that a folder is on, as the kernel calls it."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split()
        if folder.resolve().is_relative_to(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]
