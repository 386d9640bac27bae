"""Draws the memory slices of a GPU that is cut on demand, for people to read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CELL: Final = 3
"""Characters of a slice: the `7g` of a profile and a space."""

FREE: Final = "·"
TAKEN: Final = "─"
UNUSABLE: Final = "x"
"""A slice that some instance has which is none of ours."""


def draw_slices(slices: int, parts: Iterable[tuple[int, int, str]], foreign: Iterable[int] = ()) -> str:
    """Return one line: a cell for each slice, each part as a bar with what its profile begins with.

    `parts`: start, number of slices and profile of each, none above another. `foreign`: slices that are not ours to
    give. `[4g───────── ·  ·  1g ·]` is 4g at 0 and 1g at 6 of eight slices.
    """
    cells = [FREE.ljust(CELL)] * slices
    for number in foreign:
        if 0 <= number < slices:
            cells[number] = UNUSABLE.ljust(CELL)
    for start, size, profile in parts:
        bar = (profile.partition(".")[0][: CELL - 1].ljust(CELL * size - 1, TAKEN)).ljust(CELL * size)
        for number in range(max(start, 0), min(start + size, slices)):
            cells[number] = bar[CELL * (number - start) :][:CELL]
    return f"[{''.join(cells).rstrip()}]"
