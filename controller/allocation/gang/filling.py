"""Which nodes of one domain the members of a gang go to: the nodes are chosen by how many members each takes.

First the node that costs the least for each member gets the next ones. If there is one class and no member costs less
than the one before it on its node, that is the best there is; else all ways are compared, unless they are too many.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.controller.allocation.effort import Effort, OverdueError, Work
from dracaena.controller.allocation.gang.node_tables import NodeTable
from dracaena.controller.allocation.gang.question import Pattern

MOST_WAYS: Final = 60_000
"""Ways to serve some of the members that are compared, each a step: some 50 ms. Racks and blocks have fewer; among more
nodes what is found first is taken, of which the last nodes may not be the best."""

Alike = tuple[NodeTable, Sequence[str]]
"""Nodes that can give the same, by name."""


@dataclass(frozen=True, slots=True)
class Filling:
    """Where all members go in one domain."""

    cost: int
    nodes: tuple[tuple[str, NodeTable, Pattern], ...]
    """Each node that takes some, and how many of each class."""


def fill(offers: Sequence[Alike], counts: Pattern, effort: Effort) -> Filling | None:
    """Return the best way to serve all members; None if they do not fit. Charged to `effort`, whose OverdueError it may
    raise only while nothing is found."""
    useful = [(table, names) for table, names in offers if len(table.best) > 1]
    first = _greedy(useful, counts, effort)
    if first is not None and all(table.is_convex for table, _ in useful):
        return first
    nodes = _nodes_that_may_count(useful, sum(counts))
    states = 1
    for count in counts:
        states *= count + 1
    ways = states * sum(len(names) * (len(table.best) - 1) for table, names in nodes)
    if first is not None and ways > MOST_WAYS:
        return first
    try:
        best = _compared(nodes, counts, effort)
    except OverdueError:
        if first is None:
            raise
        return first
    return first if best is None or (first is not None and first.cost <= best.cost) else best


def _greedy(offers: Sequence[Alike], counts: Pattern, effort: Effort) -> Filling | None:
    """Let the node with the least cost for each member take more of them, until all are served."""
    left = counts
    zero = tuple(0 for _ in counts)
    heap: list[
        tuple[int, int, int, Pattern, Pattern]
    ] = []  # cost of each, place of the table, of the node, before, added

    def offer(place: int, number: int, pattern: Pattern) -> None:
        table = offers[place][0]
        effort.charge(1 if pattern in table.known_steps else len(table.best), Work.SETS)
        for cost, added in table.steps(pattern):
            if _within(added, left):
                heapq.heappush(heap, (cost, place, number, pattern, added))
                break

    for place in range(len(offers)):
        offer(place, 0, zero)
    taken: dict[tuple[int, int], Pattern] = {}
    while any(left):
        if not heap:
            return None
        _, place, number, pattern, added = heapq.heappop(heap)
        if not _within(added, left):
            offer(place, number, pattern)
            continue
        left = tuple(a - b for a, b in zip(left, added, strict=True))
        taken[place, number] = after = tuple(a + b for a, b in zip(pattern, added, strict=True))
        offer(place, number, after)
        if pattern == zero and number + 1 < len(offers[place][1]):
            offer(place, number + 1, zero)
    nodes = tuple((offers[place][1][number], offers[place][0], pattern) for (place, number), pattern in taken.items())
    return Filling(sum(table.best[pattern].cost for _, table, pattern in nodes), nodes)


def _within(added: Pattern, left: Pattern) -> bool:
    return all(a <= b for a, b in zip(added, left, strict=True))


def _nodes_that_may_count(offers: Sequence[Alike], pods: int) -> list[Alike]:
    """Return the nodes without those that some best way does without: as many nodes as there are pods are enough, and
    for each pattern those are enough that serve it at the least cost."""
    kept = [0] * len(offers)
    for pattern in {pattern for table, _ in offers for pattern in table.best if any(pattern)}:
        serving = [place for place, (table, _) in enumerate(offers) if pattern in table.best]
        serving.sort(key=lambda place: (offers[place][0].best[pattern].cost, place))
        left = pods
        for place in serving:
            if left <= 0:
                break
            count = min(left, len(offers[place][1]))
            kept[place], left = max(kept[place], count), left - count
    return [(table, names[:count]) for (table, names), count in zip(offers, kept, strict=True) if count]


def _compared(nodes: Sequence[Alike], counts: Pattern, effort: Effort) -> Filling | None:
    """Compare all ways: node by node, for each number of members that are served so far the least cost."""
    zero = tuple(0 for _ in counts)
    best: dict[Pattern, int] = {zero: 0}
    how: list[tuple[str, NodeTable, dict[Pattern, Pattern]]] = []  # members served with this node → those on it
    for table, names in nodes:
        options = [(pattern, serving.cost) for pattern, serving in table.best.items() if any(pattern)]
        for name in names:
            after, way = dict(best), dict[Pattern, Pattern]()
            effort.charge(len(best) * len(options), Work.SETS)
            for served, cost in best.items():
                for pattern, more in options:
                    now = tuple(a + b for a, b in zip(served, pattern, strict=True))
                    if _within(now, counts) and (now not in after or cost + more < after[now]):
                        after[now], way[now] = cost + more, pattern
            best = after
            how.append((name, table, way))
    if counts not in best:
        return None
    found, at = [], counts
    for name, table, way in reversed(how):
        if at in way:
            found.append((name, table, way[at]))
            at = tuple(a - b for a, b in zip(at, way[at], strict=True))
    return Filling(best[counts], tuple(found))
