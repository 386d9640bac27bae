"""Where all members of a gang go at once: the smallest domain that holds them, the best of those, and there the nodes.

Order of the answers: the smallest height; then the fewest cliques, then the fewest domains a height from the top; then
what members gain minus what others lose, and their bandwidth, as for single pods up to where siblings count; then equal
rails; then the domain with the fewest GPUs left; then the rest of the order of single pods, and the name. A gang of one
pod gets what the pod would get alone.

Domains are compared by bounds first, so few are looked into. All that a node gives comes from its table (node_tables),
and nodes with equal tables are one offer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Final

from dracaena.controller.allocation.effort import Effort, Memo, OverdueError, Work
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.filling import Filling, fill
from dracaena.controller.allocation.gang.node_tables import MAX_TABLES, NodeTable, NodeTables
from dracaena.controller.allocation.gang.question import (
    GangPlan,
    GangQuestion,
    GangRefusal,
    LevelRoom,
    Pattern,
    Rails,
    Seat,
)
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.state.node_state import NodeKind, NodeState

MOST_SUBSETS: Final = 20
"""Sets of smaller domains of one size that are all tried: three of six. Of more only those that hold the gang most
tightly, which are the best in all but odd clusters."""

RailSet = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Like:
    """What nodes have in common that can give the same."""

    kind: NodeKind
    free: int
    caps: Pattern
    room: Pattern


_Nodes = Mapping[_Like, Sequence[str]]
"""Nodes that are alike, by name ascending."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A way to serve all members inside one domain."""

    parts: tuple[int, ...]
    filling: Filling


@dataclass(frozen=True, slots=True)
class _Bound:
    """A domain with room for each class by itself, and what no plan in it is better than."""

    parts: tuple[int, ...]
    head: int
    left_gpus: int
    domain: str
    nodes: _Nodes
    rails: RailSet = None


class GangSolver:
    """Chooses. Holds only earlier tables, within bounds. One thread at a time."""

    def __init__(self, engine: Engine, effort: Effort) -> None:
        """What is looked at is charged to `effort`."""
        self._engine, self._effort = engine, effort
        self._tables: Memo[Hashable, NodeTable] = Memo(MAX_TABLES)

    def solve(
        self, question: GangQuestion, states: Mapping[str, NodeState | str], domains: Domains
    ) -> GangPlan | GangRefusal:
        """Return where all members go, or how close each level comes. Changes nothing, and the answer depends on
        nothing but the arguments. `states`: of each node, as Inventory.state() returns them.

        When the decision is overdue, this is the best plan until then; if there is none, OverdueError goes on to the
        caller. Cost: a step for each node, and one for each domain and state of its nodes; few domains are looked into.
        """
        search = _Search(
            question, domains, NodeTables(self._engine, question, self._tables, self._effort), self._effort
        )
        return search.run(states)


