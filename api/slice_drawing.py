"""Draws the memory slices of a GPU that is cut on demand, for people to read: for all commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from dracaena.api.attributes import MAX_MEMORY_SLICES
from dracaena.api.devicepool import DecodedMig

CELL: Final = 3
"""Characters of a slice: the `7g` of a profile and a space."""

FREE: Final = "·"
TAKEN: Final = "─"


def draw_slices(slices: int, parts: Iterable[tuple[int, int, str]]) -> str:
    """Return one line: a cell for each slice, MAX_MEMORY_SLICES at most, each part as a bar with the beginning of its
    profile.

    `parts`: start, number of slices and profile of each, without overlaps.
    `[4g───────── ·  ·  1g ·]` is 4g at 0 and 1g at 6 of eight slices. Cost: O(parts), whatever the numbers say.
    """
    slices = min(slices, MAX_MEMORY_SLICES)
    cells = [FREE.ljust(CELL)] * slices
    for start, size, profile in parts:
        for number in range(max(start, 0), min(start + size, slices)):
            beginning = profile.partition(".")[0][: CELL - 1] if number == start else ""
            width = CELL - 1 if number == start + size - 1 else CELL
            cells[number] = beginning.ljust(width, TAKEN).ljust(CELL)
    return f"[{''.join(cells).rstrip()}]"


@dataclass(frozen=True, slots=True)
class DrawnGpu:
    """A GPU that is cut on demand, with the parts of it that claims have."""

    uuid: str
    slices: int
    parts: tuple[DecodedMig, ...]
    """By start."""

    def __str__(self) -> str:
        parts = [(part.start or 0, part.size or 0, part.profile) for part in self.parts]
        return f"{self.uuid}  {draw_slices(self.slices, parts)}"


def cut_gpus(migs: Iterable[DecodedMig], taken: Collection[str]) -> tuple[DrawnGpu, ...]:
    """Return the GPUs of one pool of which claims have parts, in the order in which they are published.

    `migs` are all MIG devices of the pool, `taken` the names of those that claims have. A GPU has as many slices as its
    last part requires. Cost: O(MIG devices).
    """
    slices: dict[str, int] = {}
    parts: dict[str, list[DecodedMig]] = {}
    for mig in migs:
        if mig.start is None:
            continue
        slices[mig.parent_uuid] = max(slices.get(mig.parent_uuid, 0), mig.start + (mig.size or 0))
        if mig.name in taken:
            parts.setdefault(mig.parent_uuid, []).append(mig)
    return tuple(
        DrawnGpu(uuid, count, tuple(sorted(parts[uuid], key=lambda part: part.start or 0)))
        for uuid, count in slices.items()
        if uuid in parts
    )
