"""What the exporter needs of the world. Adapters implement it; tests have fakes of the same form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from dracaena.api.podlist import PodlistEntry
from dracaena.exporter.series.readings import DriverReading, GpuQuantity, ProcessPlace


class DeviceSource(Protocol):
    """The GPU driver. One thread, but for doing()."""

    def read(self, wanted: Collection[GpuQuantity]) -> DriverReading:
        """Read all GPUs. Raises GpuDriverTroubleError where the driver cannot be used."""
        ...

    def obey(self) -> None:
        """Let go of the driver where somebody has asked for that."""
        ...

    def doing(self) -> str:
        """Return which call runs right now, empty: none. From any thread."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


@dataclass(frozen=True, slots=True)
class PodlistLook:
    """One look at podlist.json."""

    entries: tuple[PodlistEntry, ...]
    """Those of the last file that could be read."""
    age_s: float | None
    """Since the file's time of change; None: there is no file."""
    error: str = ""
    """Why the file of now cannot be read, as one word: `absent`, `unreadable`, `malformed`; empty: it can."""
    message: str = ""
    """The same in a sentence."""


class PodlistSource(Protocol):
    """podlist.json."""

    def look(self) -> PodlistLook:
        """Return what it says now. Costs one stat while the file stays the same. Raises nothing."""
        ...


class ProcessPlaces(Protocol):
    """The cgroups of processes."""

    def place_of(self, pid: int) -> ProcessPlace | None:
        """Return where a process runs, None where it has ended."""
        ...
