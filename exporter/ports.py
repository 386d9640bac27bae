"""What the exporter needs from outside. Adapters implement it; tests have fakes of the same form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from dracaena.api.podlist import PodlistEntry
from dracaena.exporter.series.readings import DriverReading, GpuQuantity, ProcessPlace


class DeviceSource(Protocol):
    """The GPU driver. For one thread, except doing()."""

    def read(self, wanted: Collection[GpuQuantity]) -> DriverReading:
        """Read all GPUs. Raises GpuDriverTroubleError if the driver cannot be used."""
        ...

    def obey(self) -> None:
        """Close the driver if somebody has requested that."""
        ...

    def doing(self) -> str:
        """Return which call runs right now, empty: none. From any thread."""
        ...

    def close(self) -> None:
        """Close the driver."""
        ...


@dataclass(frozen=True, slots=True)
class PodlistLook:
    """One look at podlist.json."""

    entries: tuple[PodlistEntry, ...]
    """Entries of the last file that could be read."""
    age_s: float | None
    """Seconds since the file's modification time; None: there is no file."""
    error: str = ""
    """Why the current file cannot be read, as one word: `absent`, `unreadable`, `malformed`; empty: it can."""
    message: str = ""
    """The same in a sentence."""


class PodlistSource(Protocol):
    """podlist.json."""

    def look(self) -> PodlistLook:
        """Return its current content. Costs one stat while the file stays the same. Never raises."""
        ...


class ProcessPlaces(Protocol):
    """The cgroups of processes."""

    def place_of(self, pid: int) -> ProcessPlace | None:
        """Return where a process runs, None if it has ended."""
        ...
