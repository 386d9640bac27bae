"""Writes the loader's cache as ldconfig does: glibc's sysdeps/generic/dl-cache.h."""

from __future__ import annotations

import struct
from collections.abc import Mapping

X86_64, AARCH64, I386 = 0x0303, 0x0A03, 0x0003


def ld_so_cache(libraries: Mapping[str, str], *, kind: int = X86_64, with_old_format: bool = False) -> bytes:
    """Return a cache with these libraries (name → path). With the old format in front as glibc before 2.32 wrote it."""
    table = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(libraries), 0, 2, 0)
    texts, entries = b"", b""
    at = len(table) + 24 * len(libraries)
    for name, path in libraries.items():
        entries += struct.pack("<iIIIQ", kind, at + len(texts), at + len(texts) + len(name) + 1, 0, 0)
        texts += f"{name}\0{path}\0".encode()
    old = struct.pack("<12sI", b"ld.so-1.7.0\0", 3) + b"\1" * 36 if with_old_format else b""
    return old + b"\0" * (-len(old) % 8) + table + entries + texts
