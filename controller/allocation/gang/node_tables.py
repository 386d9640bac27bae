"""What one node can give to the members of a gang: for each number of members of each class the best sets for them.

It follows from the kind of node, its free GPUs and how many members it may have at most, so it is worked out once for
all nodes of which these are equal. One member after the other gets a set, class by class, so no order of members is
tried twice; of all ways to use up the same GPUs only the best is kept. As for single pods, the members of a node have
the highest bandwidth that there is for them, and only nodes are compared by what others lose (order.Score).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import pairwise
from typing import Final

from dracaena.controller.allocation.effort import SET_STEPS, Effort, Memo, Work
from dracaena.controller.allocation.gang.question import GangQuestion, Pattern
from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.score.choices import Demand, Engine
from dracaena.controller.allocation.score.order import (
    PART_BITS,
    Order,
    Score,
    bits_behind_family,
    own_values,
    values_together,
)
from dracaena.controller.allocation.state.node_state import NodeKind

BEAM: Final = 256
"""Sets of used GPUs that are kept for one number of members of each class: all of 8 GPUs, of which there are 70."""

MAX_TABLES: Final = 20_000
"""Tables that are kept, about 2 KiB each: a cluster of 5,000 nodes that are not alike has some hundred for a gang."""

FIRST_PARTS: Final = 2
"""Parts of Order.set_names before those that say what others lose: bandwidth and ring."""

Rail = int | None


@dataclass(frozen=True, slots=True)
class Serving:
    """What some members get of a node."""

    cost: int
    """Adds up over nodes, and less is better: the values of their scores in their order (linear)."""
    sets: tuple[tuple[int, ...], ...]
    """For each class the set of each member, in the order in which they take them."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """Everything that a node can give."""

    best: dict[Pattern, Serving]
    """Without a member, too."""
    most: Pattern
    """How many members of each class alone fit."""
    shares: tuple[int, ...]
    """For each class a cost such that no pattern costs less than its members together."""
    is_convex: bool
    """Whether there is one class, and no member costs less than the one before it."""
    known_steps: dict[Pattern, tuple[tuple[int, Pattern], ...]] = field(default_factory=dict, repr=False)

    def steps(self, pattern: Pattern) -> tuple[tuple[int, Pattern], ...]:
        """Return what can be added to a pattern, with the cost for each added member, the least first. Cost: a step for
        each pattern, the first time."""
        found = self.known_steps.get(pattern)
        if found is None:
            cost, grown = self.best[pattern].cost, []
            for other, after in self.best.items():
                added = tuple(b - a for a, b in zip(pattern, other, strict=True))
                if other != pattern and min(added) >= 0:
                    grown.append(((after.cost - cost) // sum(added), added))
            found = self.known_steps[pattern] = tuple(sorted(grown))
        return found


def linear(values: Sequence[int]) -> int:
    """Return a number that sorts as the values do, in their order, and that adds up as they do."""
    number = 0
    for value in values:
        number = (number << PART_BITS) + value
    return number


class NodeTables:
    """The tables of one gang. Made for one decision, of which `known` outlives it. One thread at a time."""

    def __init__(
        self, engine: Engine, question: GangQuestion, known: Memo[Hashable, NodeTable], effort: Effort
    ) -> None:
        self._engine, self._question, self._known, self._effort = engine, question, known, effort
        self._demands = tuple(
            tuple(Demand(*one) for one in zip(asked.counts, asked.policies, strict=True))
            for asked in (member.answers.question for member in question.classes)
        )
        self.order: Order = engine.order(self._demands[0])
        self.tail_bits = bits_behind_family(self.order)
        """Bits of a cost that count only after the domain (Order.has_family)."""
        self._largest = max(member.gpus for member in question.classes)
        self._key = self.order, tuple(member.answers.question for member in question.classes)
        self._own: dict[tuple[NodeKind, int, int], tuple[Score, tuple[int, ...]]] = {}
        self._sets: dict[tuple[NodeKind, int, int], list[int]] = {}
        self._apart: dict[NodeKind, tuple[int, ...]] = {}
        self._rails_of_kind: dict[NodeKind, Sequence[Rail]] = {}
        self._by_rails: dict[tuple[NodeKind, int, int], dict[tuple[int, ...], list[int]]] = {}
        self._railed: dict[tuple[NodeKind, int], dict[tuple[int, ...], int]] = {}

    def head(self, cost: int) -> int:
        """Return the parts of a cost that come before everything about domains."""
        return (cost + (1 << self.tail_bits >> 1)) >> self.tail_bits

    def of(
        self, kind: NodeKind, free: int, caps: Pattern, room: Pattern = (), rails: tuple[int, ...] | None = None
    ) -> NodeTable:
        """Return the table of nodes that have these free GPUs and take at most so many members of each class. `room`:
        what they have left of what classes need, in the order of resources(); empty: enough. `rails`: those that all
        members have to be on (Rails)."""
        key = self._key, kind, free, caps, room, rails
        return self._known.get(key, lambda: self._work_out(kind, free, caps, room, rails))

    def resources(self) -> tuple[str, ...]:
        """Return the names of what any class needs besides devices."""
        return tuple(sorted({name for member in self._question.classes for name in member.needs}))

    def railed(self, kind: NodeKind, free: int) -> Mapping[tuple[int, ...], int]:
        """Return the rails that members with the most GPUs could be on, and at most how many of them with each."""
        found = self._railed.get((kind, free))
        if found is None:
            found = self._railed[kind, free] = {}
            count = self._free_by_rail(kind, free)
            for number, member in enumerate(self._question.classes):
                if member.gpus == self._largest:
                    for rails in self._sets_by_rails(kind, number, free):
                        found[rails] = min(count[rail] // rails.count(rail) for rail in rails)
        return found

    def _free_by_rail(self, kind: NodeKind, free: int) -> Counter[Rail]:
        rails = self._rails(kind)
        return Counter(rails[ordinal] for ordinal in ordinals_of(free))

    def rails_of(self, kind: NodeKind, mask: int) -> tuple[int, ...] | None:
        """Return the rails of a set, ascending; None if one of its GPUs has none."""
        rails = self._rails(kind)
        found = [rails[ordinal] for ordinal in ordinals_of(mask)]
        return tuple(sorted(rail for rail in found if rail is not None)) if None not in found else None

    def _rails(self, kind: NodeKind) -> Sequence[Rail]:
        found = self._rails_of_kind.get(kind)
        if found is None:
            assert self._question.rails_of is not None
            found = self._rails_of_kind[kind] = self._question.rails_of(kind)
        return found

    # Inside

    def _work_out(
        self, kind: NodeKind, free: int, caps: Pattern, room: Pattern, rails: tuple[int, ...] | None
    ) -> NodeTable:
        zero = tuple(0 for _ in caps)
        nothing = tuple(() for _ in caps)
        layers: dict[Pattern, _Layer] = {zero: {0: ((), nothing)}}
        for number, cap in enumerate(caps):
            front = dict(layers)
            most = cap
            if rails is not None and self._question.classes[number].gpus == len(rails):
                most = min(cap, self.railed(kind, free).get(rails, 0))
            for _ in range(most):
                grown: dict[Pattern, _Layer] = {}
                for pattern, by_used in front.items():
                    more = _with_one(pattern, number)
                    if self._has_room(more, room):
                        self._grow(kind, free, number, by_used, grown.setdefault(more, {}), rails)
                front = {pattern: _kept(by_used) for pattern, by_used in grown.items() if by_used}
                if not front:
                    break
                layers.update(front)
        best = {zero: Serving(0, nothing)}
        for pattern, by_used in layers.items():
            if pattern != zero:
                best[pattern] = self._best_of(kind, free, pattern, by_used, rails)
        return _table(best, len(caps))

    def _has_room(self, pattern: Pattern, room: Pattern) -> bool:
        return not room or all(
            sum(
                count * member.needs.get(name, 0) for count, member in zip(pattern, self._question.classes, strict=True)
            )
            <= left
            for name, left in zip(self.resources(), room, strict=True)
        )

    def _grow(
        self,
        kind: NodeKind,
        free: int,
        number: int,
        by_used: _Layer,
        grown: _Layer,
        rails: tuple[int, ...] | None,
    ) -> None:
        """Add a member of a class to each way to use GPUs."""
        for used, (own, sets) in by_used.items():
            left = free & ~used
            for mask in self._usable_sets(kind, number, left) if rails is None else self._on(kind, number, left, rails):
                value = self._own_of(kind, number, mask)[1]
                together = tuple(map(int.__add__, own, value)) if own else value
                after = used | mask
                known = grown.get(after)
                if known is None or together < known[0]:
                    grown[after] = together, (*sets[:number], (*sets[number], mask), *sets[number + 1 :])
            self._effort.charge(SET_STEPS, Work.SETS)

    def _on(self, kind: NodeKind, number: int, free: int, rails: tuple[int, ...]) -> Sequence[int]:
        """Return the sets that are on the gang's rails: on all, or for a member with fewer GPUs on some of them."""
        by_rails = self._sets_by_rails(kind, number, free)
        if self._question.classes[number].gpus == len(rails):
            return by_rails.get(rails, ())
        wanted = Counter(rails)
        return [mask for own, masks in by_rails.items() if Counter(own) <= wanted for mask in masks]

    def _sets_by_rails(self, kind: NodeKind, number: int, free: int) -> Mapping[tuple[int, ...], Sequence[int]]:
        found = self._by_rails.get((kind, number, free))
        if found is None:
            found = self._by_rails[kind, number, free] = {}
            for mask in self._usable_sets(kind, number, free):
                rails = self.rails_of(kind, mask)
                if rails is not None:
                    found.setdefault(rails, []).append(mask)
        return found

    def _best_of(
        self, kind: NodeKind, free: int, pattern: Pattern, by_used: _Layer, rails: tuple[int, ...] | None
    ) -> Serving:
        """Return the best of all ways to serve so many members. A member of a gang of one class that is alone on the
        node gets what it would get as a single pod."""
        if pattern == (1,) and rails is None:
            alone = self._question.classes[0].answers.of_kind(kind).of(free).best
            assert alone is not None, "some set serves it"
            values = values_together((alone.score,), alone.score)
            return Serving(linear(self.order.of_node(values)), ((alone.mask,),))
        first = min(own for own, _ in by_used.values())[:FIRST_PARTS]
        found: list[tuple[tuple[int, ...], tuple[int, ...], Serving]] = []
        for used, (own, sets) in by_used.items():
            if own[:FIRST_PARTS] == first:
                values = self._values(kind, free, used, sets)
                in_order = tuple(tuple(sorted(masks, key=ordinals_of)) for masks in sets)
                serving = Serving(linear(self.order.of_node(values)), in_order)
                found.append((self.order.of_set(values), ordinals_of(used), serving))
        return min(found, key=lambda one: one[:2])[2]

    def _values(self, kind: NodeKind, free: int, used: int, sets: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        present = 0
        for member in self._question.classes:
            present |= member.answers.of_kind(kind).present
        node = self._engine.score(kind.box, free & present, used, self._demands[0])
        self._effort.charge(SET_STEPS, Work.SETS)
        pods = [self._own_of(kind, number, mask)[0] for number, masks in enumerate(sets) for mask in masks]
        return values_together(pods, node)

    def _own_of(self, kind: NodeKind, number: int, mask: int) -> tuple[Score, tuple[int, ...]]:
        """Return the score of a set, and what compares it with others on one node whatever others lose."""
        found = self._own.get((kind, number, mask))
        if found is None:
            member = self._question.classes[number].answers.of_kind(kind)
            score = member.choice(mask, mask).score
            found = self._own[kind, number, mask] = score, self.order.of_set(own_values(score))
        return found

    def _usable_sets(self, kind: NodeKind, number: int, free: int) -> list[int]:
        found = self._sets.get((kind, number, free))
        if found is None:
            answers = self._question.classes[number].answers.of_kind(kind)
            found = self._sets[kind, number, free] = answers.sets(free, self._apart_on(kind))
        return found

    def _apart_on(self, kind: NodeKind) -> tuple[int, ...]:
        """Return the masks that tell GPUs of a kind apart for some class, or for the rails."""
        found = self._apart.get(kind)
        if found is None:
            of_classes = [member.answers.of_kind(kind) for member in self._question.classes]
            masks = dict.fromkeys(mask for one in of_classes for mask in (one.present, *one.told_apart))
            masks.update(dict.fromkeys(self._rail_masks(kind)))
            found = self._apart[kind] = tuple(masks)
        return found

    def _rail_masks(self, kind: NodeKind) -> Iterator[int]:
        by_rail: dict[Rail, int] = {}
        for ordinal, rail in enumerate(self._rails(kind) if self._question.rails_of is not None else ()):
            by_rail[rail] = by_rail.get(rail, 0) | 1 << ordinal
        yield from by_rail.values()


_Layer = dict[int, tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]
"""Used GPUs → what they are worth to those who have them, and the sets of each class."""


def _with_one(pattern: Pattern, number: int) -> Pattern:
    return (*pattern[:number], pattern[number] + 1, *pattern[number + 1 :])


def _kept(by_used: _Layer) -> _Layer:
    if len(by_used) <= BEAM:
        return by_used
    return dict(nsmallest(BEAM, by_used.items(), key=lambda entry: (entry[1][0], entry[0])))


def _table(best: dict[Pattern, Serving], classes: int) -> NodeTable:
    most = tuple(
        max(pattern[number] for pattern in best if sum(pattern) == pattern[number]) for number in range(classes)
    )
    shares = tuple(
        min((one.cost // sum(pattern) for pattern, one in best.items() if pattern[number]), default=0)
        for number in range(classes)
    )
    is_convex = False
    if classes == 1:
        costs = [best[count,].cost for count in range(len(best))]
        gains = [after - before for before, after in pairwise(costs)]
        is_convex = gains == sorted(gains)
    return NodeTable(best, most, shares, is_convex)
