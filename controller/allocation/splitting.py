"""How the GPUs of a pod are dealt out among its requests, once the pod's whole set is chosen.

The pod as a whole gets the best-linked set there is: its containers talk to each other more than to anybody else. Only
then each request gets the part of it that is linked best, the sum over all requests being what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.controller.allocation.box import mask_of, ordinals_of
from dracaena.controller.allocation.requirement import meets
from dracaena.controller.allocation.scoring import BoxScores


@dataclass(frozen=True, slots=True)
class Demand:
    """How many GPUs one request wants, and what must hold for them."""

    count: int
    requirement: Requirement = Requirement.BEST_EFFORT


def split(scores: BoxScores, mask: int, demands: Sequence[Demand]) -> tuple[int, ...] | None:
    """Deal the GPUs of `mask` out among the demands, whose counts add up to it; None when no way meets all.

    The sum of the parts' collective bandwidths is the greatest possible; of equal ways the first in the order of
    ordinals. Cost: grows with the ways to divide the set among unequal demands; equal demands cost one way.
    """
    found = _Splitter(scores, demands).best(mask, 0)
    return found[1] if found is not None else None


class _Splitter:
    def __init__(self, scores: BoxScores, demands: Sequence[Demand]) -> None:
        self._scores = scores
        self._demands = demands
        self._known: dict[tuple[int, int], tuple[int, tuple[int, ...]] | None] = {}

    def best(self, left: int, index: int) -> tuple[int, tuple[int, ...]] | None:
        """Return (sum of bandwidths, parts) for the demands from `index` on."""
        if index == len(self._demands):
            return 0, ()
        if (left, index) not in self._known:
            self._known[left, index] = self._search(left, index)
        return self._known[left, index]

    def _search(self, left: int, index: int) -> tuple[int, tuple[int, ...]] | None:
        best: tuple[int, tuple[int, ...]] | None = None
        for part in self._parts(left, index):
            if not meets(self._scores.box, part, self._demands[index].requirement):
                continue
            rest = self.best(left & ~part, index + 1)
            if rest is None:
                continue
            total = self._scores.bandwidth_gb_s(part) + rest[0]
            if best is None or total > best[0]:
                best = total, (part, *rest[1])
        return best

    def _parts(self, left: int, index: int) -> Iterator[int]:
        """Yield the parts that this demand may take, in the order of their ordinals.

        When all demands from here on are equal, some part holds the lowest ordinal: it may as well be this one.
        """
        count = self._demands[index].count
        ordinals = ordinals_of(left)
        if len(set(self._demands[index:])) == 1:
            yield from (mask_of((ordinals[0], *others)) for others in combinations(ordinals[1:], count - 1))
        else:
            yield from (mask_of(part) for part in combinations(ordinals, count))
