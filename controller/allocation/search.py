"""The walk over the nodes that have something to give, best first, without a look at each of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

from dracaena.controller.allocation.answers import Answer, QuestionAnswers, one_number
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.inventory import Buckets, Inventory
from dracaena.controller.allocation.node_index import Names
from dracaena.controller.allocation.pod_demand import PodDemand
from dracaena.controller.allocation.pool import NodeKind
from dracaena.controller.allocation.result import Census, Placement

NOT_SELECTED: Final = "left out by the pod's selectors, affinity or volumes"
NO_ROOM: Final = "with too little of what the pod needs besides devices"

PATIENCE: Final = 64
"""Nodes that are refused one by one, 2 µs each, before those are named that have room: it takes up to 0.7 ms, and most
decisions never come to a node without."""

FEW: Final = 8
"""Where selectors leave less than one node in this many, these are put into buckets of their own; else all buckets are
looked at, and the nodes of those that are come to are skipped. Both give the same answer."""


_SIZE: Final = itemgetter(1)

_Candidates = tuple[int, int, Sequence[str], Answer]
"""Nodes that have the same to give: rank; a number that tells equal ranks apart in the heap and decides nothing; names,
ascending; what they have to give. A plain tuple: a decision makes one of each bucket."""


class Search:
    """One decision's walk. Reads the inventory, which must not change meanwhile."""

    def __init__(self, inventory: Inventory, demand: PodDemand, answers: QuestionAnswers, effort: Effort) -> None:
        self._effort = effort
        self._inventory = inventory
        self._demand = demand
        self._answers = answers
        self._narrowed = demand.filter.narrowed(inventory.nodes)
        """The nodes that the pod's node selectors leave; None: all."""
        self._selected: Names | None = None
        """The nodes that are meant among those of the buckets; None: all."""
        self._with_room: Names | None = None
        """The nodes that may have enough of cpu and the like, once it is worth to know; None: any."""
        self._ranked: list[_Candidates] = []
        self._without: list[tuple[Answer, Sequence[str]]] = []
        self._refused: list[tuple[str, int, str]] = []
        """Nodes that were refused, each with the number of its candidates and the reason."""
        self._asked = 0
        self._nobody_has_room = False

    def placements(self) -> Iterator[Placement]:
        """Yield the best placement on each node where the pod may run, best node first; of equal ones by name.

        Cost: one step a bucket, then one a node that is come to. Whether the pod may run on a node is asked only then.
        """
        self._look()
        heap = self._ranked.copy()
        heapq.heapify(heap)
        while heap:
            first = heapq.heappop(heap)
            equal = [first]
            while heap and heap[0][0] == first[0]:
                equal.append(heapq.heappop(heap))
            for name, number, answer in self._by_name(equal):
                reason = self._demand.filter.reason(self._inventory.nodes.get(name))
                if reason is None:
                    yield self._placement(name, answer)
                else:
                    self._refused.append((name, number, reason))
                    self._asked += 1
                    if self._asked == PATIENCE and self._demand.filter.is_short:
                        self._with_room = self._demand.filter.with_room()
                        if self._with_room is not None and not self._with_room:
                            self._nobody_has_room = True
                            return

    def census(self, winner: Placement | None = None, but: Collection[str] = ()) -> Census:
        """Return what became of all nodes, or of all `but` these: each is counted once, for the first of these that
        holds. It has no GPUs of ours to give; the pod's node selectors leave it out; it has not what is asked for; it
        comes after the winner; it has too little of what is no device; it is none for the pod for another reason.

        `winner` is what placements() yielded last, None when it came to its end. Cost: one step a bucket, and one for
        each node that was refused; with node selectors one step for each node that has GPUs.
        """
        nodes, end = self._inventory.nodes, None if winner is None else (self._rank_of(winner), winner.pool.node)
        filtered: Counter[str] = Counter()
        refused: Counter[int] = Counter()
        for name, number, reason in self._refused:
            # Of equal buckets some are a step ahead of the winner.
            if self._is_meant(name, but) and (end is None or (self._ranked[number][0], name) < end):
                filtered[reason] += 1
                refused[number] += 1
        if self._narrowed is None and not but:
            buckets = [(answer, len(names)) for _, _, names, answer in self._ranked]
        else:
            buckets = [(answer, self._count(names, but)) for _, _, names, answer in self._ranked]
        for number, count in refused.items():
            buckets[number] = (buckets[number][0], buckets[number][1] - count)
        if self._nobody_has_room:
            filtered[NO_ROOM] += sum(size for _, size in buckets)
            buckets = []
        buckets += [(answer, self._count(names, but)) for answer, names in self._without]
        outside = dict(self._inventory.outside)
        counted = sum(map(_SIZE, buckets)) + sum(outside.values()) + filtered.total()
        filtered[NOT_SELECTED] += len(nodes) - sum(name in nodes for name in but) - counted
        return Census(dict(+filtered), outside, tuple(buckets), has_winner=winner is not None)

    @staticmethod
    def _rank_of(placement: Placement) -> int:
        return one_number(placement.best.score.rank())

    def _is_meant(self, name: str, but: Collection[str]) -> bool:
        return (self._narrowed is None or name in self._narrowed) and name not in but

    def _count(self, names: Sequence[str], but: Collection[str]) -> int:
        if self._narrowed is None and not but:
            return len(names)
        return sum(self._is_meant(name, but) for name in names)

    def _look(self) -> None:
        for name in self._demand.beside:
            self._look_beside(name)
        ranked, without = self._ranked, self._without
        buckets = self._buckets()
        selected = self._selected
        for kind, by_free in buckets.items():
            self._effort.charge(len(by_free), Work.SETS)
            answers = self._answers.of_kind(kind)
            known = answers.known
            for free, names in by_free.items():
                if selected is not None and selected.isdisjoint(names):
                    continue
                answer = known.get(free) or answers.of(free)
                if answer.best is None:
                    without.append((answer, names))
                else:
                    ranked.append((answer.rank, len(ranked), names, answer))

    def _look_beside(self, name: str) -> None:
        """Look at a node where the pod holds GPUs already: they are part of its set there, and nowhere else."""
        place = self._inventory.place(name) if name in self._inventory.nodes else ""
        if isinstance(place, str):
            return
        answer = self._answers.of_kind(place.kind).beside(place.free, self._demand.beside[name])
        if answer.best is None:
            self._without.append((answer, (name,)))
        else:
            self._ranked.append((answer.rank, len(self._ranked), (name,), answer))

    def _buckets(self) -> Buckets:
        """Return the buckets to look at, without the nodes that are looked at one by one."""
        nodes, beside = self._inventory.nodes, self._demand.beside.keys()
        selected = self._narrowed
        if beside:
            return _gathered(self._inventory, (frozenset(nodes.names) if selected is None else selected) - beside)
        if selected is not None and len(selected) * FEW < len(nodes):
            return _gathered(self._inventory, selected)
        self._selected = selected
        return self._inventory.buckets

    def _by_name(self, equal: Sequence[_Candidates]) -> Iterator[tuple[str, int, Answer]]:
        """Go through nodes of equal rank in the order of their names; with each the number and answer of its bucket."""
        if len(equal) == 1:
            return self._named(equal[0])
        return heapq.merge(*map(self._named, equal), key=lambda named: named[0])

    def _named(self, candidates: _Candidates) -> Iterator[tuple[str, int, Answer]]:
        _, number, names, answer = candidates
        selected = self._selected
        if selected is not None:
            names = [name for name in names if name in selected]
        for name in names:
            if self._with_room is not None and name not in self._with_room:
                self._refused.append((name, number, NO_ROOM))
            else:
                yield name, number, answer

    def _placement(self, name: str, answer: Answer) -> Placement:
        pool = self._inventory.pool(name)
        assert pool is not None
        assert answer.best is not None
        return Placement(pool, answer.best, answer.second)


def _gathered(inventory: Inventory, names: Iterable[str]) -> Buckets:
    buckets: dict[NodeKind, dict[int, list[str]]] = {}
    for name in sorted(names):
        place = inventory.place(name)
        if not isinstance(place, str):
            buckets.setdefault(place.kind, {}).setdefault(place.free, []).append(name)
    return buckets
