"""Which GPUs of one node a pod gets: every legal choice, best first. The door to all that scores.

Several requests of a pod are served together: the set of all of them is chosen first, then dealt out (splitting).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import reduce
from heapq import merge
from itertools import islice
from operator import or_
from typing import Final

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, NO_POLICY, LinkBandwidth, TopologyPolicy
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.memo import Memo
from dracaena.controller.allocation.score.box import Box, equals, mask_of, ordinals_of, refined, representatives
from dracaena.controller.allocation.score.candidates import best_first, grown
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.order import Order, Score, order_of
from dracaena.controller.allocation.score.requirement import make_rule, rule_words
from dracaena.controller.allocation.score.splitting import Share, Splitter, most_served

MAX_TABLES: Final = 64
"""Node models (times linkBandwidth figures) whose tables are kept: clusters have a handful."""

MAX_ORDERS: Final = 1_000
"""Orders and figures that are kept by demands, some 500 bytes each."""

MAX_ANSWERS: Final = 50_000
"""Remembered answers by (box, free GPUs, held GPUs, demands): 256 free masks times the usual counts of some boxes. That
is about 40 MB."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request of a pod wants: a number of GPUs under a policy. The hash is computed once: demands are part of
    the keys that are looked up for every node.
    """

    count: int
    policy: TopologyPolicy = NO_POLICY
    eligible: int | None = None
    """Mask of the GPUs that it may have; None: any."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.count, self.policy, self.eligible)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of GPUs of one box for all requests of a pod."""

    mask: int
    parts: tuple[int, ...]
    """Mask of each request, in the order of the demands."""
    score: Score
    beside: int = 0
    """GPUs of the same box that the pod holds already: score and links are about all together."""

    @property
    def together(self) -> int:
        """Mask of all GPUs that the pod has then."""
        return self.mask | self.beside


class ShortfallKind(Enum):
    """Why a node has no choice for a pod; values are metric labels."""

    TOO_FEW_FREE = "too-few-free"
    NOT_ELIGIBLE = "not-eligible"
    NOT_LINKED = "not-linked"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a node has no choice for a pod. `text` follows a count of nodes: `2 with fewer than 8 free GPUs`."""

    kind: ShortfallKind
    text: str


@dataclass(frozen=True, slots=True)
class BestTwo:
    """The best choice and the one after it."""

    best: Choice | None
    second: Choice | None
    shortfall: Shortfall | None = None
    """Why there is no best."""


class Engine:
    """Chooses. Holds only what it computed before, within bounds. One thread at a time."""

    def __init__(self, *, relative_up_to_gpus: int = 0, effort: Effort | None = None) -> None:
        """For pods of at most so many GPUs compare bandwidth ÷ ideal between nodes (order.Order.relative). Sets that
        are compared are charged to `effort`, whose OverdueError all that chooses may raise.
        """
        self._effort = effort or Effort()
        self._relative_up_to_gpus = relative_up_to_gpus
        self._tables: Memo[tuple[Box, LinkBandwidth], ClassTable] = Memo(MAX_TABLES)
        self._orders: Memo[tuple[Demand, ...], tuple[Order, LinkBandwidth]] = Memo(MAX_ORDERS)
        self._answers: Memo[tuple[Box, int, int, tuple[Demand, ...]], BestTwo] = Memo(MAX_ANSWERS)

    def best_two(self, box: Box, free: int, demands: tuple[Demand, ...], beside: int = 0) -> BestTwo:
        """Return the first two of choices(), or why there is none. Cost: a look-up, once the state was seen."""
        return self._answers.get(
            (box, free, beside, demands), lambda: self._compute_best_two(box, free, demands, beside)
        )

    def choices(self, box: Box, free: int, demands: Sequence[Demand], beside: int = 0) -> Iterator[Choice]:
        """Yield every set that may be taken, best first; equal ones by their ordinals. Lazy.

        What the policies demand holds for the part of each request; the score is about all of them together with the
        GPUs `beside`, that the pod holds already and that are not in `free`. Each set comes once, dealt out best.
        """
        count = sum(demand.count for demand in demands)
        if count == 0:
            return
        order, figures = self._told(tuple(demands))
        table = self._table(box, figures)
        shares = _shares(table, free, demands)
        split = Splitter(table, shares, self._effort).split if len(shares) > 1 else shares[0].whole
        eligible = sorted({share.rule.eligible for share in shares})
        within = reduce(or_, eligible)
        kinds = table.twins if eligible == [free] else refined(table.twins, eligible)
        candidates = _candidates(table, kinds, within, count, shares)
        self._effort.charge(len(candidates), Work.SETS)
        for group in best_first(table, free, candidates, order, beside):
            score = table.score(free, group[0], beside, order)
            for mask in _members(table, kinds, within, group):
                self._effort.charge(SET_STEPS, Work.SETS)
                parts = split(mask)
                if parts is not None:
                    yield Choice(mask, parts, score, beside)

    def dealings(self, box: Box, free: int, mask: int, demands: Sequence[Demand]) -> Iterator[tuple[int, ...]]:
        """Yield the ways to deal one set out among the demands, best first (splitting.Splitter.ways)."""
        table = self.table(box, demands)
        return Splitter(table, _shares(table, free, demands), self._effort).ways(mask)

    def score(self, box: Box, free: int, chosen: int, demands: Sequence[Demand] = (), beside: int = 0) -> Score:
        """Return the score of taking any set out of the free GPUs, under the policies of the demands."""
        return self.table(box, demands).score(free, chosen, beside, self.order(demands))

    def order(self, demands: Sequence[Demand]) -> Order:
        """Return the order in which the parts of a score count for a pod."""
        return self._told(tuple(demands))[0]

    def table(self, box: Box, demands: Sequence[Demand] = ()) -> ClassTable:
        """Return the table of a box under the figures of the demands' policies."""
        return self._table(box, self._told(tuple(demands))[1])

    def _table(self, box: Box, figures: LinkBandwidth) -> ClassTable:
        return self._tables.get((box, figures), lambda: ClassTable(box, figures))

    def _told(self, demands: tuple[Demand, ...]) -> tuple[Order, LinkBandwidth]:
        """Return what the policies say about all requests together: the same for every state of every box."""
        return self._orders.get(demands, lambda: self._read_policies(demands))

    def _read_policies(self, demands: tuple[Demand, ...]) -> tuple[Order, LinkBandwidth]:
        relative = 1 < sum(demand.count for demand in demands) <= self._relative_up_to_gpus
        policies = [demand.policy for demand in demands]
        return order_of(policies, relative=relative), link_bandwidth_of(policies)

    def check(self) -> None:
        """Raise AssertionError unless every remembered answer is what a fresh engine gives. Slow: for tests."""
        for table in self._tables.values():
            table.check()
        fresh = Engine(relative_up_to_gpus=self._relative_up_to_gpus)
        for (box, free, beside, demands), answer in self._answers.items():
            assert answer == fresh.best_two(box, free, demands, beside), f"answer for {free:b}"

    def _compute_best_two(self, box: Box, free: int, demands: tuple[Demand, ...], beside: int) -> BestTwo:
        shortfall = self._too_few(box, free, demands)
        if shortfall is not None:
            return BestTwo(None, None, shortfall)
        choices = self.choices(box, free, demands, beside)
        best = next(choices, None)
        if best is None:
            words = sorted({rule_words(demand.policy) for demand in demands} - {""})
            text = f"whose free GPUs do not meet {'; '.join(words)}"
            return BestTwo(None, None, Shortfall(ShortfallKind.NOT_LINKED, text))
        return BestTwo(best, next(choices, None))

    def _too_few(self, box: Box, free: int, demands: tuple[Demand, ...]) -> Shortfall | None:
        count = sum(demand.count for demand in demands)
        if free.bit_count() < count:
            text = "without a free GPU" if count == 1 else f"with fewer than {count} free GPUs"
            return Shortfall(ShortfallKind.TOO_FEW_FREE, text)
        if all(demand.eligible is None for demand in demands):
            return None
        eligible = [free if demand.eligible is None else free & demand.eligible for demand in demands]
        served = most_served([demand.count for demand in demands], eligible, free)
        if served < count:
            text = f"with {served} of {count} free GPUs that the requests accept"
            return Shortfall(ShortfallKind.NOT_ELIGIBLE, text)
        return None


