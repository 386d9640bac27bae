"""Which GPUs of one node a pod gets: every legal choice, best first. The other rooms get all scores from here.

Several requests of a pod are served together: the set for all of them is chosen first, then divided (shares). Parts of
a score are computed only for sets that are equal in all earlier parts, so finding the best of thousands of sets costs
little more than computing their bandwidths; and sets that cannot be the best only get an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from heapq import merge
from itertools import groupby, islice
from operator import or_
from typing import Final, TypeVar

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, NO_POLICY, LinkBandwidth, TopologyPolicy
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Memo, Work
from dracaena.controller.allocation.score.box import (
    KB_S_PER_GB_S,
    Bandwidths,
    Box,
    canonical_mask,
    equals,
    make_rule,
    mask_of,
    ordinals_of,
    refined,
    representatives,
    rule_words,
)
from dracaena.controller.allocation.score.class_table import ClassTable, PartitionedTable, whole_gb_s
from dracaena.controller.allocation.score.fabric.claim_gpus import ClaimGpus
from dracaena.controller.allocation.score.fabric.pod_sets import PodSets, score_of_claims
from dracaena.controller.allocation.score.order import GROUP_SIZES, Order, Prices, Score, order_of
from dracaena.controller.allocation.score.shares import RequestShare, Splitter, most_served

MAX_SEEDS: Final = 64
"""GPUs from which sets are grown on a box that is too large to compare all sets: one choice stays below a second."""

Damage = tuple[int, ...]
"""Sorts sets of GPUs by what the rest of the node loses without them, least first."""

DAMAGE_STEPS: Final = 4 * SET_STEPS
"""A set of free GPUs that is scored alone: on 16 GPUs some 45 microseconds."""

MAX_DAMAGES: Final = 128
"""Sets of free GPUs of which all damages are kept, some 400 bytes each: what a decision needs that compares 120 pairs
of whole GPUs among 16 by what else is broken."""

NO_PARTITION: Final = "whose free GPUs are neither a partition together nor each one by itself"
"""Why a node with partitions gives nothing, in words that follow a count of nodes."""

Rank = TypeVar("Rank", int, tuple[int, int, int], tuple[int, int, int, int])
"""One part of a score, or several that are known together, as a key that sorts best first."""

Stage = Callable[[Sequence[int]], Iterator[list[int]]]
"""Groups sets by one part of the score: the best first, equal sets together and in the order in which they came."""


def best_first(
    table: ClassTable | PodSets, free: int, masks: Sequence[int], order: Order, held: int = 0
) -> Iterator[list[int]]:
    """Yield groups of sets that are equal in every part of the score, best first. Lazy.

    `masks` are sets of one size inside `free`; `held` are GPUs that the pod already holds: sets are compared together
    with them.
    """
    return _refine(list(masks), _stages(table, free, order, held), 0)


def _refine(masks: list[int], stages: Sequence[Stage], place: int) -> Iterator[list[int]]:
    if len(masks) <= 1 or place == len(stages):
        if masks:
            yield masks
        return
    for equal in stages[place](masks):
        yield from _refine(equal, stages, place + 1)


def _stages(table: ClassTable | PodSets, free: int, order: Order, held: int) -> list[Stage]:
    """Return the parts that can differ among sets of one node, in the order of order.Score."""
    sizes = [size for size in GROUP_SIZES if free.bit_count() >= size]

    def worth_left(size: int) -> Stage:
        return lambda masks: _by_worth_left(table, free, masks, size)

    speed: list[Stage] = [
        lambda masks: _by_bandwidth(table, masks, held),
        _by(lambda mask: -table.ring_gb_s(mask | held)),
    ]
    worst: list[Stage] = [_by(lambda mask: table.pair_rank(mask | held)[0])]
    bound: list[Stage] = [_by(lambda mask: table.bound_level(mask | held))]
    damage: list[Stage] = []
    levels: list[Stage] = []
    if table.comparable:
        damage = [_by(lambda mask: table.left_rank(free ^ mask))]
        if table.many_unlike:
            damage = [*map(worth_left, sizes), *damage]
        levels = [_by(lambda mask: -table.left_steps(free ^ mask))]
    stages = [*speed, *damage, *bound, *worst, *levels]
    numa = table.numa_nodes if order.numa_counts else _nothing
    stages.append(_by(lambda mask: (numa(mask | held), *table.pair_rank(mask | held)[1:])))
    if order.nic_counts:
        stages.append(_by(lambda mask: table.nic_distance(mask | held)))
    return stages


def _nothing(_: int) -> int:
    return 0


def _by(key: Callable[[int], Rank]) -> Stage:
    """Return a stage that puts the sets with the smallest key first."""

    def split(masks: Sequence[int]) -> Iterator[list[int]]:
        groups: dict[Rank, list[int]] = {}
        for mask in masks:
            groups.setdefault(key(mask), []).append(mask)
        for value in sorted(groups):
            yield groups[value]

    return split


def _by_worth_left(table: ClassTable | PodSets, free: int, masks: Sequence[int], size: int) -> Iterator[list[int]]:
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


def _by_bandwidth(table: ClassTable | PodSets, masks: Sequence[int], held: int) -> Iterator[list[int]]:
    """Group sets by whole GB/s. A set's upper bound decides when it is worth a minimum cut."""
    groups: dict[int, list[int]] = {}
    for mask in masks:
        groups.setdefault(table.most_kb_s(mask | held) // KB_S_PER_GB_S, []).append(mask)
    while groups:
        most = max(groups)
        reached = []
        for mask in groups.pop(most):
            gb_s = table.gb_s(mask | held)
            if gb_s == most:
                reached.append(mask)
            else:
                groups.setdefault(gb_s, []).append(mask)
        if reached:
            yield sorted(reached, key=ordinals_of)


def grown(table: ClassTable, free: int, count: int) -> Iterator[int]:
    """Yield sets grown from each free GPU by adding the GPU linked best to those taken, for boxes with too many unlike
    GPUs to compare all sets. Good sets, but not proven to be the best. Cost: O(seeds × count × GPUs).
    """
    pairs = table.pairs_kb_s
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


MAX_TABLES: Final = 64
"""Node models (times linkBandwidth figures) whose tables are kept; clusters have a handful."""

MAX_ORDERS: Final = 1_000
"""Orders and figures kept by demands, some 500 bytes each."""

MAX_ANSWERS: Final = 50_000
"""Remembered answers by (box, free GPUs, held GPUs, demands): 256 free masks times the usual counts of some boxes,
about 40 MB."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request of a pod wants: a number of GPUs under a policy. The hash is computed once: demands are part of
    the keys that are looked up for every node.
    """

    count: int
    policy: TopologyPolicy = NO_POLICY
    eligible: int | None = None
    """Mask of the GPUs that it may have; None: any."""
    claim: int = 0
    """Number of its claim. Like `base`, it only matters on a box with partitions. Demands of one claim are adjacent."""
    base: int = 0
    """Mask of the GPUs that the claim has besides the chosen ones; the same for all its demands."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.count, self.policy, self.eligible, self.claim, self.base)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of GPUs of one box for all requests of a pod."""

    mask: int
    parts: tuple[int, ...]
    """Mask of each request, in the order of the demands."""
    score: Score
    held: int = 0
    """GPUs of the same box that the pod already holds: score and links are about all of them together."""
    claims: tuple[int, ...] = ()
    """On a box with partitions the GPUs of each claim, unless one claim has them all."""

    @property
    def together(self) -> int:
        """Mask of all GPUs that the pod then has."""
        return self.mask | self.held


def _no_claims(_: int) -> tuple[int, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class BestTwo:
    """The best choice and the one after it."""

    best: Choice | None
    second: Choice | None
    shortfall: str = ""
    """Why there is no best. It follows a count of nodes: `2 with fewer than 8 free GPUs`."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """How the sets of one box compare for one pod, and how they are divided."""

    worths: ClassTable | PodSets
    split: Callable[[int], tuple[int, ...] | None]
    """Returns the part of each request; None if the pod may not have the set."""
    allows: Callable[[int], bool] | None
    """Returns whether it may; None: too costly to ask for all sets."""
    claims: Callable[[int], tuple[int, ...]] = _no_claims
    """Returns Choice.claims."""


class Engine:
    """Chooses. Holds only earlier results, within bounds. One thread at a time."""

    def __init__(self, prices: Prices | None = None, *, effort: Effort | None = None) -> None:
        """Compared sets are charged to `effort`, whose OverdueError every choosing method may raise."""
        self._effort = effort or Effort()
        self.prices = prices  # for reading; reprice() changes it
        self._tables: Memo[tuple[Box, LinkBandwidth], ClassTable] = Memo(MAX_TABLES)
        self._ideals: Memo[Box, tuple[int, ...]] = Memo(MAX_TABLES)  # of a pod of each of GROUP_SIZES, in GB/s
        self._orders: Memo[tuple[Demand, ...], tuple[Order, LinkBandwidth]] = Memo(MAX_ORDERS)
        self._answers: Memo[tuple[Box, int, int, tuple[Demand, ...]], BestTwo] = Memo(MAX_ANSWERS)
        self._damages: Memo[tuple[Box, int, tuple[Demand, ...]], dict[int, Damage]] = Memo(MAX_DAMAGES)

    def priced(self, shares: tuple[int, int, int], nodes: Counter[Box]) -> Prices | None:
        """Return the prices when pods ask for these shares of GPUs (Prices.shares) and there are this many nodes of
        each box; None when there is no node. Of more than MAX_TABLES boxes the most frequent ones count."""
        kinds = nodes.most_common(MAX_TABLES)
        total = sum(count for _, count in kinds)
        if not total:
            return None
        ideals = [self._ideals.get(box, partial(self._ideals_gb_s, box)) for box, _ in kinds]
        eights, fours, pairs = (
            max(1, sum(count * ideal[place] for (_, count), ideal in zip(kinds, ideals, strict=True)) // total)
            for place in range(len(GROUP_SIZES))
        )
        return Prices(shares, (eights, fours, pairs))

    def _ideals_gb_s(self, box: Box) -> tuple[int, ...]:
        return tuple(map(self.table(box).ideal_gb_s, GROUP_SIZES))

    def reprice(self, prices: Prices | None) -> None:
        """Score with other prices from now on. Tables stay; choices are worked out again."""
        self.prices = prices
        self._orders.clear()
        self._answers.clear()

    def damages(self, box: Box, free: int, demands: tuple[Demand, ...]) -> Callable[[int], Damage]:
        """Return a function that returns for a set of free GPUs what the rest loses without them. Sets whose GPUs are
        twins share one answer: behind NVSwitches all sets of a size do. Cost: DAMAGE_STEPS for a set that is new."""
        known = self._damages.get((box, free, demands), dict)
        twins = [kind & free for kind in self.table(box, demands).twins]

        def of(mask: int) -> Damage:
            alike = canonical_mask(twins, mask)
            if alike not in known:
                known[alike] = self.score(box, free, alike, demands).rank()
                self._effort.charge(DAMAGE_STEPS, Work.SETS)
            return known[alike]

        return of

    def best_two(self, box: Box, free: int, demands: tuple[Demand, ...], held: int = 0) -> BestTwo:
        """Return the first two of choices(), or why there is none. Cost: a look-up, once the state has been seen."""
        return self._answers.get((box, free, held, demands), lambda: self._compute_best_two(box, free, demands, held))

    def choices(self, box: Box, free: int, demands: Sequence[Demand], held: int = 0) -> Iterator[Choice]:
        """Yield every set that may be taken, best first; equal ones by their ordinals. Lazy.

        The policies' demands apply to the part of each request; the score is about all of them together with the GPUs
        `held`, which the pod already holds and which are not in `free`. Each set comes once, divided in the best way.
        """
        if sum(demand.count for demand in demands) == 0:
            return
        order, figures = self._order_and_rate(tuple(demands))
        table = self._table(box, figures)
        compared, kinds, within, candidates = self._compared(table, free, demands, held)
        for group in best_first(compared.worths, free, candidates, order, held):
            score = compared.worths.score(free, group[0], held, order)
            for mask in _members(table, kinds, within, group):
                self._effort.charge(SET_STEPS, Work.SETS)
                parts = compared.split(mask)
                if parts is not None:
                    yield Choice(mask, parts, score, held, compared.claims(mask))

    def sets(self, box: Box, free: int, demands: Sequence[Demand], apart: Sequence[int] = ()) -> list[int]:
        """Return the sets that choices() yields, in no order and without scores, one for all that can stand for each
        other. GPUs of which one is inside a mask of `apart` and one outside cannot."""
        compared, _, _, candidates = self._compared(self.table(box, demands), free, demands, 0, apart)
        if compared.allows is not None:
            return list(candidates)
        return [mask for mask in candidates if compared.split(mask) is not None]

    def _compared(
        self, table: ClassTable, free: int, demands: Sequence[Demand], held: int, apart: Sequence[int] = ()
    ) -> tuple[_Comparison, Sequence[int], int, Sequence[int]]:
        """Return how sets compare, the kinds of GPUs that are alike, the GPUs that are eligible, and the candidates."""
        shares = _shares(table, free, demands)
        compared = self._comparison(table, free, demands, shares, held)
        eligible = sorted({share.rule.eligible for share in shares})
        within = reduce(or_, eligible)
        kinds = table.twins if eligible == [free] and not apart else refined(table.twins, (*eligible, *apart))
        count = sum(demand.count for demand in demands)
        candidates = _candidates(table, kinds, within, count, compared.allows)
        self._effort.charge(len(candidates), Work.SETS)
        return compared, kinds, within, candidates

    def _comparison(
        self, table: ClassTable, free: int, demands: Sequence[Demand], shares: Sequence[RequestShare], held: int
    ) -> _Comparison:
        if isinstance(table, PartitionedTable):
            sets = self._pod_sets(table, free, demands, held)
            if isinstance(sets, PodSets):
                return _Comparison(sets, sets.split, lambda mask: sets.split(mask) is not None, sets.claim_sets)
            may_have = None if len(shares) > 1 else lambda mask: sets.split(mask) is not None
            return _Comparison(table, sets.split, may_have)
        rule = shares[0].rule
        if len(shares) > 1:
            return _Comparison(table, Splitter(table, shares, self._effort).split, None)
        return _Comparison(table, rule.whole, None if rule.any_set else rule.allows)

    def _pod_sets(
        self, table: PartitionedTable, free: int, demands: Sequence[Demand], held: int
    ) -> ClaimGpus | PodSets:
        """Return what divides sets: for one claim that has nothing yet, or among the claims of the pod."""
        claims = [
            ClaimGpus(table, partial(_shares, free=free, demands=tuple(of_claim)), base, self._effort)
            for (_, base), of_claim in groupby(demands, key=lambda demand: (demand.claim, demand.base))
        ]
        return claims[0] if len(claims) == 1 and not held else PodSets(table, claims, held, self._effort)

    def splits(self, box: Box, free: int, mask: int, demands: Sequence[Demand]) -> Iterator[tuple[int, ...]]:
        """Yield the ways to divide one set among the demands, best first (shares.Splitter.splits)."""
        table = self.table(box, demands)
        if isinstance(table, PartitionedTable):
            return self._pod_sets(table, free, demands, 0).splits(mask)
        return Splitter(table, _shares(table, free, demands), self._effort).splits(mask)

    def score(
        self,
        box: Box,
        free: int,
        chosen: int,
        demands: Sequence[Demand] = (),
        held: int = 0,
        claims: Sequence[int] = (),
    ) -> Score:
        """Return the score of taking any set out of the free GPUs, under the policies of the demands. `claims`: the
        GPUs of each claim, unless one has them all; it only matters on a box with partitions."""
        table, order = self.table(box, demands), self.order(demands)
        if isinstance(table, PartitionedTable) and claims:
            return score_of_claims(table, free, chosen, held, claims, order)
        return table.score(free, chosen, held, order)

    def order(self, demands: Sequence[Demand]) -> Order:
        """Return the order in which the parts of a score count for a pod."""
        return self._order_and_rate(tuple(demands))[0]

    def table(self, box: Box, demands: Sequence[Demand] = ()) -> ClassTable:
        """Return the table of a box under the figures of the demands' policies."""
        return self._table(box, self._order_and_rate(tuple(demands))[1])

    def _table(self, box: Box, figures: LinkBandwidth) -> ClassTable:
        return self._tables.get(
            (box, figures), lambda: (PartitionedTable if box.partitions else ClassTable)(box, figures)
        )

    def _order_and_rate(self, demands: tuple[Demand, ...]) -> tuple[Order, LinkBandwidth]:
        """Return what the policies say about all requests together: the same for every state of every box."""
        return self._orders.get(demands, lambda: self._read_policies(demands))

    def _read_policies(self, demands: tuple[Demand, ...]) -> tuple[Order, LinkBandwidth]:
        policies = [demand.policy for demand in demands]
        return order_of(policies, self.prices), link_bandwidth_of(policies)

    def check(self) -> None:
        """Raise AssertionError unless every remembered answer is what a fresh engine gives. Slow: for tests."""
        for table in self._tables.values():
            table.check()
        fresh = Engine(self.prices)
        for (box, free, held, demands), answer in self._answers.items():
            assert answer == fresh.best_two(box, free, demands, held), f"answer for {free:b}"

    def _compute_best_two(self, box: Box, free: int, demands: tuple[Demand, ...], held: int) -> BestTwo:
        shortfall = self._too_few(box, free, demands)
        if shortfall:
            return BestTwo(None, None, shortfall)
        choices = self.choices(box, free, demands, held)
        best = next(choices, None)
        if best is None:
            words = sorted({rule_words(demand.policy) for demand in demands} - {""})
            if not words:
                return BestTwo(None, None, NO_PARTITION)
            return BestTwo(None, None, f"whose free GPUs do not meet {'; '.join(words)}")
        return BestTwo(best, next(choices, None))

    def _too_few(self, box: Box, free: int, demands: tuple[Demand, ...]) -> str:
        """Return why there are too few GPUs, empty when there are enough."""
        count = sum(demand.count for demand in demands)
        if free.bit_count() < count:
            return "without a free GPU" if count == 1 else f"with fewer than {count} free GPUs"
        if all(demand.eligible is None for demand in demands):
            return ""
        eligible = [free if demand.eligible is None else free & demand.eligible for demand in demands]
        served = most_served([demand.count for demand in demands], eligible, free)
        return f"with {served} of {count} free GPUs that the requests accept" if served < count else ""


def link_bandwidth_of(policies: Iterable[TopologyPolicy]) -> LinkBandwidth:
    """Return the figures for a pod: for each link that of the first of its requests' policies that has one."""
    figures = NO_LINK_BANDWIDTH
    for policy in policies:
        if policy.link_bandwidth == NO_LINK_BANDWIDTH:
            continue
        for name in (link.name for link in fields(LinkBandwidth)):
            if getattr(figures, name) is None:
                figures = replace(figures, **{name: getattr(policy.link_bandwidth, name)})
    return figures


def _shares(table: Bandwidths, free: int, demands: Sequence[Demand]) -> tuple[RequestShare, ...]:
    """Return what each demand may get of the free GPUs; equal demands share one rule, so that they are equal too."""
    rules = {
        demand: make_rule(table, demand.policy, free if demand.eligible is None else free & demand.eligible)
        for demand in set(demands)
    }
    return tuple(RequestShare(demand.count, rules[demand]) for demand in demands)


def _candidates(
    table: ClassTable, kinds: Sequence[int], within: int, count: int, allows: Callable[[int], bool] | None
) -> Sequence[int]:
    """Return the sets to compare. Sets that a lone demand may not have are dropped here, before any computation."""
    if table.comparable:
        masks = representatives(kinds, within, count)
    elif isinstance(table, PartitionedTable):
        masks = iter(dict.fromkeys((*table.partitions_of(count, within), *grown(table, within, count))))
    else:
        masks = grown(table, within, count)
    return list(masks if allows is None else filter(allows, masks))


def _members(table: ClassTable, kinds: Sequence[int], within: int, group: Sequence[int]) -> Iterator[int]:
    """Yield all sets of a group of equal worth by their ordinals, including those that had only a representative."""
    if not table.comparable:
        yield from sorted(group, key=ordinals_of)
    elif len(group) == 1:
        # It is the first of the sets that it stands for; the others are rarely needed.
        yield group[0]
        yield from map(mask_of, islice(equals(kinds, within, group[0]), 1, None))
    else:
        yield from map(mask_of, merge(*(equals(kinds, within, representative) for representative in group)))
