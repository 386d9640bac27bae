"""The NVIDIA driver's files below its root: `/` of the host, or the folder of a driver container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from dracaena.host.adapters.gpu_driver.ld_so_cache import CachedLibrary, read_ld_so_cache

LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
)
"""Where distributions put the driver's libraries, in the order in which they are searched."""

LD_SO_CACHE = "/etc/ld.so.cache"
"""Lists the libraries in all other folders that the host's own programs use."""

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9_.+@~%=,/ -]*", re.ASCII)
"""Paths that can be in a CDI spec. A colon separates paths in the hooks' arguments and in lists of folders."""

_MOST_LINKS = 40
"""Most symbolic links followed for one path, like the kernel (MAXSYMLINKS); more is a loop."""


def is_plain_path(path: str) -> bool:
    """Whether a text is an absolute normalized path that can be in a CDI spec."""
    return _PLAIN_PATH.fullmatch(path) is not None and os.path.normpath(path) == path


class GpuDriverRoot:
    """Looks up paths as a process with this root would see them: an absolute link stays below the root.

    Names with anything but plain ASCII characters are ignored: a driver has none. Use one instance per look at the
    root: it reads the loader's cache once.
    Each prepare looks up some hundred paths: strings take a quarter of the time that Path objects do.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self._prefix = "" if str(self.root) == "/" else str(self.root)

    def resolve(self, path: str) -> PurePosixPath | None:
        """Return a path with all links followed, still relative to the root; None if nothing is there."""
        pending = path.split("/")[::-1]
        found = ""  # the root; otherwise it begins with a slash
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                found = found.rpartition("/")[0]
                continue
            step = f"{found}/{part}"
            try:
                target = os.readlink(self._prefix + step)  # noqa: PTH115 - a Path costs four times as much
            except OSError:
                found = step  # no link, or nothing there, which the end of the walk finds out
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            found = "" if target.startswith("/") else found
            pending += target.split("/")[::-1]
        found = found or "/"
        if not _PLAIN_PATH.fullmatch(found) or not os.path.exists(self._prefix + found):  # noqa: PTH110 - as above
            return None
        return PurePosixPath(found)

    def on_disk(self, path: PurePosixPath) -> Path:
        """Return where this process finds a path of the root."""
        return Path(f"{self._prefix}{path}")

    def facts(self, path: PurePosixPath) -> os.stat_result | None:
        """Return the stat of a path of the root, of a link itself; None if it cannot be read."""
        try:
            return self.on_disk(path).lstat()
        except OSError:
            return None

    def library(self, name: str) -> PurePosixPath | None:
        """Return the file of a library by its name, links followed as in resolve(); None if no folder has it.

        The usual folders come before the loader's cache, so that a driver that was just installed is found before
        ldconfig has run.
        """
        found = (self.resolve(path) for path in self._places(name))
        return next((path for path in found if path is not None), None)

    def program(self, name: str, folders: Sequence[str]) -> PurePosixPath | None:
        """Return a program in the first of some folders that has it, links followed; None if none has it."""
        found = (self.resolve(f"{folder}/{name}") for folder in folders)
        return next((path for path in found if path is not None), None)

    def _places(self, name: str) -> Iterator[str]:
        yield from (f"{folder}/{name}" for folder in LIBRARY_FOLDERS)
        yield from (library.path for library in self.cached_libraries if library.name == name)

    @cached_property
    def cached_libraries(self) -> tuple[CachedLibrary, ...]:
        """The libraries in the loader's cache of this root, in its order."""
        cache = self.resolve(LD_SO_CACHE)
        return read_ld_so_cache(self.on_disk(cache)) if cache is not None else ()

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        resolved = self.resolve(folder)
        return tuple(sorted(self._scan(resolved))) if resolved is not None else ()

    def _scan(self, folder: PurePosixPath) -> Iterator[str]:
        try:
            yield from (path.name for path in self.on_disk(folder).iterdir() if _PLAIN_PATH.fullmatch(f"/{path.name}"))
        except OSError:
            return
