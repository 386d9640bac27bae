"""Finds the link matrix in a text and reads its lines: header, GPU rows, NIC rows. Checks only completeness."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dracaena.kubelet_plugin.discovery.topo import layouts
from dracaena.kubelet_plugin.discovery.topo.layouts import Header, Row, TopoTextError

_LINE_END = re.compile(r"\r\n|\r|\n")
EXPECTED_MATRIX = "the output of `nvidia-smi topo -m`: a header GPU0 GPU1 … and below it one row for each GPU"


@dataclass(frozen=True, slots=True)
class Table:
    """A matrix as printed: one row for each GPU of the header, in its order."""

    header: Header
    gpu_rows: tuple[Row, ...]
    nic_rows: tuple[Row, ...]
    """One for each NIC in the order of the header, or none at all (a Markdown table may leave them out)."""
    next_line: int
    """Index of the first line after the table."""


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without terminal codes. Raises TopoTextError if it is not text."""
    lines = _LINE_END.split(text)
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise TopoTextError(number, "a NUL character, as in a binary file", EXPECTED_MATRIX)
    if not text.strip():
        raise TopoTextError(1, "an empty text", EXPECTED_MATRIX)
    return [layouts.clean(line) for line in lines]


def read_table(lines: Sequence[str]) -> Table:
    """Return the first link matrix among the lines; everything around it is ignored.

    Raises TopoTextError if there is none, or a line of it is cut off, doubled or not understood. Cost: linear in the
    length of the text.
    """
    header_at, row_at = _find(lines)
    header = layouts.read_header(header_at + 1, lines[header_at])
    rows: dict[str, Row] = {}
    next_line = row_at
    for at, label in _row_lines(lines, row_at, header, rows):
        rows[label] = layouts.read_row(at + 1, lines[at], label, header)
        next_line = at + 1
    return Table(
        header,
        gpu_rows=_complete(header, [f"GPU{number}" for number in header.gpus], rows, lines, next_line),
        nic_rows=_complete(header, header.nics, rows, lines, next_line) if rows.keys() & set(header.nics) else (),
        next_line=next_line,
    )


def is_header_line(line: str) -> bool:
    """Whether a line looks like the header of another matrix."""
    return layouts.is_header(line)


def _find(lines: Sequence[str]) -> tuple[int, int]:
    """Return the positions of the header and of the first row: the first header that a row follows."""
    header_at: int | None = None
    stray: tuple[int, str] | None = None
    for at, line in enumerate(lines):
        if layouts.is_separator(line):
            continue
        if layouts.is_gpu_row(line):
            words = layouts.first_cells(line)
            if _is_p2p(words):
                stray = stray or (at, "a peer-to-peer matrix (nvidia-smi topo -p2p)")
            elif header_at is not None:
                return header_at, at
            elif words and layouts.is_link(words[0]):
                stray = stray or (at, f"row {layouts.row_label(line)} without a header above it")
        header_at = at if layouts.is_header(line) else None
    if stray is not None:
        raise TopoTextError(stray[0] + 1, stray[1], EXPECTED_MATRIX)
    raise TopoTextError(len(lines), f"no GPU matrix in {len(lines)} lines", EXPECTED_MATRIX)


def _is_p2p(words: Sequence[str]) -> bool:
    return any(word in layouts.P2P_STATUSES for word in words) and all(
        word == "X" or word in layouts.P2P_STATUSES for word in words
    )


def _row_lines(lines: Sequence[str], start: int, header: Header, rows: dict[str, Row]) -> Iterator[tuple[int, str]]:
    """Yield position and label of each row from `start` on, up to the first line that is not a row.

    A line directly below the rows that carries a row's label must be a row; after an empty line it may be prose.
    """
    columns = frozenset(header.columns)
    gap = False
    for at in range(start, len(lines)):
        line = lines[at]
        if layouts.is_separator(line):
            gap = True
            continue
        label = layouts.row_label(line)
        if label is None or layouts.is_header(line):
            return
        words = layouts.first_cells(line)
        linked = bool(words) and layouts.is_link(words[0])
        if label not in columns:
            if linked and not gap:
                raise TopoTextError(at + 1, f"a row of {label}", f"a row of a column of line {header.line}")
            return
        if gap and not linked:
            return
        if label in rows:
            raise TopoTextError(at + 1, f"a second row of {label}", f"one (the first is line {rows[label].line})")
        yield at, label
        gap = False


def _complete(
    header: Header, labels: Sequence[str], rows: dict[str, Row], lines: Sequence[str], next_line: int
) -> tuple[Row, ...]:
    missing = [label for label in labels if label not in rows]
    if missing:
        follows = next((line for line in lines[next_line:] if not layouts.is_separator(line)), None)
        seen = "the text ends" if follows is None else layouts.quote(follows.strip())
        raise TopoTextError(
            min(next_line + 1, len(lines)), seen, f"the row of {missing[0]} ({len(missing)} of {len(labels)} missing)"
        )
    return tuple(rows[label] for label in labels)
