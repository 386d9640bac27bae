"""Every way to distribute the shares of a pod over the GPUs of one node (docs/design/shares.md).

Users write the requests, and whether they fit together is bin packing: some requests cannot be decided within a
lifetime. So each look at a GPU is charged and counted, what cannot succeed is noticed early, and the search ends at a
limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.quantity import NANO
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.legal.capacity import AmountDemand, whole_capacities
from dracaena.controller.allocation.score.box import SetRule, mask_of, ordinals_of, reached_from
from dracaena.controller.allocation.state.node_state import SharedGpu
from dracaena.controller.allocation.walk.shares.question import ShareQuestion

MAX_LOOKS: Final = 50_000
"""Looks at GPUs for one node: about 0.1 s, which is what a decision may take. Pods that fit are done earlier, and most
that do not fit are found out within some hundred looks."""

LOOK_STEPS: Final = 2
"""A look whether a share fits on a GPU; or a GPU whose state is compared with an earlier one."""

MOST_LEFT: Final = (1 << 46) - 1
"""Larger amounts, of one GPU or of several together, count as this, 70 TB of memory: a part of a rank has 47 bits."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What all shares of a GPU take of it, including those being distributed."""

    mode: str
    taken: Mapping[str, int] = field(default_factory=dict)


_Candidates = tuple[tuple[int, Filled], ...]
"""GPUs that may be taken, and how each would then be filled."""


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """One way to distribute the shares."""

    parts: tuple[tuple[int, int], ...]
    """Place of each request for shares, in order, and the mask of its GPUs."""
    filled: Mapping[int, Filled]
    """How the GPUs with a share of the pod are then filled, by ordinal."""


