"""Writes the least shared object that a loader, and a reader of its sections, would recognise: for trees of drivers."""

from __future__ import annotations

import struct

_HEAD = 64 + 2 * 56


def library(soname: str | None, machine: int = 62) -> bytes:
    """Return an ELF file with this DT_SONAME; 62 is x86-64, 183 is AArch64."""
    strings = b"\0" + (soname or "").encode() + b"\0"
    base = 0x10000  # where the file is loaded: addresses and offsets must not be taken for each other
    dynamic_at = _HEAD + len(strings)
    entries = [(5, base + _HEAD), (10, len(strings)), *([(14, 1)] if soname is not None else []), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    size = dynamic_at + len(dynamic)
    header = struct.pack(
        "<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 3, machine, 1, 0, 64, size, 0, 64, 56, 2, 64, 3, 1
    )
    texts = struct.pack("<IIQQQQIIQQ", 0, 3, 2, base + _HEAD, _HEAD, len(strings), 0, 0, 1, 0)
    table = struct.pack("<IIQQQQIIQQ", 0, 6, 3, base + dynamic_at, dynamic_at, len(dynamic), 1, 0, 8, 16)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    dynamic_segment = struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, base + dynamic_at, base + dynamic_at, len(dynamic), len(dynamic), 8
    )
    return header + load + dynamic_segment + strings + dynamic + bytes(64) + texts + table
