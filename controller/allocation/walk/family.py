"""Which nodes a pod of a family prefers: those nearest to its siblings, or where all have room
(docs/design/choice-of-node.md).

The preference is a part of the rank of a node, the same for all nodes of a location that is in a clique, so the groups
of a walk must not reach beyond one: buckets are split by location. Nodes of one location that are in no clique and have
no siblings stay together, because their state says how much room each has.
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
from dracaena.controller.allocation.state.locations import Location
from dracaena.controller.allocation.state.node_state import Buckets, NodeKind, NodeState

_StatesByKind = dict[NodeKind, dict[tuple[int, Hashable], Sequence[str]]]

_Domain = tuple[int, str]
"""Steps as Outlook counts them, and the domain at that level."""


class FamilyPreference:
    """What one decision for a pod of a family prefers. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self, inventory: Inventory, kin: Kin, gpus: int, order: Order, present: Callable[[NodeKind], int]
    ) -> None:
        """`gpus`: number of the pod's GPUs, at least 1. `order`: that of the compared scores, without a family.
        `present` returns the mask of the GPUs of a kind that count for the pod at all."""
        self._inventory, self._gpus, self._present = inventory, gpus, present
        self._locations = inventory.locations
        self._left = kin.left
        self._cluster = len(inventory.levels.labels) + 1
        self._order = with_family(order)
        self._bits_behind = bits_behind_family(order)
        self._on_node: dict[str, int] = {}
        """Siblings by node, for nodes that are NVLink domains of their own."""
        self._siblings: Counter[_Domain] = Counter()
        for name, count in kin.siblings.items():
            if not inventory.offers(name):
                continue
            location = self._locations.location(name)
            for domain in _domains(location):
                self._siblings[domain] += count
            if location is None or location[-1] is None:
                self._on_node[name] = count
        self._room_in: Counter[_Domain] | None = None
        self._outlooks: dict[tuple[Location | None, int, int], tuple[Outlook, int]] = {}

    def outlook(self, node: str) -> Outlook:
        """Return what the family finds around a node that offers devices."""
        return self._outlook(node)[0]

    def rank(self, rank: int, node: str, parts_behind: int = 0) -> int:
        """Return the rank of a node among all, given the rank that its devices alone have, of which `parts_behind`
        parts come after those of a score (Places.rank_of)."""
        return widened(rank, self._bits_behind + PART_BITS * parts_behind, self._outlook(node)[1])

    def score(self, score: Score, node: str) -> Score:
        """Return a score with what the family finds there."""
        return replace(score, order=self._order, outlook=self.outlook(node))

    def choice(self, choice: Choice, node: str) -> Choice:
        """Return a choice with this score."""
        return replace(choice, score=self.score(choice.score, node))

    def cut(self, buckets: Buckets) -> Iterator[Buckets]:
        """Yield buckets of the same nodes, in none of which are nodes of two outlooks.

        Cost: a step for each bucket of the inventory and of each of its locations; for other buckets one for each node.
        """
        if buckets is not self._inventory.buckets and buckets is not self._inventory.node_buckets.by_free_gpus:
            yield from self._cut_by_name(buckets)
            return
        siblings: dict[Location | None, list[str]] = {}
        for name in self._on_node:
            siblings.setdefault(self._locations.location(name), []).append(name)
        for location, own in self._locations.locations():
            yield from self._without_siblings(own, siblings.get(location, ()))
        yield from self._without_siblings(self._without_location(buckets), siblings.get(None, ()))

    def _outlook(self, node: str) -> tuple[Outlook, int]:
        location = self._locations.location(node)
        here, room = 0, 0
        if location is None or location[-1] is None:
            state = self._inventory.state(node)
            here = self._on_node.get(node, 0)
            # A pod of a family of unknown size may well be the only one: no reason to begin in an emptier node.
            is_known = self._left is not None
            room = self._room(state.kind, state.free) if is_known and isinstance(state, NodeState) else 0
        found = self._outlooks.get((location, here, room))
        if found is None:
            outlook = self._found(location, here, room)
            found = self._outlooks[location, here, room] = outlook, one_number(outlook.rank())
        return found

    def _found(self, location: Location | None, here: int, room: int) -> Outlook:
        """`here`: siblings on the node, and `room`: how many pods it has room for, if it is in no clique."""
        domains = list(_domains(location))
        siblings = [(steps, self._siblings[steps, name]) for steps, name in domains]
        rooms = [(steps, self._rooms()[steps, name]) for steps, name in domains]
        if location is None or location[-1] is None:
            siblings, near = [(0, here), *siblings], next((count for _, count in rooms), room)
            rooms = [(0, room), *rooms]
        else:
            near = rooms[0][1]
        cluster = self._cluster, 0
        with_siblings = next((found for found in siblings if found[1]), cluster)
        left = self._left
        with_room = cluster if left is None else next((found for found in rooms if found[1] >= left), cluster)
        # Where one node has room for all, it does not matter what is around it.
        return Outlook(*with_siblings, *with_room, 0 if with_room[0] == 0 else near)

    def _rooms(self) -> Counter[_Domain]:
        """Return how many pods like this one each domain has room for. Cost: once, a step for each bucket."""
        if self._room_in is None:
            self._room_in = Counter()
            for location, buckets in self._locations.locations():
                room = sum(
                    len(names) * self._room(kind, free)
                    for kind, by_state in buckets.items()
                    for (free, _), names in by_state.items()
                )
                for domain in _domains(location):
                    self._room_in[domain] += room
        return self._room_in

    def _room(self, kind: NodeKind, free: int) -> int:
        """Return how many pods like this one there are free GPUs for."""
        return (free & self._present(kind)).bit_count() // self._gpus

    def _without_location(self, buckets: Buckets) -> Buckets:
        """Return the buckets of the nodes that are in no domain."""
        kept: dict[NodeKind, Mapping[tuple[int, Hashable], Sequence[str]]] = {}
        located = self._locations
        for kind, by_state in buckets.items():
            count = located.count_of(kind)
            if not count:
                kept[kind] = by_state
            elif count < sum(map(len, by_state.values())):
                alone = {
                    key: [one for one in names if located.location(one) is None] for key, names in by_state.items()
                }
                kept[kind] = {key: names for key, names in alone.items() if names}
        return kept

    def _without_siblings(self, buckets: Buckets, siblings: Sequence[str]) -> Iterator[Buckets]:
        """Yield buckets of the same nodes, where these nodes with siblings have buckets of their own."""
        kept = dict(buckets)
        for name in siblings:
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
        parts: dict[tuple[Location | None, str | None], _StatesByKind] = {}
        for kind, key, name in _each(buckets):
            part = self._locations.location(name), name if name in self._on_node else None
            names = parts.setdefault(part, {}).setdefault(kind, {}).setdefault(key, [])
            assert isinstance(names, list)
            names.append(name)
        yield from parts.values()


def _domains(location: Location | None) -> Iterator[_Domain]:
    """Yield the domains of a location, the smallest first."""
    for steps, domain in enumerate(reversed(location or ())):
        if domain is not None:
            yield steps, domain


def _each(buckets: Buckets) -> Iterable[tuple[NodeKind, tuple[int, Hashable], str]]:
    for kind, by_state in buckets.items():
        for key, names in by_state.items():
            for name in names:
                yield kind, key, name
