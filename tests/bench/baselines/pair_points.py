"""Points of a pair of GPUs as go-gpuallocator gives them; HAMi has the same table."""

from __future__ import annotations

from functools import cache
from typing import Final

from bench.baselines.answer import Links
from dracaena.api.links import LinkLevel

Points = tuple[tuple[int, ...], ...]
"""Points of each pair, 0 on the diagonal."""

LEVEL_POINTS: Final = {
    LinkLevel.SYS: 10,
    LinkLevel.NODE: 20,
    LinkLevel.PHB: 30,
    LinkLevel.PXB: 40,
    LinkLevel.PIX: 50,
    LinkLevel.PSB: 60,
}
NVLINK_POINTS: Final = 100


@cache
def pair_points(links: Links, *, through_switches: bool) -> Points:
    """Return the sum over all link entries of each pair: its PCIe level and its NVLinks.

    `through_switches`: whether links that end at an NVSwitch count; go-gpuallocator looks for the peer's PCI address at
    the other end and so counts none of them.
    """

    def points(a: int, b: int) -> int:
        level = links.levels[a][b]
        nvlinks = links.nvlinks[a][b] if through_switches or not links.switched else 0
        return (LEVEL_POINTS[level] if level is not None else 0) + NVLINK_POINTS * nvlinks

    gpus = range(links.gpu_count)
    return tuple(tuple(0 if a == b else points(a, b) for b in gpus) for a in gpus)
