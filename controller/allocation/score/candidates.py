"""Sets of GPUs that could be taken, best first, in an order that never changes.

Parts of a score are computed only for sets that are equal in all parts before, so the best set of thousands costs
little more than their bandwidths; and of those the ones that cannot be best only get an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from dracaena.api.config.v1alpha1 import Objective
from dracaena.controller.allocation.score.box import KB_S_PER_GB_S, mask_of, ordinals_of
from dracaena.controller.allocation.score.class_table import ClassTable, whole_gb_s
from dracaena.controller.allocation.score.order import GROUP_SIZES, Order

MAX_SEEDS: Final = 64
"""GPUs from which sets are grown on a box that is too large to compare all: one choice stays below a second."""

Rank = TypeVar("Rank", int, tuple[int, int, int], tuple[int, int, int, int])
"""One part of a score, or some that are known together, as a key that sorts best first."""

Stage = Callable[[Sequence[int]], Iterator[list[int]]]
"""Splits sets by one part of the score: the best first, equal ones together and in the order in which they came."""


def best_first(
    table: ClassTable, free: int, masks: Sequence[int], order: Order, beside: int = 0
) -> Iterator[list[int]]:
    """Yield groups of sets that are equal in every part of the score, best first. Lazy.

    `masks` are sets of one size inside `free`; `beside` are GPUs that the pod holds already: sets are compared together
    with them.
    """
    return _refine(list(masks), _stages(table, free, order, beside), 0)


def _refine(masks: list[int], stages: Sequence[Stage], place: int) -> Iterator[list[int]]:
    if len(masks) <= 1 or place == len(stages):
        if masks:
            yield masks
        return
    for equal in stages[place](masks):
        yield from _refine(equal, stages, place + 1)


def _stages(table: ClassTable, free: int, order: Order, beside: int) -> list[Stage]:
    """Return the parts that can differ among sets of one node, in the order of order.Score."""
    sizes = [size for size in GROUP_SIZES if free.bit_count() >= size]

    def worth_left(size: int) -> Stage:
        return lambda masks: _by_worth_left(table, free, masks, size)

    bandwidth: list[Stage] = [lambda masks: _by_bandwidth(table, masks, beside)]
    bound: list[Stage] = [_by(lambda mask: table.bound_level(mask | beside))]
    damage: list[Stage] = []
    levels: list[Stage] = []
    if table.comparable:
        damage = [worth_left(size) for size in sizes]
        if not table.many_unlike:
            damage = [_by(lambda mask: table.left_rank(free ^ mask))]
        levels = [_by(lambda mask: -table.left_steps(free ^ mask))]
    pack = order.objective is Objective.PACK
    stages = [*damage, *bandwidth, *levels, *bound] if pack else [*bandwidth, *damage, *bound, *levels]
    numa = table.numa_nodes if order.numa_counts else _nothing
    stages.append(_by(lambda mask: (numa(mask | beside), *table.pair_rank(mask | beside))))
    if order.nic_counts:
        stages.append(_by(lambda mask: table.nic_distance(mask | beside)))
    return stages


def _nothing(_: int) -> int:
    return 0


def _by(key: Callable[[int], Rank]) -> Stage:
    """Return a stage that puts the sets with the least key first."""

    def split(masks: Sequence[int]) -> Iterator[list[int]]:
        groups: dict[Rank, list[int]] = {}
        for mask in masks:
            groups.setdefault(key(mask), []).append(mask)
        for value in sorted(groups):
            yield groups[value]

    return split


def _by_worth_left(table: ClassTable, free: int, masks: Sequence[int], size: int) -> Iterator[list[int]]:
    """Group sets by the whole GB/s that the groups among the other free GPUs can have."""
    equal: list[int] = []
    before = 0
    for worth, lefts in table.free_worths([free ^ mask for mask in masks], size):
        gb_s = whole_gb_s(worth)
        if equal and gb_s != before:
            yield equal
            equal = []
        before = gb_s
        equal += [free ^ left for left in lefts]
    yield equal


def _by_bandwidth(table: ClassTable, masks: Sequence[int], beside: int) -> Iterator[list[int]]:
    """Group sets by whole GB/s. What a set has at most decides when it is worth a minimum cut."""
    groups: dict[int, list[int]] = {}
    for mask in masks:
        groups.setdefault(table.most_kb_s(mask | beside) // KB_S_PER_GB_S, []).append(mask)
    while groups:
        most = max(groups)
        reached = []
        for mask in groups.pop(most):
            gb_s = table.gb_s(mask | beside)
            if gb_s == most:
                reached.append(mask)
            else:
                groups.setdefault(gb_s, []).append(mask)
        if reached:
            yield sorted(reached, key=ordinals_of)


def grown(table: ClassTable, free: int, count: int) -> Iterator[int]:
    """Yield sets grown from each free GPU by the one that is linked best to those taken, for boxes of too many unlike
    GPUs to compare all sets. Good sets, not proven the best. Cost: O(seeds × count × GPUs).
    """
    pairs = table.pairs_gb_s
    seen = set()
    for seed in ordinals_of(free)[:MAX_SEEDS]:
        least = {other: (pairs[seed][other], pairs[seed][other]) for other in ordinals_of(free) if other != seed}
        taken = [seed]
        while len(taken) < count and least:
            best = max(least, key=lambda other: (least[other], -other))
            del least[best]
            taken.append(best)
            for other, (slowest, total) in least.items():
                least[other] = min(slowest, pairs[best][other]), total + pairs[best][other]
        mask = mask_of(taken)
        if len(taken) == count and mask not in seen:
            seen.add(mask)
            yield mask


def in_order(masks: Iterable[int]) -> list[int]:
    """Sort sets by their ordinals."""
    return sorted(masks, key=ordinals_of)