class _Search:
    """One decision."""

    def __init__(self, question: GangQuestion, domains: Domains, tables: NodeTables, effort: Effort) -> None:
        self._question, self._domains, self._tables, self._effort = question, domains, tables, effort
        self._counts = question.counts
        most = max(one.gpus for one in question.classes)
        self._largest = tuple(number for number, one in enumerate(question.classes) if one.gpus == most)
        self._largest_count = sum(self._counts[number] for number in self._largest)
        self._table_of: dict[tuple[_Like, RailSet], NodeTable] = {}
        self._best: GangPlan | None = None
        self._best_key: tuple[object, ...] = ()

    def run(self, states: Mapping[str, NodeState | str]) -> GangPlan | GangRefusal:
        question, domains = self._question, self._domains
        last = domains.cluster if question.required is None else min(question.required, domains.cluster)
        first = min(question.preferred or 0, last)
        every = self._alike(states)
        for height in range(first, last + 1):
            try:
                self._look_at(height, every)
            except OverdueError:
                if self._best is None:
                    raise
                return replace(self._best, cut_off=True)
            if self._best is not None:
                return self._best
        together = (height for height in range(first, last + 1) if len(self._fixed(height)) < 2)
        offering = [name for name, state in states.items() if isinstance(state, NodeState)]
        return GangRefusal(sum(self._counts), tuple(self._room(height, every, offering) for height in together))

    # Nodes and domains

    def _alike(self, states: Mapping[str, NodeState | str]) -> _Nodes:
        """Return the nodes that can give anything, alike ones together."""
        classes, left_of = self._question.classes, self._question.left
        names = self._tables.resources()
        found: dict[_Like, list[str]] = {}
        self._effort.charge(len(states), Work.NODES)
        for name, state in states.items():
            if isinstance(state, str) or not state.free:
                continue
            gpus = state.free.bit_count()
            caps = tuple(min(one.count, gpus // one.gpus, one.most_on(name)) for one in classes)
            if not any(caps):
                continue
            room: Pattern = ()
            left = left_of(name) if len(classes) > 1 and names else None
            if left is not None:
                most = [
                    sum(cap * one.needs.get(key, 0) for cap, one in zip(caps, classes, strict=True)) for key in names
                ]
                room = tuple(min(left.get(key, all_of), all_of) for key, all_of in zip(names, most, strict=True))
                room = () if list(room) == most else room
            found.setdefault(_Like(state.kind, state.free, caps, room), []).append(name)
        found = {like: names for like, names in found.items() if any(self._table(like, None).most)}
        return {like: sorted(names) for like, names in sorted(found.items(), key=lambda entry: min(entry[1]))}

    def _split(self, nodes: _Nodes, height: int) -> dict[str, dict[_Like, list[str]]]:
        """Return the nodes of each domain of a height."""
        found: dict[str, dict[_Like, list[str]]] = {}
        domain = self._domains.domain
        for like, names in nodes.items():
            for name in names:
                found.setdefault(domain(name, height), {}).setdefault(like, []).append(name)
        return found

    def _at(self, height: int, every: _Nodes) -> Mapping[str, _Nodes]:
        """Return the domains of a height that may hold all: if members are fixed, only the one that they are in. Of
        nodes that are alike the first by name stands for the others."""
        fixed = self._fixed(height)
        if len(fixed) > 1:
            return {}
        if height == 0 and not fixed:
            return {names[0]: {like: names[:1]} for like, names in every.items()}
        found = self._split(every, height)
        return {name: nodes for name, nodes in found.items() if not fixed or name in fixed}

    def _fixed(self, height: int) -> set[str]:
        """Return the domains of a height that members are in already."""
        return {self._domains.domain(name, height) for name in self._question.fixed}

    def _table(self, like: _Like, rails: RailSet) -> NodeTable:
        found = self._table_of.get((like, rails))
        if found is None:
            found = self._tables.of(like.kind, like.free, like.caps, like.room, rails)
            self._table_of[like, rails] = found
        return found

    def _rooms(self, nodes: _Nodes, rails: RailSet) -> Pattern:
        """Return how many members of each class alone some nodes have room for."""
        rooms = [0] * len(self._counts)
        for like, names in nodes.items():
            for number, most in enumerate(self._table(like, rails).most):
                rooms[number] += most * len(names)
        return tuple(rooms)

    def _holds(self, rooms: Pattern) -> bool:
        return all(room >= count for room, count in zip(rooms, self._counts, strict=True))

    # The best domain of a height

    def _look_at(self, height: int, every: _Nodes) -> None:
        """Find the best plan in any domain of a height."""
        bounds: list[_Bound] = []
        holding = 0
        for domain, nodes in self._at(height, every).items():
            self._effort.charge(len(nodes), Work.SETS)
            found = list(self._bounds(height, domain, nodes))
            holding += bool(found) * (len(every[next(iter(nodes))]) if height == 0 and not self._question.fixed else 1)
            bounds += found
        bounds.sort(key=lambda one: (one.parts, one.head, one.left_gpus, one.domain, one.rails or ()))
        seen: set[Hashable] = set()
        for bound in bounds:
            if self._best is not None and self._key_of(bound, height) >= self._best_key:
                break
            if not self._domains.below(height):  # nothing but its nodes makes a domain better
                signature = frozenset((like, len(names)) for like, names in bound.nodes.items()), bound.rails
                if signature in seen:
                    continue
                seen.add(signature)
            self._look_into(bound, height)
        if self._best is not None:
            self._best = replace(self._best, holding=holding)

    def _key_of(self, bound: _Bound, height: int) -> tuple[object, ...]:
        """Return a key that no plan of a domain comes before."""
        return bound.parts, bound.head, 0, bound.left_gpus if height else 0

    def _bounds(self, height: int, domain: str, nodes: _Nodes) -> Iterator[_Bound]:
        """Yield the bound of a domain, once for each set of rails that all members may have to be on."""
        if not self._holds(self._rooms(nodes, None)):
            return
        left = sum(like.free.bit_count() * len(names) for like, names in nodes.items()) - self._question.gpus
        inside = [list(self._split(nodes, below).values()) for below in self._domains.below(height)]
        if self._question.rails is not Rails.REQUIRED:
            parts = tuple(self._fewest([self._rooms(part, None) for part in each], self._counts) for each in inside)
            yield _Bound(parts, self._tables.head(self._least_cost(nodes, None)), left, domain, nodes)
            return
        rooms = [[self._railed_room(part) for part in each] for each in inside]
        for rails in self._rail_sets(nodes):
            parts = tuple(
                self._fewest([(room.get(rails, 0),) for room in each], (self._largest_count,)) for each in rooms
            )
            yield _Bound(parts, self._tables.head(self._least_cost(nodes, rails)), left, domain, nodes, rails)

    def _rail_sets(self, nodes: _Nodes) -> list[tuple[int, ...]]:
        """Return the rails that there is room on for all members with the most GPUs."""
        fixed = self._question.fixed_rails
        room = self._railed_room(nodes)
        return sorted(one for one, most in room.items() if most >= self._largest_count and fixed in (None, one))

    def _railed_room(self, nodes: _Nodes) -> Mapping[tuple[int, ...], int]:
        """Return for how many members with the most GPUs there is room at most, by their rails."""
        room: dict[tuple[int, ...], int] = {}
        for like, names in nodes.items():
            cap, count = sum(like.caps[number] for number in self._largest), len(names)
            for rails, most in self._tables.railed(like.kind, like.free).items():
                room[rails] = room.get(rails, 0) + min(most, cap) * count
        return room

    @staticmethod
    def _fewest(rooms: Sequence[Pattern], counts: Pattern) -> int:
        """Return how many domains with these rooms it takes at least to have room for each class by itself."""
        least = 1
        for number, count in enumerate(counts):
            held = 0
            for used, room in enumerate(sorted((one[number] for one in rooms), reverse=True), 1):
                held += room
                if held >= count:
                    least = max(least, used)
                    break
        return least

    def _least_cost(self, nodes: _Nodes, rails: RailSet) -> int:
        """Return a cost that no plan is below: each member at the best share that any node offers to its class."""
        cost = 0
        tables = [
            (self._table(like, rails), len(names))
            for like, names in nodes.items()
            if rails is None or len(self._counts) > 1 or rails in self._tables.railed(like.kind, like.free)
        ]
        for number, left in enumerate(self._counts):
            offers = sorted((table.shares[number], table.most[number] * count) for table, count in tables)
            served = 0
            for share, room in offers:
                taken = min(left - served, room)
                cost, served = cost + taken * share, served + taken
        return cost

    # Inside one domain

    def _look_into(self, bound: _Bound, height: int) -> None:
        found = self._inside(bound.nodes, self._domains.below(height), bound.rails)
        if found is None:
            return
        self._take(found, bound, height, bound.rails)
        if self._question.rails is Rails.PREFERRED:
            key = found.parts, self._tables.head(found.filling.cost)
            for rails in self._rail_sets(bound.nodes):
                if self._best_key and (*key, 0, bound.left_gpus if height else 0) > self._best_key[:4]:
                    break  # another domain is better even so
                if self._holds(self._rooms(bound.nodes, rails)):
                    equal = self._inside(bound.nodes, self._domains.below(height), rails)
                    if equal is not None and (equal.parts, self._tables.head(equal.filling.cost)) == key:
                        self._take(equal, bound, height, rails)

    def _take(self, found: _Found, bound: _Bound, height: int, rails: RailSet) -> None:
        """Keep a plan if it is the best until now."""
        cost = found.filling.cost
        is_unequal = self._question.rails is Rails.PREFERRED and rails is None
        left = bound.left_gpus if height else 0  # among nodes, the order of single pods says when that counts
        key = found.parts, self._tables.head(cost), int(is_unequal), left, cost, bound.domain
        if self._best is None or key < self._best_key:
            seats = tuple(Seat(name, table.best[pattern].sets) for name, table, pattern in sorted(found.filling.nodes))
            self._best_key = key
            self._best = GangPlan(height, bound.domain, seats, found.parts, bound.left_gpus, rails)

    def _inside(self, nodes: _Nodes, below: Sequence[int], rails: RailSet) -> _Found | None:
        """Return the best way to serve all members on some nodes, with the fewest domains of each height `below`."""
        self._effort.charge(len(nodes), Work.SETS)
        if not below:
            filling = fill(
                [(self._table(like, rails), names) for like, names in nodes.items()], self._counts, self._effort
            )
            return None if filling is None else _Found((), filling)
        parts = self._split(nodes, below[0])
        fixed = {self._domains.domain(name, below[0]) for name in self._question.fixed}
        rooms = {name: self._rooms(part, rails) for name, part in parts.items()}
        free = sorted(
            (name for name in parts if name not in fixed and any(rooms[name])),
            key=lambda one: (_room_order(rooms[one]), one),
        )
        base = [name for name in sorted(parts) if name in fixed]
        for size in range(0 if fixed else 1, len(free) + 1):
            best: _Found | None = None
            for chosen in self._subsets(free, size, rooms, base, parts, below[1:]):
                found = self._inside(_joined([parts[name] for name in (*base, *chosen)]), below[1:], rails)
                if found is not None and (
                    best is None or (found.parts, found.filling.cost) < (best.parts, best.filling.cost)
                ):
                    best = found
            if best is not None:
                return replace(best, parts=(len(fixed) + size, *best.parts))
        return None

    def _subsets(
        self,
        names: Sequence[str],
        size: int,
        rooms: Mapping[str, Pattern],
        base: Sequence[str],
        parts: Mapping[str, _Nodes],
        below: Sequence[int],
    ) -> Iterator[Sequence[str]]:
        """Yield the sets of so many domains to try, all with room for each class by itself. `names`: the roomiest
        first; `base`: domains that are used anyhow."""
        if comb(len(names), size) <= MOST_SUBSETS:
            every: Iterator[Sequence[str]] = iter(combinations(names, size))
        else:
            every = self._tight(names, size, rooms, base, parts, below)
        for chosen in every:
            if self._holds(_sum((rooms[name] for name in (*base, *chosen)), len(self._counts))):
                yield chosen

    def _tight(
        self,
        names: Sequence[str],
        size: int,
        rooms: Mapping[str, Pattern],
        base: Sequence[str],
        parts: Mapping[str, _Nodes],
        below: Sequence[int],
    ) -> Iterator[Sequence[str]]:
        """Yield the roomiest domains, the last of which is the tightest that does: of each domain of the next height
        that holds them, then of all."""
        groups: dict[str, list[str]] = {}
        for name in names if below else ():
            groups.setdefault(self._domains.domain(next(iter(parts[name].values()))[0], below[0]), []).append(name)
        tightest = sorted(
            groups.values(),
            key=lambda group: (_room_order(_sum((rooms[one] for one in group), len(self._counts))), group),
        )
        for group in (*reversed(tightest), names):
            if len(group) < size:
                continue
            first = list(group[: size - 1])
            held = _sum((rooms[name] for name in (*base, *first)), len(self._counts))
            for last in reversed(group[size - 1 :]):
                if self._holds(tuple(a + b for a, b in zip(held, rooms[last], strict=True))):
                    yield (*first, last)
                    break

    # Refusal

    def _room(self, height: int, every: _Nodes, offering: Iterable[str]) -> LevelRoom:
        """Return how close the domains of a height come. `offering`: the nodes that have GPUs, free or not."""
        fixed = self._fixed(height)
        there = {self._domains.domain(name, height) for name in offering}
        best, most, holding = "", 0, 0
        for domain, nodes in sorted(self._at(height, every).items()):
            same = len(every[next(iter(nodes))]) if height == 0 and not fixed else 1
            rooms = self._rooms(nodes, None)
            pods, holds = sum(map(min, rooms, self._counts)), self._holds(rooms)
            if self._question.rails is Rails.REQUIRED:
                railed = max(self._railed_room(nodes).values(), default=0)
                pods, holds = min(pods, railed), holds and bool(self._rail_sets(nodes))
            holding += same * holds
            if pods > most:
                best, most = domain, pods
        return LevelRoom(self._domains.names[height], len(there & fixed if fixed else there), holding, best, most)


def _room_order(rooms: Pattern) -> int:
    """Sort domains, the roomiest first."""
    return -sum(rooms)


def _sum(rooms: Iterator[Pattern], classes: int) -> Pattern:
    total = [0] * classes
    for one in rooms:
        for number, room in enumerate(one):
            total[number] += room
    return tuple(total)


def _joined(parts: Sequence[_Nodes]) -> _Nodes:
    if len(parts) == 1:
        return parts[0]
    found: dict[_Like, list[str]] = {}
    for part in parts:
        for like, names in part.items():
            found.setdefault(like, []).extend(names)
    return {like: sorted(names) for like, names in found.items()}
