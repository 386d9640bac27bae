"""The NVIDIA driver's files below its root: `/` of the host, or the folder of a driver container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
)
"""Where distributions put the driver's libraries, in the order in which they are searched."""

_MOST_LINKS = 40
"""Symbolic links followed for one path, as the kernel does (MAXSYMLINKS); more is a loop."""


class DriverRoot:
    """Looks up paths as a process with this root would see them: an absolute link stays below the root."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def resolve(self, path: str) -> PurePosixPath | None:
        """Return a path with all links followed, still without the root in front; None where nothing is there."""
        pending = list(reversed(PurePosixPath(path).parts[1:]))
        found = PurePosixPath("/")
        links = 0
        while pending:
            part = pending.pop()
            if part == "..":
                found = found.parent
                continue
            step = found / part
            try:
                target = self.on_disk(step).readlink()
            except OSError:
                found = step  # no link, or nothing there, which the end of the walk finds out
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            found = PurePosixPath("/") if target.is_absolute() else found
            pending += [piece for piece in reversed(target.parts) if piece != "/"]
        return found if self.on_disk(found).exists() else None

    def on_disk(self, path: PurePosixPath) -> Path:
        """Return where this process finds a path of the root."""
        return self.root / path.relative_to("/")

    def library(self, name: str) -> PurePosixPath | None:
        """Return the file of a library by its name, links followed, as resolve() does; None when no folder has it."""
        found = (self.resolve(f"{folder}/{name}") for folder in LIBRARY_FOLDERS)
        return next((path for path in found if path is not None), None)

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; none when there is no such folder."""
        resolved = self.resolve(folder)
        return tuple(sorted(self._scan(resolved))) if resolved is not None else ()

    def _scan(self, folder: PurePosixPath) -> Iterator[str]:
        try:
            yield from (entry.name for entry in self.on_disk(folder).iterdir())
        except OSError:
            return
