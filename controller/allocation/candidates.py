"""All sets of GPUs that could be taken, best first, in an order that never changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final

from dracaena.controller.allocation.box import mask_of, ordinals_of
from dracaena.controller.allocation.scoring import BoxScores, Score

MAX_CANDIDATES: Final = comb(16, 8)
"""Sets that are compared one by one: every count on every node of up to 16 GPUs. Larger boxes are not sold today."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One set of GPUs (mask over ordinals) and its score."""

    mask: int
    score: Score


def can_enumerate(free: int, count: int) -> bool:
    """Return whether all sets of `count` among the free GPUs can be compared."""
    return comb(free.bit_count(), count) <= MAX_CANDIDATES


def candidates_best_first(scores: BoxScores, free: int, count: int, beside: int = 0) -> Iterator[Candidate]:
    """Yield every set of `count` free GPUs, best first; of equal ones the one with the lower ordinals first.

    `beside` are GPUs that the pod holds already: sets are compared together with them.

    Lazy: bandwidth is the first part of a score, so the other parts are computed only for the sets that share the best
    bandwidth, then for the next. Cost: as many bandwidths as there are sets, most of them remembered.
    """
    by_bandwidth: dict[int, list[int]] = {}
    for chosen in combinations(ordinals_of(free), count):
        mask = mask_of(chosen)
        by_bandwidth.setdefault(scores.bandwidth_gb_s(mask | beside), []).append(mask)
    for bandwidth in sorted(by_bandwidth, reverse=True):
        # sorted() is stable and the masks come in the order of their ordinals: ties keep that order.
        scored = (Candidate(mask, scores.score(free, mask, beside)) for mask in by_bandwidth[bandwidth])
        yield from sorted(scored, key=lambda candidate: candidate.score.rank())
