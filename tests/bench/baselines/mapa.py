"""MAPA with its policy *preserve*, every job of several GPUs being one ring that is sensitive to bandwidth.

It walks all rings over all sets and keeps the one with the highest predicted bandwidth, a formula fitted on counts of
double NVLinks, single NVLinks and PCIe edges. Only a prediction above that of no ring at all wins, so that rings over
PCIe alone are refused where they predict less. One GPU: the set that leaves the most NVLink bandwidth among the others;
only more than nothing wins, so that it is refused where none is left. The first one found keeps a tie.

The fit knows three kinds of edges; this copy takes two NVLinks and more as double.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations
from math import comb, factorial
from typing import Final

from bench.baselines.answer import NOT_RUN, REFUSED, Answer, Links, granted

DOUBLE_GB_S: Final = 50
SINGLE_GB_S: Final = 25

MOST_RINGS: Final = 50_000
"""Walked in this copy (a second): every count of 8 GPUs, up to 4 of 16. The original walks each from every start."""


def choose(links: Links, free: tuple[int, ...], count: int) -> Answer:
    if len(free) < count:
        return REFUSED
    if count == 1:
        return _one(links, free)
    if comb(len(free), count) * factorial(count - 1) > MOST_RINGS:
        return NOT_RUN
    best = max(combinations(free, count), key=lambda chosen: best_prediction(links, chosen))
    return granted(best) if best_prediction(links, best) > predicted(0, 0, 0) else REFUSED


def predicted(x: int, y: int, z: int) -> float:
    """Return the predicted bandwidth in GB/s for counts of double NVLinks, single NVLinks and PCIe edges."""
    return (
        16.39670455 * x
        + 4.536821878 * y
        + 1.55623404 * z
        - 20.69484581 / (x + 1)
        - 9.467461958 / (y + 1)
        + 7.615106783 / (z + 1)
        - 7.973335727 * x * y
        + 12.73323772 * y * z
        - 4.195655221 * x * z
        - 8.413419363 / (x * y + 1)
        + 62.85125807 / (y * z + 1)
        + 27.41832588 / (x * z + 1)
        - 5.114108079 * x * y * z
        - 46.97390071 / (x * y * z + 1)
    )


@cache
def best_prediction(links: Links, chosen: tuple[int, ...]) -> float:
    """Return the highest prediction of all rings over a set."""
    return max(predicted(*_counts(links, ring)) for ring in _rings(chosen))


def _rings(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    first, *others = chosen
    for order in permutations(others):
        if len(order) < 2 or order[0] < order[-1]:  # the same ring the other way round
            yield (first, *order)


def _counts(links: Links, ring: Sequence[int]) -> tuple[int, int, int]:
    edges = [(ring[place - 1], ring[place]) for place in range(len(ring))]  # a ring of two has its edge twice
    nvlinks = [links.nvlinks[a][b] for a, b in edges]
    return sum(n >= 2 for n in nvlinks), sum(n == 1 for n in nvlinks), sum(n == 0 for n in nvlinks)


def _one(links: Links, free: tuple[int, ...]) -> Answer:
    def preserved(gpu: int) -> int:
        left = [other for other in free if other != gpu]
        return sum(_nvlink_gb_s(links.nvlinks[a][b]) for a, b in combinations(left, 2))

    best = max(free, key=preserved)
    return granted([best]) if preserved(best) > 0 else REFUSED


def _nvlink_gb_s(nvlinks: int) -> int:
    return DOUBLE_GB_S if nvlinks >= 2 else SINGLE_GB_S if nvlinks else 0