class ShareAssignments:
    """All assignments on a node in one state, for one question. Remembers nothing beyond itself."""

    def __init__(
        self,
        question: ShareQuestion,
        demands: Sequence[AmountDemand],
        masks: Mapping[int, int],
        in_use: Mapping[int, SharedGpu],
        rules: Mapping[int, SetRule],
        effort: Effort,
    ) -> None:
        """`demands`: those of the requests that get shares; `masks`: the GPUs that each of them may have;
        `in_use`: GPUs with shares and room, by ordinal; `rules`: which sets requests may have, by place; without a rule
        any set."""
        every = (1 << question.kind.box.gpu_count) - 1
        self._rules = {
            place: (rule, tuple(_near(rule, ordinal) for ordinal in ordinals_of(every)))
            for place, rule in rules.items()
            if not rule.any_set or rule.eligible != every
        }
        self._question, self._masks, self._in_use, self._effort = question, masks, in_use, effort
        self._demands = tuple(demands)
        self.looks = 0
        self._dead: set[Hashable] = set()
        self._kinds = self._gpu_kinds()
        self.cut_off = False
        """Whether the search reached its limit: there may be more assignments."""

    def all(self, free: int) -> Iterator[ShareAssignment]:
        """Yield the assignments; `free` are GPUs without shares that may also be taken. Lazy; those that begin with the
        fullest GPUs come first. Ends at the latest after MAX_LOOKS looks, of all calls together."""
        candidates = {demand.place: self._candidates(free, demand, {}) for demand in self._demands}
        if any(len(candidates[demand.place]) < demand.count for demand in self._demands) or not self._has_room(free):
            return
        # The demand with least choice comes first, so that what cannot succeed is noticed early.
        order = sorted(self._demands, key=lambda one: (len(candidates[one.place]) - one.count, one.place))
        yield from self._complete(free, order, {}, ())

    def _complete(
        self, free: int, rest: Sequence[AmountDemand], now: Mapping[int, Filled], parts: tuple[tuple[int, int], ...]
    ) -> Iterator[ShareAssignment]:
        """Yield the assignments that also serve the rest of the requests."""
        if not rest:
            yield ShareAssignment(tuple(sorted(parts)), now)
            return
        state = (len(rest), self._state(free, now))
        if state in self._dead:
            return
        demand, found = rest[0], False
        candidates = self._candidates(free, demand, now)
        if all(len(self._candidates(free, other, now)) >= other.count for other in rest[1:]):
            for chosen in self._sets(candidates, demand):
                part = (demand.place, mask_of(ordinal for ordinal, _ in chosen))
                for assignment in self._complete(free, rest[1:], {**now, **dict(chosen)}, (*parts, part)):
                    found = True
                    yield assignment
        if not found and not self.cut_off:
            self._dead.add(state)

    def _sets(self, candidates: _Candidates, demand: AmountDemand) -> Iterator[_Candidates]:
        """Yield the sets of GPUs for a request that its policy allows."""
        if demand.place not in self._rules:
            yield from self._subsets(candidates, demand.count, 0, -1, ())
            return
        rule, near = self._rules[demand.place]
        for chosen in self._subsets(candidates, demand.count, 0, rule.eligible, near):
            if rule.allows(mask_of(ordinal for ordinal, _ in chosen)):
                yield chosen

    def _subsets(
        self, candidates: _Candidates, count: int, start: int, mask: int, near: Sequence[int]
    ) -> Iterator[_Candidates]:
        """Yield the sets of `count` candidates from a place on, of those in the mask. `near`: for each GPU those that
        may share a set with it; empty: any."""
        if not count:
            yield ()
            return
        for index in range(start, len(candidates) - count + 1):
            self._look(1)
            if self.cut_off:
                return
            ordinal, _ = candidates[index]
            if mask >> ordinal & 1:
                left = mask & near[ordinal] if near else mask
                for others in self._subsets(candidates, count - 1, index + 1, left, near):
                    yield (candidates[index], *others)

    def _state(self, free: int, now: Mapping[int, Filled]) -> Hashable:
        """Return what decides whether the rest can be served: how many GPUs of each kind are filled how far."""
        self._look(len(self._kinds))
        states = []
        for ordinal, kind in self._kinds.items():
            filled = now.get(ordinal) or self._before(free, ordinal)
            if filled is not None:
                states.append((kind, filled.mode, tuple(sorted(filled.taken.items()))))
        return tuple(sorted(states))

    def _gpu_kinds(self) -> dict[int, int]:
        """Return a number for each GPU that some share may be of, the same for GPUs that are equal to all shares."""
        kinds: dict[Hashable, int] = {}
        found = {}
        for ordinal, one in enumerate(self._question.kind.devices):
            wanted = [
                self._question.taken[demand.place][ordinal] if self._masks[demand.place] >> ordinal & 1 else None
                for demand in self._demands
            ]
            if one is None or not any(wanted):
                continue
            takes = tuple(None if amounts is None else tuple(sorted(amounts.items())) for amounts in wanted)
            has = tuple((held.name, held.value.nano) for held in one.device.capacities)
            is_shareable = self._question.kind.shareable >> ordinal & 1
            links = tuple(self._links(rule, ordinal) for rule, _ in self._rules.values())
            found[ordinal] = kinds.setdefault((takes, has, is_shareable, links), len(kinds))
        return found

    @staticmethod
    def _links(rule: SetRule, ordinal: int) -> Hashable:
        """Return the GPUs that can change places with one without changing anything else, including itself."""
        return next(mask for mask in rule.table.twins if mask >> ordinal & 1)

    def _has_room(self, free: int) -> bool:
        """Whether the shares could fit, judged by sums for each capacity: all of them into what is left of all GPUs,
        and the largest n, as if they were equal, into the places for shares of that size."""
        self._look(len(self._kinds) * len(self._demands))
        names = {name for demand in self._demands for one in self._question.taken[demand.place] for name in one or ()}
        return all(self._has_room_of(name, free) for name in sorted(names))

    def _has_room_of(self, name: str, free: int) -> bool:
        lefts = [left for ordinal in self._kinds for left in self._left_nano(name, free, ordinal)]
        sizes = sorted((self._least(name, demand), demand.count) for demand in self._demands)
        if sum(size * count for size, count in sizes) > sum(left for left, _ in lefts):
            return False
        wanted = 0
        for number, (size, count) in enumerate(reversed(sizes), 1):
            wanted += count
            if wanted > sum(_places(left, size, number if is_shareable else 1) for left, is_shareable in lefts):
                return False
        return True

    def _least(self, name: str, demand: AmountDemand) -> int:
        """Return the least that a share of a request takes of a capacity, whichever GPU it is of."""
        found = [self._question.taken[demand.place][ordinal] for ordinal in self._kinds]
        return min((one.get(name, 0) for one in found if one is not None), default=0)

    def _left_nano(self, name: str, free: int, ordinal: int) -> Iterator[tuple[int, int]]:
        """Yield what is left of a GPU's capacity, and whether several shares can have it; nothing if the GPU is taken.

        A GPU without the capacity has none left, and a share takes none of it there."""
        before, one = self._before(free, ordinal), self._question.kind.devices[ordinal]
        if before is not None and one is not None:
            has = sum(held.value.nano for held in one.device.capacities if held.name == name)
            yield max(0, has - before.taken.get(name, 0)), self._question.kind.shareable >> ordinal & 1

    # One GPU

    def gpus_with_room(self, free: int, demand: AmountDemand) -> int:
        """Return how many GPUs have room for a share of a request, ignoring the other requests."""
        order = self._order(free, demand)
        return sum(self._filled(free, demand, ordinal, {}) is not None for ordinal in order)

    def _candidates(self, free: int, demand: AmountDemand, now: Mapping[int, Filled]) -> _Candidates:
        """Return the GPUs with room for another share, each with how it would then be filled; the fullest in use
        first."""
        order = self._order(free, demand)
        self._look(len(order))
        found = ((ordinal, self._filled(free, demand, ordinal, now)) for ordinal in order)
        return () if self.cut_off else tuple((ordinal, filled) for ordinal, filled in found if filled is not None)

    def _look(self, count: int) -> None:
        self._effort.charge(count * LOOK_STEPS, Work.SETS)
        self.looks += count
        self.cut_off = self.cut_off or self.looks > MAX_LOOKS

    def _order(self, free: int, demand: AmountDemand) -> Sequence[int]:
        """Return the GPUs that a request may have, those in use first, the fullest of them first."""
        mask = self._masks[demand.place]
        in_use = [one for one in self._in_use.values() if mask >> one.ordinal & 1]
        in_use.sort(key=lambda one: (self.left_of(one.ordinal, dict(one.taken)), one.ordinal))
        return [*(one.ordinal for one in in_use), *ordinals_of(mask & free)]

    def _before(self, free: int, ordinal: int) -> Filled | None:
        """Return how a GPU is filled before the pod; None if it cannot be given."""
        shared = self._in_use.get(ordinal)
        if shared is not None:
            return Filled(shared.mode, dict(shared.taken))
        return Filled("") if free >> ordinal & 1 else None

    def _filled(self, free: int, demand: AmountDemand, ordinal: int, now: Mapping[int, Filled]) -> Filled | None:
        """Return how a GPU is filled with one more share; None if there is no room for it."""
        wanted = self._question.taken[demand.place][ordinal]
        one = self._question.kind.devices[ordinal]
        if wanted is None or one is None:
            return None
        before = now.get(ordinal)
        if before is None:
            shared = self._in_use.get(ordinal)
            if shared is None and not free >> ordinal & 1:
                return None
            before = Filled(demand.mode, {}) if shared is None else Filled(shared.mode, dict(shared.taken))
        elif not self._question.kind.shareable >> ordinal & 1:
            return None  # given whole, to another request of the pod
        if before.mode != demand.mode:
            return None
        taken = {name: before.taken.get(name, 0) + amount for name, amount in wanted.items()}
        if any(taken[held.name] > held.value.nano for held in one.device.capacities):
            return None
        return Filled(demand.mode, taken)

    def left_of(self, ordinal: int, taken: Mapping[str, int]) -> tuple[int, int]:
        """Return what a GPU has left of capacities that are taken whole by default, and of all others; in ones."""
        one = self._question.kind.devices[ordinal]
        assert one is not None
        by_default = whole_capacities(one.device)
        first = other = 0
        for held in one.device.capacities:
            left = (held.value.nano - taken.get(held.name, 0)) // NANO
            if held.name in by_default:
                first += left
            else:
                other += left
        return min(first, MOST_LEFT), min(other, MOST_LEFT)


def _near(rule: SetRule, ordinal: int) -> int:
    """Return the GPUs that may share a set with a GPU, judged by pairs."""
    near = rule.eligible if rule.peers is None else rule.eligible & rule.peers[ordinal]
    if rule.nvlink:
        near &= reached_from(1 << ordinal, rule.table.box.nvlink_peers, -1)
    return near


def _places(left: int, size: int, most: int) -> int:
    """Return how many shares of a size fit into what is left."""
    return min(left // size, most) if size else most
