"""A disk that is full from some write on; removing still works, as on a real one."""

from __future__ import annotations

import errno
import os

from dracaena.host.adapters.files.whole_files import FileSteps


class FullDisk(FileSteps):
    """Takes so many writes and no more. `overwrites`: whether a file can still be written over, as on most file
    systems, but for those that copy on write."""

    def __init__(self, writes_left: int, *, overwrites: bool = True) -> None:
        self._writes_left = writes_left
        self._overwrites = overwrites

    def overwrite(self, descriptor: int, data: bytes) -> None:
        if not self._overwrites:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().overwrite(descriptor, data)

    def write(self, descriptor: int, data: bytes) -> None:
        if self._writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writes_left -= 1
        super().write(descriptor, data)
