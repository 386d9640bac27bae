"""Where all members of a gang go, by trying everything: each number of members of each class on each node, each way to
give them GPUs. Only what a set is worth comes from the engine, and whether a lone pod may have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from dracaena.controller.allocation.allocator import Member
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.node_tables import linear
from dracaena.controller.allocation.gang.question import CLIQUE, GangPlan, Rails
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Demand, Engine
from dracaena.controller.allocation.score.order import Order, Score, bits_behind_family, own_values, values_together
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodeState

Ways = Mapping[tuple[int, ...], int]
"""How many members of each class a node takes → the least cost."""


@dataclass(frozen=True)
class SlowGang:
    """A gang as plain values."""

    members: Sequence[Member]
    """One of each class."""
    counts: tuple[int, ...]
    may_take: Callable[[str, tuple[int, ...]], bool]
    """Whether a node has room for so many members of each class besides their devices."""
    required: int | None = None
    preferred: int | None = None
    rails: Rails = Rails.IGNORED
    rails_of: Callable[[NodeKind], Sequence[int | None]] | None = None
    fixed: tuple[str, ...] = ()


class SlowGangs:
    def __init__(self, engine: Engine, inventory: Inventory, domains: Domains) -> None:
        self._engine, self._inventory, self._domains = engine, inventory, domains
        self._own: dict[tuple[int, NodeKind, int], Score | None] = {}
        self._ways: dict[tuple[str, tuple[int, ...] | None], Ways] = {}

    def best(self, gang: SlowGang) -> tuple[object, ...] | None:
        """The height, and the key of the best plan there; None when no plan is legal."""
        last = self._domains.cluster if gang.required is None else min(gang.required, self._domains.cluster)
        for height in range(min(gang.preferred or 0, last), last + 1):
            found = [key for domain in self._domains_of(height) for key in self._keys(gang, height, domain)]
            if found:
                return height, min(found)
        return None

    def key_of(self, gang: SlowGang, plan: GangPlan) -> tuple[object, ...]:
        """The key of a plan, for comparison with the best one."""
        free = sum(
            state.free.bit_count()
            for name in self._nodes()
            if self._domains.domain(name, plan.height) == plan.domain
            and len(self._ways_on(gang, name, None)) > 1
            and isinstance(state := self._inventory.state(name), NodeState)
        )
        cost = 0
        for seat in plan.seats:
            state = self._inventory.state(seat.node)
            assert isinstance(state, NodeState)
            served = [number for number, masks in enumerate(seat.sets) for _ in masks]
            masks = tuple(mask for masks in seat.sets for mask in masks)
            cost += linear(self._order(gang).of_node(self._values(gang, state, served, masks)))
        bits = bits_behind_family(self._order(gang))
        places = {seat.node for seat in plan.seats} | set(gang.fixed)
        parts = tuple(len({self._domains.domain(name, below) for name in places}) for below in self._below(plan.height))
        assert parts == plan.parts
        unequal = int(gang.rails is Rails.PREFERRED and not self._have_equal_rails(gang, plan))
        assert gang.rails is not Rails.REQUIRED or self._have_equal_rails(gang, plan)
        left = free - self._gpus(gang) if plan.height else 0
        return parts, (cost + (1 << bits >> 1)) >> bits, unequal, left, cost, plan.domain

    def _have_equal_rails(self, gang: SlowGang, plan: GangPlan) -> bool:
        return plan.rails is not None and all(
            _on(gang, state.kind, mask, plan.rails)
            for seat in plan.seats
            if isinstance(state := self._inventory.state(seat.node), NodeState)
            for masks in seat.sets
            for mask in masks
        )

    @staticmethod
    def _gpus(gang: SlowGang) -> int:
        return sum(
            count * member.answers.question.count for count, member in zip(gang.counts, gang.members, strict=True)
        )

    def _below(self, height: int) -> list[int]:
        """Heights at which fewer domains are better: cliques, then from the top."""
        inside = [self._domains.names[one] for one in range(1, height)]
        return sorted(range(1, height), key=lambda one: (inside[one - 1] != CLIQUE, -one))

    def _nodes(self) -> list[str]:
        names = self._inventory.nodes.names
        return [name for name in names if isinstance(self._inventory.state(name), NodeState)]

    def _domains_of(self, height: int) -> list[str]:
        return sorted({self._domains.domain(name, height) for name in self._nodes()})

    def _keys(self, gang: SlowGang, height: int, domain: str) -> Iterator[tuple[object, ...]]:
        """Keys of the best plans in a domain, one for each set of nodes that are used and rails."""
        if any(self._domains.domain(name, height) != domain for name in gang.fixed):
            return
        names = [name for name in self._nodes() if self._domains.domain(name, height) == domain]
        states = [self._inventory.state(name) for name in names if len(self._ways_on(gang, name, None)) > 1]
        free = sum(state.free.bit_count() for state in states if isinstance(state, NodeState))
        left = free - self._gpus(gang) if height else 0
        bits = bits_behind_family(self._order(gang))
        rail_sets: list[tuple[int, ...] | None] = [None]
        if gang.rails is not Rails.IGNORED:
            rail_sets = [None] if gang.rails is Rails.PREFERRED else []
            rail_sets += sorted(self._rail_sets(gang, names))
        for rails in rail_sets:
            ways = [self._ways_on(gang, name, rails) for name in names]
            for used, cost in self._plans(ways, gang.counts):
                places = {name for name, taken in zip(names, used, strict=True) if taken} | set(gang.fixed)
                parts = tuple(
                    len({self._domains.domain(name, below) for name in places}) for below in self._below(height)
                )
                unequal = int(gang.rails is Rails.PREFERRED and rails is None)
                yield parts, (cost + (1 << bits >> 1)) >> bits, unequal, left, cost, domain

    def _plans(self, ways: Sequence[Ways], counts: tuple[int, ...]) -> Iterator[tuple[tuple[bool, ...], int]]:
        """Each set of nodes that can serve all together, with the least cost."""
        best: dict[tuple[tuple[bool, ...], tuple[int, ...]], int] = {((), tuple(0 for _ in counts)): 0}
        for of_node in ways:
            after: dict[tuple[tuple[bool, ...], tuple[int, ...]], int] = {}
            for (used, served), cost in best.items():
                for pattern, more in of_node.items():
                    now = tuple(a + b for a, b in zip(served, pattern, strict=True))
                    if all(a <= b for a, b in zip(now, counts, strict=True)):
                        key = (*used, any(pattern)), now
                        after[key] = min(after.get(key, cost + more), cost + more)
            best = after
        yield from ((used, cost) for (used, served), cost in best.items() if served == counts)

    def _ways_on(self, gang: SlowGang, name: str, rails: tuple[int, ...] | None) -> Ways:
        if (name, rails) not in self._ways:
            self._ways[name, rails] = self._tried_on(gang, name, rails)
        return self._ways[name, rails]

    def _tried_on(self, gang: SlowGang, name: str, rails: tuple[int, ...] | None) -> Ways:
        state = self._inventory.state(name)
        assert isinstance(state, NodeState)
        order, found = self._order(gang), {tuple(0 for _ in gang.counts): 0}
        for pattern in product(*(range(min(count, state.free.bit_count()) + 1) for count in gang.counts)):
            if not any(pattern) or not gang.may_take(name, pattern):
                continue
            served = [number for number, count in enumerate(pattern) for _ in range(count)]
            best = None
            for masks in self._divisions(gang, state, served, rails, state.free):
                together = sum(masks)
                pods = [
                    self._own_score(gang, state.kind, number, mask) for number, mask in zip(served, masks, strict=True)
                ]
                values = self._values(gang, state, served, masks)
                own = [
                    sum(column) for column in zip(*(own_values(one) for one in pods if one is not None), strict=True)
                ]
                key = order.of_set(tuple(own))[:2], order.of_set(values), ordinals_of(together)
                if best is None or key < best[0]:
                    best = key, linear(order.of_node(values))
            if best is not None:
                found[pattern] = best[1]
        return found

    def _values(self, gang: SlowGang, state: NodeState, served: Sequence[int], masks: Sequence[int]) -> tuple[int, ...]:
        """What the members of a node have and others lose there (values_together)."""
        pods = [self._own_score(gang, state.kind, number, mask) for number, mask in zip(served, masks, strict=True)]
        present = 0
        for member in gang.members:
            present |= member.answers.of_kind(state.kind).present
        node = self._engine.score(state.kind.box, state.free & present, sum(masks), self._demands(gang.members[0]))
        return values_together([one for one in pods if one is not None], node)

    def _divisions(
        self, gang: SlowGang, state: NodeState, served: Sequence[int], rails: tuple[int, ...] | None, free: int
    ) -> Iterator[tuple[int, ...]]:
        """Each way to give disjoint sets to members of these classes."""
        if not served:
            yield ()
            return
        for chosen in combinations(ordinals_of(free), gang.members[served[0]].answers.question.count):
            mask = mask_of(chosen)
            if self._own_score(gang, state.kind, served[0], mask) is None or not _on(gang, state.kind, mask, rails):
                continue
            for rest in self._divisions(gang, state, served[1:], rails, free & ~mask):
                yield mask, *rest

    def _own_score(self, gang: SlowGang, kind: NodeKind, number: int, mask: int) -> Score | None:
        key = number, kind, mask
        if key not in self._own:
            best = gang.members[number].answers.of_kind(kind).of(mask).best
            self._own[key] = None if best is None or best.mask != mask else best.score
        return self._own[key]

    def _rail_sets(self, gang: SlowGang, names: Sequence[str]) -> set[tuple[int, ...]]:
        most = max(member.answers.question.count for member in gang.members)
        found = set()
        for name in names:
            state = self._inventory.state(name)
            assert isinstance(state, NodeState)
            assert gang.rails_of is not None
            rails = gang.rails_of(state.kind)
            for chosen in combinations(ordinals_of(state.free), most):
                found.add(tuple(sorted(rail for ordinal in chosen if (rail := rails[ordinal]) is not None)))
        return {rails for rails in found if len(rails) == most}

    def _order(self, gang: SlowGang) -> Order:
        return self._engine.order(self._demands(gang.members[0]))

    @staticmethod
    def _demands(member: Member) -> tuple[Demand, ...]:
        asked = member.answers.question
        return tuple(Demand(*one) for one in zip(asked.counts, asked.policies, strict=True))


def _on(gang: SlowGang, kind: NodeKind, mask: int, rails: tuple[int, ...] | None) -> bool:
    if rails is None:
        return True
    assert gang.rails_of is not None
    own = [gang.rails_of(kind)[ordinal] for ordinal in ordinals_of(mask)]
    if None in own:
        return False
    return Counter(own) == Counter(rails) if len(own) == len(rails) else not Counter(own) - Counter(rails)
