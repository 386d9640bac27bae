"""podlist.json in kubelet's folder, read again when it changed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from dracaena.api.errors import BadInputError
from dracaena.api.podlist import PODLIST, PodlistEntry, decode_podlist
from dracaena.exporter.ports import PodlistLook

MOST_BYTES = 16 << 20
"""A node has some hundred containers with GPUs at most, of some hundred bytes each. A larger file is not a podlist."""

_TICK_NS = 50_000_000
"""The kernel takes file times from a clock that ticks every 1 to 10 ms: a file that changed within the last ticks may
change once more without a new time, so it is read again."""

Stamp = tuple[int, int, int]


class PodlistFile:
    """Implements dracaena.exporter.ports.PodlistSource. For one thread."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = folder / PODLIST
        self._now_s = now_s
        self._stamp: Stamp | None = None
        self._entries: tuple[PodlistEntry, ...] = ()
        self._error = ("", "")

    def look(self) -> PodlistLook:
        """See PodlistSource."""
        try:
            seen = self._path.stat()
        except OSError as error:
            self._stamp = None
            word = "absent" if isinstance(error, FileNotFoundError) else "unreadable"
            return PodlistLook(self._entries, None, word, f"{self._path}: {error.strerror}")
        stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if stamp != self._stamp:
            self._error = self._read()
            settled = seen.st_mtime_ns < int(self._now_s() * 1e9) - _TICK_NS
            self._stamp = stamp if settled else None
        return PodlistLook(self._entries, self._now_s() - seen.st_mtime, *self._error)

    def _read(self) -> tuple[str, str]:
        """Read the file; return what is wrong with it, as a word and as a sentence: then the last content stays."""
        try:
            data = _content(self._path)
        except OSError as error:
            return "unreadable", f"{self._path}: {error.strerror}"
        try:
            self._entries = decode_podlist(data)
        except BadInputError as error:
            return "malformed", f"{self._path}: {error}"
        return "", ""


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # never wait for the writer of a pipe
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a plain file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(0, f"it has more than {MOST_BYTES >> 20} MiB")
    return data
