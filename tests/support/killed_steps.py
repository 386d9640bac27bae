"""A process that ends in the middle of its file work, without a process of its own: quick enough for many."""

from __future__ import annotations

from pathlib import Path

from dracaena.kubelet_plugin.adapters.files.whole_files import FileSteps


class StopError(BaseException):
    """The process is killed: nothing that handles errors may see it."""


class KilledSteps(FileSteps):
    """Ends the process in one of its steps; what is half done stays."""

    def __init__(self, left: int) -> None:
        self.left = left

    def write(self, descriptor: int, data: bytes) -> None:
        self._count()
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._count()
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self._count()
        super().remove(path, folder)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StopError
