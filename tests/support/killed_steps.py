"""A process that ends in the middle of its file work, without a process of its own: quick enough for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dracaena.host.adapters.files.whole_files import FileSteps


class StopError(BaseException):
    """The process is killed: nothing that handles errors may see it."""


class CountedSteps(FileSteps):
    """Calls `count` before each step, which may end the process; what is half done stays."""

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count

    def write(self, descriptor: int, data: bytes) -> None:
        self._count()
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._count()
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self._count()
        super().remove(path, folder)


class KilledSteps(CountedSteps):
    """Ends the process in the step of that number from now on."""

    def __init__(self, left: int) -> None:
        super().__init__(self.step)
        self.left = left

    def step(self) -> None:
        """Count one more step, also of other work than that on files."""
        self.left -= 1
        if self.left == 0:
            raise StopError
