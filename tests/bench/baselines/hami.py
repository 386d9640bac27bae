"""HAMi with the `topology-aware` GPU policy.

Points of pairs as in go-gpuallocator, but NVSwitches are recognised: such a pair has the smaller link count of both
ends. Candidates stand in falling order of their index. One GPU: the one with the fewest points to the other candidates.
More: the set with the most points; what is left is not looked at. The first one found keeps a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Final

from bench.baselines.answer import NOT_RUN, REFUSED, Answer, Links, granted
from bench.baselines.pair_points import Points, pair_points

MOST_SETS: Final = comb(16, 8)


def choose(links: Links, free: tuple[int, ...], count: int) -> Answer:
    return topology_aware(pair_points(links, through_switches=True), free, count)


def topology_aware(points: Points, available: Sequence[int], count: int) -> Answer:
    candidates = sorted(available, reverse=True)
    if not 0 < count <= len(candidates):
        return REFUSED
    if count == len(candidates):
        return granted(candidates)
    if count == 1:
        return granted([min(candidates, key=lambda gpu: sum(points[gpu][other] for other in candidates))])
    if comb(len(candidates), count) > MOST_SETS:
        return NOT_RUN
    return granted(max(combinations(candidates, count), key=lambda chosen: _total(points, chosen)))


def numa_bound(numa_nodes: Sequence[int | None], available: Sequence[int], count: int) -> Answer:
    """Answer under the NUMA binding: cards are collected from the highest index down and dropped when the NUMA node
    changes.
    """
    collected: list[int] = []
    for gpu in sorted(available, reverse=True):
        if collected and numa_nodes[collected[-1]] != numa_nodes[gpu]:
            collected.clear()
        collected.append(gpu)
        if len(collected) == count:
            return granted(collected)
    return REFUSED


def _total(points: Points, chosen: Sequence[int]) -> int:
    return sum(points[a][b] for a, b in combinations(chosen, 2))
