"""Records whose time slices were set for shares, one file per GPU, besides the checkpoints of their claims."""

from __future__ import annotations

from typing import Final

import structlog

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.journals.time_slices import (
    TimeSliceRecord,
    decode_time_slices,
    encode_time_slices,
)

_PREFIX: Final = "time-slices-"
_SUFFIX: Final = ".json"

log = structlog.get_logger()


class TimeSliceRecords:
    """From any thread; the record of one GPU belongs to whoever holds its lock. All methods raise DracaenaError if a
    file cannot be read or written.
    """

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        """`lock` is the lock of the calls, which guards all writes on this node: note() and forget() take it."""
        self._files = files
        self._lock = lock
        self.boot_id = boot_id

    def gpus(self) -> tuple[DeviceName, ...]:
        """Return all GPUs with a record, from whatever boot; sorted."""
        names = (name for name in self._files.names(_SUFFIX) if name.startswith(_PREFIX))
        return tuple(sorted(DeviceName(name.removeprefix(_PREFIX).removesuffix(_SUFFIX)) for name in names))

    def of(self, gpu: DeviceName) -> TimeSliceRecord | None:
        """Return the record of a GPU in this boot, None if there is none."""
        data = self._files.read(_name(gpu))
        if data is None:
            return None
        try:
            found = decode_time_slices(data)
        except ValueError as error:
            log.error("record of time slices is broken: they count as never set", gpu=gpu, error=str(error))
            return None
        return found if found.boot_id == self.boot_id else None

    def note(self, gpu: DeviceName, record: TimeSliceRecord) -> None:
        """Record that the interval of a GPU is about to be set."""
        with self._lock.hold():
            self._files.write_if_changed(_name(gpu), encode_time_slices(record))

    def forget(self, gpu: DeviceName) -> None:
        """Record that nothing is left to be restored."""
        with self._lock.hold():
            self._files.remove(_name(gpu))


def _name(gpu: DeviceName) -> str:
    return f"{_PREFIX}{gpu}{_SUFFIX}"
