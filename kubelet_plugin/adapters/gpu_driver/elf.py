"""The name by which the dynamic loader knows a library, and the machine that it is for (ELF, 64 bit)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<4s5B7xHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_NULL, _STRING_TABLE, _SONAME = 0, 5, 14
_MOST_PROGRAM_HEADERS = 128
"""A library has about ten. The limit keeps us from reading a broken file to its end."""
_MOST_DYNAMIC_BYTES = 1 << 16
_MOST_NAME_BYTES = 256

_LIBRARY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@~-]*", re.ASCII)
"""A name that can be a single part of our paths: neither `..` nor several parts."""

_MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine in the words of the GNU triplets."""


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What the header of a library says."""

    machine: str | None
    soname: str | None
    """DT_SONAME."""


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_elf(path: Path) -> ElfFacts | None:
    """Return the facts of a library, None if it is not a 64-bit little-endian ELF file or cannot be read.

    Cost: a few small reads, whatever the size of the file.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, ValueError):
        return None


def _read(file: BinaryIO) -> ElfFacts | None:
    header = _HEADER.unpack(file.read(_HEADER.size))
    magic, elf_class, data = header[:3]
    if magic != b"\x7fELF" or elf_class != 2 or data != 1:
        return None
    machine, table, entry_size, count = header[7], header[10], header[14], header[15]
    if entry_size != _PROGRAM_HEADER.size or count > _MOST_PROGRAM_HEADERS:
        return None
    segments = _segments(_at(file, table, entry_size * count))
    return ElfFacts(_MACHINES.get(machine), _soname(file, segments))


def _segments(table: bytes) -> list[_Segment]:
    return [
        _Segment(kind, offset, address, size)
        for kind, _, offset, address, _, size, _, _ in _PROGRAM_HEADER.iter_unpack(table)
    ]


def _soname(file: BinaryIO, segments: list[_Segment]) -> str | None:
    dynamic = next((segment for segment in segments if segment.kind == _DYNAMIC_SEGMENT), None)
    if dynamic is None:
        return None
    size = min(dynamic.size, _MOST_DYNAMIC_BYTES)
    entries = dict(_DYNAMIC.iter_unpack(_at(file, dynamic.offset, size - size % _DYNAMIC.size)))
    if _SONAME not in entries or _STRING_TABLE not in entries:
        return None
    place = _offset_of(entries[_STRING_TABLE] + entries[_SONAME], segments)
    if place is None:
        return None
    name, end, _ = _at(file, place, _MOST_NAME_BYTES).partition(b"\0")
    text = name.decode("ascii", errors="replace")
    return text if end and _LIBRARY_NAME.fullmatch(text) else None


def _offset_of(address: int, segments: list[_Segment]) -> int | None:
    for segment in segments:
        if segment.kind == _LOAD and segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    return None


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
