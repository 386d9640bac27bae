"""The GPU topology scheduler extender of a Summer of Code project, its final code.

Its annotation numbers the links from near (PSB 1) to far (SYS 6), and the reader takes the numbers for NVML's, which
run the other way: the farthest pairs get the most points. NVLinks replace the level of a pair, 100 points a link.

* best_effort: go-gpuallocator's on these points, padding and shared arrays included.
* simple: takes the first `count` indices and leaves out those in use, so it may hand out fewer.

More than 6 NVLinks have no entry; this copy gives them the points of 6, which favours it.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from bench.baselines.answer import REFUSED, Answer, Fault, Links, granted
from bench.baselines.go_gpuallocator import best_effort
from bench.baselines.pair_points import Points
from dracaena.api.links import LinkLevel

LEVEL_POINTS: Final = {
    LinkLevel.PSB: 10,
    LinkLevel.PIX: 20,
    LinkLevel.PXB: 30,
    LinkLevel.PHB: 40,
    LinkLevel.NODE: 50,
    LinkLevel.SYS: 60,
}
MOST_NVLINKS: Final = 6


def choose_best_effort(links: Links, free: tuple[int, ...], count: int) -> Answer:
    return best_effort(inverted_points(links), free, (), count)


def choose_simple(links: Links, free: tuple[int, ...], count: int) -> Answer:
    taken = [gpu for gpu in range(count) if gpu in free]
    if not taken:
        return REFUSED
    return granted(taken) if len(taken) == count else Answer(tuple(taken), Fault.SHORT)


@cache
def inverted_points(links: Links) -> Points:
    def points(a: int, b: int) -> int:
        if nvlinks := links.nvlinks[a][b]:
            return 100 * min(nvlinks, MOST_NVLINKS)
        level = links.levels[a][b]
        return LEVEL_POINTS[level] if level is not None else 0

    gpus = range(links.gpu_count)
    return tuple(tuple(0 if a == b else points(a, b) for b in gpus) for a in gpus)
