"""Where the shares of a pod go on one node, and its whole GPUs beside them (docs/design/0029-shares.md).

A request for an amount of a GPU's capacities gets a share if the GPU is given in shares. It joins the GPU in use that
it fills best, else it takes the free one whose loss hurts the rest least. Whole GPUs are chosen first, as if the shares
took nothing, but so that the shares find a place. legal judges what the API allows beyond amounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Final

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.api.reasons import of_untainted
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.legal.capacity import AmountDemand
from dracaena.controller.allocation.score.box import SetRule, make_rule, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.state.node_state import NodeKind, NodeState, SharedGpu
from dracaena.controller.allocation.walk.shares.assignments import MOST_LEFT, ShareAssignment, ShareAssignments
from dracaena.controller.allocation.walk.shares.question import ShareQuestion

MAX_ASSIGNMENTS: Final = 5_000
"""Ways to distribute the shares of one pod that are compared for a set of whole GPUs: four shares over eight GPUs have
4,096. If there are more, those that begin with the fullest GPUs are compared."""

MAX_EQUAL_SETS: Final = 128
"""Sets of whole GPUs of equal worth that are compared by what they leave to the shares: all 70 of 4 among 8 GPUs."""


def most_memory(kind: NodeKind, state: NodeState | str, node: str) -> Iterator[tuple[int, int, str]]:
    """Yield, for each GPU of a node that is given in shares, its memory and what is left of it, in billionths."""
    if isinstance(state, str):
        return
    in_use = {one.ordinal: one for one in state.shares}
    for ordinal in ordinals_of(kind.shareable):
        one = kind.devices[ordinal]
        for held in () if one is None else one.device.capacities:
            if held.name == MEMORY_CAPACITY:
                shared = in_use.get(ordinal)
                left = held.value.nano if state.free >> ordinal & 1 else 0
                if shared is not None:
                    left = held.value.nano - dict(shared.taken).get(MEMORY_CAPACITY, 0)
                yield held.value.nano, left, node


@dataclass(frozen=True, slots=True)
class SharePlacement:
    """One way to serve the pod on a node."""

    parts: tuple[int, ...]
    """Mask of the GPUs of each request: whole ones, and those that it has a share of."""
    whole: Choice | None
    """The whole GPUs; None if the pod gets none here."""
    rank: int
    """Sorts the nodes of one decision, best first."""
    order: tuple[object, ...]
    """Sorts the places on one node, best first."""
    joined: int
    """Mask of the GPUs in use that the pod joins."""


@dataclass(slots=True)
class _Dealt:
    """Shares distributed beside one set of whole GPUs."""

    whole: Choice | None
    parts: tuple[tuple[int, int], ...]
    """Place of each request for shares, mask of its GPUs."""
    fresh: int
    joined: int
    wasted: int
    """GPUs that are not given in shares and are taken whole for an amount."""
    left: tuple[int, int]
    """What the GPUs then have left: of capacities that are taken whole by default, and of all others; in ones."""

    @property
    def count_rank(self) -> tuple[int, int]:
        return self.fresh.bit_count(), self.wasted.bit_count()


class SharePlaces:
    """The places on a node in one state, for one question. Remembers nothing beyond itself."""

    def __init__(
        self,
        question: ShareQuestion,
        engine: Engine,
        effort: Effort,
        *,
        free: int,
        shares: Sequence[SharedGpu],
        held: int = 0,
        masks: Sequence[int] | None = None,
        hidden: int = 0,
    ) -> None:
        """`free`: whole GPUs that count for the pod and can be given; `shares`: GPUs in use with room; `held`: GPUs
        there that the pod already has. `masks`: the GPUs that each request may have, if more is known about the node
        than its kind. `hidden`: GPUs that have taints which keep the pod off, so that nothing is said of them.
        """
        self._which = "untainted " if hidden else ""
        self.question, self._engine, self._effort = question, engine, effort
        self._free, self._held = free, held
        self._in_use = {one.ordinal: one for one in shares}
        self._masks = question.masks if masks is None else tuple(map(int.__and__, question.masks, masks))
        # If there is more than GPUs, a request that no GPU can serve may be about the rest.
        is_about_gpus = [bool(mask) or not question.kind.is_mixed for mask in self._masks]
        self._shares = tuple(one for one in question.shares if is_about_gpus[one.place])
        self._whole = tuple(place for place in question.whole if is_about_gpus[place])
        self._nothing = tuple(Demand(0, policy) for policy in question.policies)
        self._assignments = ShareAssignments(question, self._shares, self._masks, self._in_use, self._rules(), effort)
        self._is_cut_off = False

    @property
    def looks(self) -> int:
        """Looks at GPUs so far."""
        return self._assignments.looks

    @property
    def cut_off(self) -> bool:
        """Whether not all places were compared."""
        return self._is_cut_off or self._assignments.cut_off

    def all(self) -> Iterator[SharePlacement]:
        """Yield the places, best first: by the whole GPUs, as if no share were asked for; then the fewest GPUs without
        shares, then those whose loss does least damage, then the least that is left over in the GPUs that then have a
        share of the pod's. Lazy. At most MAX_EQUAL_SETS equal sets of whole GPUs are compared by the latter, with at
        most MAX_ASSIGNMENTS of the shares for each, and MAX_LOOKS for all together.
        """
        for choices in self._equal_choices():
            dealt = [one for choice in choices for one in self._deal(choice)]
            dealt.sort(key=lambda one: one.count_rank)
            for _, equal in groupby(dealt, key=lambda one: one.count_rank):
                yield from map(self._placement, sorted(equal, key=self._rank_on_node))
            if self._assignments.cut_off:
                return

    def refusal(self) -> str:
        """Return why there is no place, in words that follow a count of nodes."""
        question = self.question
        for demand in question.amounts:
            reason = self._refusal_of(demand)
            if reason:
                return reason
        wanted = sum(question.counts[place] for place in self._whole)
        if wanted and next(self._choices(), None) is None:
            found = self._engine.best_two(question.kind.box, self._free, self._demands(), self._held)
            lack = found.shortfall or f"without {wanted} free GPUs that the requests accept"
            return of_untainted(lack) if self._which else lack
        where = f" on {self._which}GPUs" if self._which else ""
        if self.cut_off:
            return f"no room was found for everything that the pod requests at once{where}"
        return f"without room for everything that the pod requests at once{where}"

    # Whole GPUs

    def _demands(self) -> tuple[Demand, ...]:
        question = self.question
        return tuple(
            Demand(
                question.counts[place],
                question.policies[place],
                None if self._masks[place] & self._free == self._free else self._masks[place] & self._free,
            )
            for place in self._whole
        )

    def _choices(self) -> Iterator[Choice]:
        return self._engine.choices(self.question.kind.box, self._free, self._demands(), self._held)

    def _equal_choices(self) -> Iterator[Sequence[Choice | None]]:
        if not self._whole:
            yield (None,)
            return
        for _, equal in groupby(self._choices(), key=lambda choice: choice.score.rank()):
            yield list(islice(equal, MAX_EQUAL_SETS))

    # Shares

    def _deal(self, choice: Choice | None) -> Iterator[_Dealt]:
        """Yield the assignments of shares beside a set of whole GPUs."""
        free = self._free & ~(0 if choice is None else choice.mask)
        for number, assignment in enumerate(self._assignments.all(free)):
            if number == MAX_ASSIGNMENTS:
                self._is_cut_off = True
                return
            self._effort.charge(SET_STEPS, Work.SETS)
            yield self._dealt(choice, assignment)

    def _dealt(self, choice: Choice | None, assignment: ShareAssignment) -> _Dealt:
        filled = assignment.filled
        touched = sum(1 << ordinal for ordinal in filled)
        joined = sum(1 << ordinal for ordinal in filled if ordinal in self._in_use)
        shareable = self.question.kind.shareable
        left_of = self._assignments.left_of
        lefts = [left_of(ordinal, filled[ordinal].taken) for ordinal in ordinals_of(touched & shareable)]
        left = (min(sum(one for one, _ in lefts), MOST_LEFT), min(sum(one for _, one in lefts), MOST_LEFT))
        return _Dealt(choice, assignment.parts, touched & ~joined, joined, touched & ~shareable, left)

    def _rules(self) -> dict[int, SetRule]:
        """Return which sets the policies of requests for shares allow, by place."""
        policies, box = self.question.policies, self.question.kind.box
        places = [demand.place for demand in self._shares if policies[demand.place] != NO_POLICY]
        if not places:
            return {}
        table, every = self._engine.table(box, self._nothing), (1 << box.gpu_count) - 1
        return {place: make_rule(table, policies[place], every) for place in places}

    # Comparing

    def _rank_on_node(self, dealt: _Dealt) -> tuple[object, ...]:
        return self._fresh_rank(dealt), *dealt.left, tuple(ordinals_of(mask) for _, mask in dealt.parts)

    def _fresh_rank(self, dealt: _Dealt) -> tuple[int, ...]:
        if not dealt.fresh:
            return ()
        free = self._free & ~(0 if dealt.whole is None else dealt.whole.mask)
        return self._engine.score(self.question.kind.box, free, dealt.fresh, self._nothing).rank()

    def _placement(self, dealt: _Dealt) -> SharePlacement:
        parts = [0] * len(self.question.counts)
        if dealt.whole is not None:
            for place, part in zip(self._whole, dealt.whole.parts, strict=True):
                parts[place] = part
        for place, part in dealt.parts:
            parts[place] = part
        of_whole = () if dealt.whole is None else (dealt.whole.score.rank(), dealt.whole.parts)
        order = (of_whole[:1], dealt.count_rank, self._rank_on_node(dealt), of_whole)
        return SharePlacement(tuple(parts), dealt.whole, self._rank(dealt), order, dealt.joined)

    def _rank(self, dealt: _Dealt) -> int:
        return self.rank(self._node_rank(dealt), *dealt.count_rank, dealt.left)

    def rank(self, nodes: tuple[int, ...], fresh: int = 0, wasted: int = 0, left: tuple[int, int] = (0, 0)) -> int:
        """Return the rank of a node, given the rank of its whole GPUs. GPUs that are lost to sets count before the
        position of the pod's one whole GPU, and after the links of several."""
        question = self.question
        for demand in question.amounts:
            if demand not in question.shares:
                fresh += demand.count
                wasted += demand.count if self._wastes(demand) else 0
        told = (*nodes, fresh, wasted) if question.is_linked else (fresh, wasted, *nodes)
        return one_number((*told, *left, self._free.bit_count()))

    def _wastes(self, demand: AmountDemand) -> bool:
        """Whether whole GPUs are given for an amount that takes a part of them."""
        taken, devices = self.question.taken[demand.place], self.question.kind.devices
        return any(
            amount is not None
            and one is not None
            and any(
                amount[held.name] < held.value.nano for held in one.device.capacities if held.name in demand.capacity
            )
            for amount, one in zip(taken, devices, strict=True)
        )

    def _node_rank(self, dealt: _Dealt) -> tuple[int, ...]:
        """Return the part of a node's rank that its whole GPUs decide, including those that shares take."""
        box = self.question.kind.box
        if dealt.whole is None and not dealt.fresh:
            return (0,) * len(self._engine.order(self._nothing).node_names)
        if dealt.whole is None:
            return self._engine.score(box, self._free, dealt.fresh, self._nothing, self._held).node_rank()
        score = dealt.whole.score
        if dealt.fresh:
            lost = self._engine.score(box, self._free, dealt.whole.mask | dealt.fresh, self._nothing, self._held)
            score = replace(
                score,
                damage_gb_s=lost.damage_gb_s,
                damage_ring_gb_s=lost.damage_ring_gb_s,
                damage_levels=lost.damage_levels,
                taken_gpus=lost.taken_gpus,
            )
        return score.node_rank()

    # Reasons

    def _refusal_of(self, demand: AmountDemand) -> str:
        """Return why there is no share for a request alone; "" if there is one."""
        mask, words = self._masks[demand.place], str(demand)
        if not mask and not self.question.kind.shareable:
            return "whose GPUs are not available in shares"
        if not any(self.question.taken[demand.place]):
            return f"whose GPUs never have {words}"
        if not mask:
            return "without a GPU that the request may have"
        if self._assignments.gpus_with_room(self._free, demand) >= demand.count:
            return ""
        others = {
            shared.mode
            for shared in self._in_use.values()
            if mask >> shared.ordinal & 1 and self._has_room(demand, shared)
        }
        if others:
            return f"whose {self._which}GPUs with {words} left are shared in another mode ({', '.join(sorted(others))})"
        if demand.count > 1:
            return f"with fewer than {demand.count} {self._which}GPUs with {words} left"
        return f"without {words} left on one {self._which}GPU"

    def _has_room(self, demand: AmountDemand, shared: SharedGpu) -> bool:
        wanted, one = self.question.taken[demand.place][shared.ordinal], self.question.kind.devices[shared.ordinal]
        if wanted is None or one is None:
            return False
        left = shared.left_nano(one.device)
        return all(wanted[name] <= left[name] for name in wanted)
