"""The pod of a process, by its cgroup.

A process cannot choose its cgroup, so this shows who uses a GPU whatever a program claims. Paths differ with the cgroup
driver (systemd, cgroupfs), the runtime, and the reader's cgroup namespace: only the pod's id in them is used. The
driver's process ids are those of the host, so this process must run in the host's PID namespace.
"""

from __future__ import annotations

import re
from pathlib import Path

from dracaena.exporter.series.readings import ProcessPlace

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""With `_` for `-` under systemd; 32 digits for static pods."""


class ProcessCgroups:
    """Implements dracaena.exporter.ports.ProcessPlaces."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._proc = Path(proc_root)

    def place_of(self, pid: int) -> ProcessPlace | None:
        """See ProcessPlaces. Takes some 20 microseconds."""
        try:
            text = (self._proc / str(pid) / "cgroup").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        return place_in(text)


def place_in(cgroup: str) -> ProcessPlace:
    """Return what the text of /proc/<pid>/cgroup says; of several lines (cgroup v1) the first that names a pod."""
    for line in cgroup.splitlines():
        pod = _POD.search(line)
        if pod is not None:
            return ProcessPlace(pod[1].replace("_", "-"))
    return ProcessPlace()
