"""Which nodes a pod of a family prefers: those of the NVLink domain where its siblings are, or where all have room
(docs/design/choice-of-node.md).

A domain is a fabric clique, or a node that is in none. The preference is a part of the rank of a node, the same for all
nodes of a domain, so the groups of a walk must not reach beyond one: buckets are split by domain. Nodes without a
clique and without siblings stay together, because their state says how much room they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dracaena.controller.allocation.score.choices import Choice
from dracaena.controller.allocation.score.order import (
    PART_BITS,
    Order,
    Outlook,
    Score,
    bits_behind_family,
    one_number,
    widened,
    with_family,
)
from dracaena.controller.allocation.state.families import Kin
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import Buckets, NodeKind, NodeState

_StatesByKind = dict[NodeKind, dict[tuple[int, Hashable], Sequence[str]]]


class FamilyPreference:
    """What one decision for a pod of a family prefers. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self, inventory: Inventory, kin: Kin, gpus: int, order: Order, present: Callable[[NodeKind], int]
    ) -> None:
        """`gpus`: number of the pod's GPUs, at least 1. `order`: that of the compared scores, without a family.
        `present` returns the mask of the GPUs of a kind that count for the pod at all."""
        self._inventory, self._gpus, self._present = inventory, gpus, present
        self._cliques = inventory.cliques
        self._left = kin.left
        self._order = with_family(order)
        self._bits_behind = bits_behind_family(order)
        self._on_node: dict[str, int] = {}
        """Siblings by node, for nodes that are domains of their own."""
        self._in_clique: Counter[str] = Counter()
        for name, count in kin.siblings.items():
            clique = inventory.cliques.clique(name)
            if clique is not None:
                self._in_clique[clique] += count
            elif inventory.offers(name):
                self._on_node[name] = count
        self._of_clique: dict[str, tuple[Outlook, int]] = {}
        self._ranked: dict[tuple[int, int], tuple[Outlook, int]] = {}

    def outlook(self, node: str) -> Outlook:
        """Return what the family finds in the domain of a node that offers devices."""
        return self._outlook(node)[0]

    def rank(self, rank: int, node: str, parts_behind: int = 0) -> int:
        """Return the rank of a node among all, given the rank that its devices alone have, of which `parts_behind`
        parts come after those of a score (Places.rank_of)."""
        clique = self._cliques.clique(node)
        found = None if clique is None else self._of_clique.get(clique)
        return widened(rank, self._bits_behind + PART_BITS * parts_behind, (found or self._outlook(node))[1])

    def score(self, score: Score, node: str) -> Score:
        """Return a score with what the family finds there."""
        return replace(score, order=self._order, outlook=self.outlook(node))

    def choice(self, choice: Choice, node: str) -> Choice:
        """Return a choice with this score."""
        return replace(choice, score=self.score(choice.score, node))

    def cut(self, buckets: Buckets) -> Iterator[Buckets]:
        """Yield buckets of the same nodes, in none of which are nodes of two outlooks.

        Cost: a step for each bucket of the inventory and of each of its cliques; for other buckets one for each node.
        """
        if buckets is not self._inventory.buckets and buckets is not self._inventory.node_buckets.by_free_gpus:
            yield from self._cut_by_name(buckets)
            return
        for _, own in self._inventory.cliques.cliques():
            yield own
        yield from self._without_siblings(self._without_clique(buckets))

    def _outlook(self, node: str) -> tuple[Outlook, int]:
        clique = self._inventory.cliques.clique(node)
        if clique is None:
            state = self._inventory.state(node)
            # A pod of a family of unknown size may well be the only one: no reason to begin in an emptier node.
            is_told = self._left is not None
            room = self._room(state.kind, state.free) if is_told and isinstance(state, NodeState) else 0
            return self._as_ranked(self._on_node.get(node, 0), room)
        found = self._of_clique.get(clique)
        if found is None:
            room = sum(
                len(names) * self._room(kind, free)
                for kind, by_state in self._inventory.cliques.buckets(clique).items()
                for (free, _), names in by_state.items()
            )
            found = self._of_clique[clique] = self._as_ranked(self._in_clique[clique], room)
        return found

    def _as_ranked(self, siblings: int, room: int) -> tuple[Outlook, int]:
        found = self._ranked.get((siblings, room))
        if found is None:
            outlook = Outlook(siblings, room, self._left)
            found = self._ranked[siblings, room] = outlook, one_number(outlook.rank())
        return found

    def _room(self, kind: NodeKind, free: int) -> int:
        """Return how many pods like this one there are free GPUs for."""
        return (free & self._present(kind)).bit_count() // self._gpus

    def _without_clique(self, buckets: Buckets) -> Buckets:
        """Return the buckets of the nodes that are in no clique."""
        kept: dict[NodeKind, Mapping[tuple[int, Hashable], Sequence[str]]] = {}
        cliques = self._inventory.cliques
        for kind, by_state in buckets.items():
            in_cliques = cliques.count_of(kind)
            if not in_cliques:
                kept[kind] = by_state
            elif in_cliques < sum(map(len, by_state.values())):
                alone = {key: [one for one in names if cliques.clique(one) is None] for key, names in by_state.items()}
                kept[kind] = {key: names for key, names in alone.items() if names}
        return kept

    def _without_siblings(self, buckets: Buckets) -> Iterator[Buckets]:
        """Yield the buckets of nodes that are in no clique; nodes with siblings have buckets of their own."""
        kept = dict(buckets)
        for name in self._on_node:
            state = self._inventory.state(name)
            assert isinstance(state, NodeState)
            by_state = dict(kept[state.kind])
            key = state.key if state.key in by_state else (state.free, None)
            left = [other for other in by_state[key] if other != name]
            if left:
                by_state[key] = left
            else:
                del by_state[key]
            kept[state.kind] = by_state
            yield {state.kind: {key: [name]}}
        yield kept

    def _cut_by_name(self, buckets: Buckets) -> Iterator[Buckets]:
        parts: dict[tuple[str | None, str | None], _StatesByKind] = {}
        for kind, key, name in _each(buckets):
            clique = self._inventory.cliques.clique(name)
            domain = clique, name if clique is None and name in self._on_node else None
            names = parts.setdefault(domain, {}).setdefault(kind, {}).setdefault(key, [])
            assert isinstance(names, list)
            names.append(name)
        yield from parts.values()


def _each(buckets: Buckets) -> Iterable[tuple[NodeKind, tuple[int, Hashable], str]]:
    for kind, by_state in buckets.items():
        for key, names in by_state.items():
            for name in names:
                yield kind, key, name
