"""File work of a plugin that is killed or whose disk fails at any step, and what a search says of a fault."""

from __future__ import annotations

import errno
from pathlib import Path

from dracaena.host.adapters.files.whole_files import FileSteps

SWEEP_S = 300.0
"""Between two sweeps of the plugin."""


class Crashed(BaseException):
    """The process is gone in the middle of a step of file work."""


class Steps(FileSteps):
    """Crashes in the n-th step from now, or after it."""

    def __init__(self) -> None:
        self.left: int | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        self.step()
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self.step()
        super().rename(source, target, folder)

    def remove(self, path: Path, folder: int) -> None:
        self.step()
        super().remove(path, folder)

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crashed


class FailingSteps(Steps):
    """Besides, so many steps fail, beginning with the n-th from now."""

    def __init__(self, *, removals: bool) -> None:
        """`removals`: they may fail too."""
        super().__init__()
        self.good: int | None = None
        self.failing = 0
        self._removals = removals

    def remove(self, path: Path, folder: int) -> None:
        good, self.good = self.good, self.good if self._removals else None
        try:
            super().remove(path, folder)
        finally:
            self.good = self.good if self._removals else good

    def step(self) -> None:
        super().step()
        if self.good is None:
            return
        self.good -= 1
        if self.good < 0:
            self.failing -= 1
            if self.failing <= 0:
                self.good = None
            raise OSError(errno.EIO, "Input/output error")


class ViolationError(AssertionError):
    """A container can reach what is not its own, or a claim holds what nobody will let go of."""
