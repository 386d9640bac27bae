"""Text for a terminal: rows in columns, paragraphs in lines."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

_WIDEST = 118
"""The widest paragraph: still easy to read, and used for logs."""
_NARROWEST = 40
"""Narrowest paragraph: on a narrower terminal its own line breaks do no more harm than ours."""


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield one line per row; all rows have the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines so that a terminal shows control characters and does not obey them: names come from outside."""
    print("\n".join(map(shown, lines)))


def shown(line: str) -> str:
    """Return a line with everything that is not a visible character escaped as in JSON."""
    if line.isprintable():
        return line
    from dracaena.validation import printable  # heavy, and almost never needed

    return printable(line)


def wrapped(text: str, *, first: int, rest: int) -> list[str]:
    """Return the lines of a paragraph for standard output. `first` and `rest` are the blanks before the first line and
    before the others; no name is cut at a dash."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDEST
    return textwrap.wrap(
        text,
        max(_NARROWEST, min(columns, _WIDEST)),
        initial_indent=" " * first,
        subsequent_indent=" " * rest,
        break_on_hyphens=False,
    )