def link_bandwidth_of(policies: Iterable[TopologyPolicy]) -> LinkBandwidth:
    """Return the figures for a pod: of each link the first of its requests' policies that says something."""
    figures = NO_LINK_BANDWIDTH
    for policy in policies:
        if policy.link_bandwidth == NO_LINK_BANDWIDTH:
            continue
        for name in (link.name for link in fields(LinkBandwidth)):
            if getattr(figures, name) is None:
                figures = replace(figures, **{name: getattr(policy.link_bandwidth, name)})
    return figures


def _shares(table: ClassTable, free: int, demands: Sequence[Demand]) -> tuple[Share, ...]:
    """Return what each demand may get of the free GPUs; equal demands share one rule, so that they are equal too."""
    rules = {
        demand: make_rule(table, demand.policy, free if demand.eligible is None else free & demand.eligible)
        for demand in set(demands)
    }
    return tuple(Share(demand.count, rules[demand]) for demand in demands)


def _candidates(
    table: ClassTable, kinds: Sequence[int], within: int, count: int, shares: Sequence[Share]
) -> Sequence[int]:
    """Return the sets to compare. One demand's rule is looked at here, before anything is computed for a set."""
    masks = representatives(kinds, within, count) if table.comparable else grown(table, within, count)
    if len(shares) > 1 or shares[0].rule.any_set:
        return list(masks)
    return list(filter(shares[0].rule.allows, masks))


def _members(table: ClassTable, kinds: Sequence[int], within: int, group: Sequence[int]) -> Iterator[int]:
    """Yield all sets of a group of equal worth by their ordinals, also those that only had a representative."""
    if not table.comparable:
        yield from sorted(group, key=ordinals_of)
    elif len(group) == 1:
        # It is the first of those that it stands for; the others are mostly not asked for.
        yield group[0]
        yield from map(mask_of, islice(equals(kinds, within, group[0]), 1, None))
    else:
        yield from map(mask_of, merge(*(equals(kinds, within, representative) for representative in group)))
