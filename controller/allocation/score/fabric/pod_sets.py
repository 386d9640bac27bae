"""What sets of GPUs are worth to a pod of several claims where Fabric Manager links only whole partitions.

docs/design/fabric-partitions.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice, product

from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.score.box import KB_S_PER_GB_S, mask_of, ordinals_of
from dracaena.controller.allocation.score.box_tables import STEP_BITS
from dracaena.controller.allocation.score.collective import LEVEL_STEP
from dracaena.controller.allocation.score.fabric.claim_gpus import ClaimGpus, LinkedWorths
from dracaena.controller.allocation.score.order import DEFAULT_ORDER, Order, Score
from dracaena.controller.allocation.score.shares import MAX_SPLITS


class PodSets:
    """What sets of GPUs are worth to a pod that has several claims, or already has GPUs. One thread at a time.

    No NVLink joins two claims. So a set is first divided among the claims such that the sum of what their parts are
    worth, weighted by each claim's GPUs, is greatest; and the reported bandwidth is that of the mean GPU within its
    claim. With several claims, figures of pairs are those over PCIe.
    """

    def __init__(self, table: LinkedWorths, claims: Sequence[ClaimGpus], held: int, effort: Effort) -> None:
        """`held`: the GPUs that the pod already holds, including the claims' `base`. Sets that are looked at are
        charged to `effort`."""
        self.box, self.comparable, self.many_unlike = table.box, table.comparable, table.many_unlike
        self.free_worths, self.left_rank, self.left_steps = table.free_worths, table.left_rank, table.left_steps
        self.numa_nodes, self.nic_distance = table.numa_nodes, table.nic_distance
        self._table, self._claims, self._held, self._effort = table, tuple(claims), held, effort
        self._known: dict[tuple[int, int], tuple[int, tuple[int, ...]] | None] = {}

    def split(self, mask: int) -> tuple[int, ...] | None:
        """Return the part of each request, in order, or None when no way follows all rules. Of equal ways, the first in
        the order of ordinals."""
        best = self._best(mask, 0)
        return None if best is None else tuple(chain(*map(_split, self._claims, best[1])))

    def splits(self, mask: int) -> Iterator[tuple[int, ...]]:
        """Yield every way that follows all rules, best first by claims, then by requests; at most MAX_SPLITS ways among
        the claims are looked at."""
        every = sorted(islice(self._divisions(mask, 0), MAX_SPLITS), key=lambda one: -one[0])
        for _, sets in every:
            splits = (claim.splits(gpus) for claim, gpus in zip(self._claims, sets, strict=True))
            yield from (tuple(chain(*parts)) for parts in product(*splits))

    def claim_sets(self, mask: int) -> tuple[int, ...]:
        """Return all GPUs that each claim has when the pod gets a set that can be split."""
        best = self._best(mask, 0)
        assert best is not None
        return tuple(gpus | claim.base for gpus, claim in zip(best[1], self._claims, strict=True))

    def most_kb_s(self, mask: int) -> int:
        """Return an upper bound of a set's bandwidth, in kB/s that are whole GB/s."""
        return KB_S_PER_GB_S * self.gb_s(mask)

    def gb_s(self, mask: int) -> int:
        """Return the bandwidth of a set including the held GPUs, in whole GB/s."""
        return bandwidth_gb_s(self._table, self._sets(mask))

    def ring_gb_s(self, mask: int) -> int:
        """Return the slowest hop of the best rings, in whole GB/s."""
        return ring_gb_s(self._table, self._sets(mask))

    def bound_level(self, mask: int) -> int:
        """Return the LinkLevel that bounds the collectives."""
        return bound_level(self._table, self._sets(mask))

    def pair_rank(self, mask: int) -> tuple[int, int, int]:
        """Return worst_pair_gb_s and pair_sum_gb_s, both negative, and worst_level."""
        return pair_rank(self._table, mask, self._sets(mask))

    def score(self, free: int, chosen: int, held: int = 0, order: Order = DEFAULT_ORDER) -> Score:
        """Return the score of a set that can be split."""
        return score_of_claims(self._table, free, chosen, held, self.claim_sets(chosen), order)

    def _sets(self, mask: int) -> tuple[int, ...]:
        return self.claim_sets(mask & ~self._held)

    def _best(self, left: int, place: int) -> tuple[int, tuple[int, ...]] | None:
        """Return (sum of worths, GPUs of each) for the claims from `place` on."""
        if place == len(self._claims):
            return 0, ()
        if (left, place) not in self._known:
            # The greatest sum; of equal splits the first, as they come in the order of ordinals.
            best = max(self._splits(left, place), key=lambda split: split[0], default=None)
            self._known[left, place] = best
        return self._known[left, place]

    def _splits(self, left: int, place: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        claim = self._claims[place]
        for mask in self._parts(left, place):
            rest = self._best(left & ~mask, place + 1)
            if rest is not None and claim.split(mask) is not None:
                yield claim.weight * claim.worth(mask) + rest[0], (mask, *rest[1])

    def _divisions(self, left: int, place: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        if place == len(self._claims):
            yield 0, ()
            return
        claim = self._claims[place]
        for mask in self._parts(left, place):
            if claim.split(mask) is not None:
                for total, sets in self._divisions(left & ~mask, place + 1):
                    yield claim.weight * claim.worth(mask) + total, (mask, *sets)

    def _parts(self, left: int, place: int) -> Iterator[int]:
        """Yield the sets that a claim may get, in the order of ordinals; the last one gets what is left."""
        claim = self._claims[place]
        if place == len(self._claims) - 1:
            yield left
            return
        for chosen in combinations(ordinals_of(left & claim.eligible), claim.count):
            self._effort.charge(SET_STEPS, Work.SETS)
            yield mask_of(chosen)


def _split(claim: ClaimGpus, mask: int) -> tuple[int, ...]:
    parts = claim.split(mask)
    assert parts is not None
    return parts


def score_of_claims(
    table: LinkedWorths, free: int, chosen: int, held: int, claims: Sequence[int], order: Order = DEFAULT_ORDER
) -> Score:
    """Return the score of taking `chosen` out of the free GPUs. `claims` are the GPUs of each claim, including those of
    `held` (class_table.ClassTable.score)."""
    together = chosen | held
    score = table.score(free, chosen, held, order)
    worst_pair, pair_sum, worst_level = pair_rank(table, together, claims)
    return replace(
        score,
        bandwidth_gb_s=bandwidth_gb_s(table, claims),
        ring_gb_s=ring_gb_s(table, claims),
        ideal_gb_s=_mean(lambda gpus: table.ideal_gb_s(gpus.bit_count()), claims),
        bound_level=bound_level(table, claims),
        pair_sum_gb_s=-pair_sum,
        worst_pair_gb_s=-worst_pair,
        worst_level=worst_level,
    )


def pair_rank(table: LinkedWorths, together: int, claims: Sequence[int]) -> tuple[int, int, int]:
    """Return worst_pair_gb_s and pair_sum_gb_s, both negative, and worst_level: by their links if one claim has them
    all, else over PCIe."""
    return (table if tuple(claims) == (together,) else table.linked(0)).pair_rank(together)


def bandwidth_gb_s(table: LinkedWorths, claims: Sequence[int]) -> int:
    """Return the bandwidth of the mean GPU within its claim, in whole GB/s."""
    return _mean(table.kb_s, claims) // KB_S_PER_GB_S


def ring_gb_s(table: LinkedWorths, claims: Sequence[int]) -> int:
    """Return the slowest hop of the best ring for the mean GPU within its claim, in whole GB/s."""
    return _mean(table.ring_kb_s, claims) // KB_S_PER_GB_S


def bound_level(table: LinkedWorths, claims: Sequence[int]) -> int:
    """Return the LinkLevel that bounds the mean GPU of the claims with several GPUs; 0 without such a claim."""
    several = [gpus for gpus in claims if gpus & (gpus - 1)]
    return (
        LinkLevel.SYS - _mean(lambda gpus: table.rate(gpus) & (1 << STEP_BITS) - 1, several) * LEVEL_STEP
        if several
        else 0
    )


def _mean(figure: Callable[[int], int], claims: Sequence[int]) -> int:
    """Return the figure of the mean GPU; 0 without GPUs."""
    count = sum(map(int.bit_count, claims))
    return sum(gpus.bit_count() * figure(gpus) for gpus in claims) // count if count else 0
