"""Which device node each GPU has right now, as the NVIDIA driver says in /proc, without NVML."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

from dracaena.api.errors import TemporaryError

MINOR_LINE = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.ASCII | re.MULTILINE)

READ_S = 2.0
"""Longest wait for the files, which take some microseconds each: the node's lock is held meanwhile, and a driver that
hangs may hang here as well."""


class GpuMinors:
    """Reads below `root`, normally /proc. From any thread, one at a time: callers hold the node's lock."""

    def __init__(self, root: str = "/proc") -> None:
        self._folder = Path(root, "driver/nvidia/gpus")
        self._thread: threading.Thread | None = None  # of a read that never ended
        self._was_there = False

    def read(self) -> Mapping[str, int] | None:
        """Return minors by PCI address, `dddd:bb:dd.f` in lower case; None if the folder has never been there.

        A GPU that the driver has lost, or that has another driver now, is left out; so are all once the driver is
        unloaded. Raises TemporaryError if the driver does not answer in time; the next read does not begin before the
        last one has ended.
        """
        found: dict[str, int] = {}
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, args=(found,), name="gpu-minors", daemon=True)
            self._thread.start()
            self._thread.join(READ_S)
        if self._thread.is_alive():
            raise TemporaryError(f"the NVIDIA driver does not let us read {self._folder}: it may hang, see dmesg")
        self._thread = None
        return found if self._was_there else None

    def _read(self, found: dict[str, int]) -> None:
        """Read <PCI address>/information of each GPU."""
        self._was_there = self._was_there or self._folder.is_dir()
        for file in sorted(self._folder.glob("*/information")):
            try:
                match = MINOR_LINE.search(file.read_text(encoding="ascii", errors="replace"))
            except OSError:
                continue  # it has just disappeared
            if match is not None:
                found[file.parent.name.lower()] = int(match[1])
