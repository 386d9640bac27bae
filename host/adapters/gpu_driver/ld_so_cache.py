"""The dynamic loader's cache (/etc/ld.so.cache): which library is where, even in folders that only ldconfig knows.

The format is glibc's own (sysdeps/generic/dl-cache.h): a header, a table of entries, then the texts to which the
entries point. Until glibc 2.32 the file began with a table of an older format, which we skip. Only what this
project runs on is read: little-endian files, libraries of x86-64 and AArch64.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_OLD_MAGIC = b"ld.so-1.7.0\0"
_OLD_HEADER = struct.Struct("<12sI")
_OLD_ENTRY_BYTES = 12
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")

_BYTE_ORDERS = (0, 2)
"""Byte order in the header: not given (before glibc 2.33), or little-endian."""
_LIBRARIES = (0x0303, 0x0A03)
"""Flags of entries: ELF for glibc (3) of x86-64 (0x300) or 64-bit ARM (0xa00)."""

MAX_BYTES = 16 << 20
"""A full desktop has a cache of some hundred KiB; the limit keeps a broken file from filling the memory."""
MAX_TEXT_BYTES = 4096
"""PATH_MAX."""


@dataclass(frozen=True, slots=True)
class CachedLibrary:
    """One entry."""

    name: str
    """Its SONAME, by which programs ask for it."""
    path: str
    """Absolute, as a process with that root sees it."""


def read_ld_so_cache(file: Path) -> tuple[CachedLibrary, ...]:
    """Return the entries in order; none for a file that is missing, too large, or no cache.

    An entry that points outside the file, or to something other than a plain path, is left out.
    """
    try:
        if not file.is_file():
            return ()  # a pipe would be waited for
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError:
        return ()
    return parse_ld_so_cache(data) if len(data) <= MAX_BYTES else ()


def parse_ld_so_cache(data: bytes) -> tuple[CachedLibrary, ...]:
    """Return the entries of a cache; none if it is not a cache. Never raises."""
    start = _start(data)
    if start is None or len(data) < start + _HEADER.size:
        return ()
    magic, count, _, flags, _ = _HEADER.unpack_from(data, start)
    table = start + _HEADER.size
    if magic != _MAGIC or flags & 3 not in _BYTE_ORDERS or count > (len(data) - table) // _ENTRY.size:
        return ()
    entries = _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size])
    found = (_library(data, start + name, start + path) for kind, name, path, _, _ in entries if kind in _LIBRARIES)
    return tuple(library for library in found if library is not None)


def _start(data: bytes) -> int | None:
    """Return where the newer format begins, from which its offsets count."""
    if not data.startswith(_OLD_MAGIC):
        return 0
    if len(data) < _OLD_HEADER.size:
        return None
    _, count = _OLD_HEADER.unpack_from(data)
    end = _OLD_HEADER.size + int(count) * _OLD_ENTRY_BYTES
    return -(-end // 8) * 8  # the newer header is aligned to its widest number


def _library(data: bytes, name: int, path: int) -> CachedLibrary | None:
    library = CachedLibrary(_text(data, name), _text(data, path))
    return library if library.name and library.path.startswith("/") else None


def _text(data: bytes, offset: int) -> str:
    """Return a zero-terminated text, empty if there is none or it is not plain."""
    end = data.find(b"\0", offset, offset + MAX_TEXT_BYTES)
    text = data[offset:end].decode("ascii", errors="replace") if end >= 0 else ""
    return text if text.isascii() and text.isprintable() else ""
