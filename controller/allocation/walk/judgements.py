"""What nodes were found to give, remembered by what is asked and by (kind, state) of the node.

Asking the rules of one node takes half a millisecond, and between two decisions hardly any node changes: so each state
of each kind is judged once for each thing that is asked, whatever pods and claims are called.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dracaena.controller.allocation.legal.outcome import DoesNotFit
from dracaena.controller.allocation.score.order import Score
from dracaena.controller.allocation.state.pool import NodeState

MAX_JUDGEMENTS: Final = 50_000
"""Of all that was asked lately together, some 400 bytes each: 100 different claims among 500 nodes of which each has a
state of its own. What was not asked for longest goes first."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a node gives: a score or, where nothing is chosen by links, none; or why it gives nothing."""

    refusal: DoesNotFit | None = None
    """With the place of each claim among the claims instead of its name."""
    score: Score | None = None
    rank: int = 0
    """Sorts nodes, best first; of those that give something."""


class KnownStates:
    """Judgements about one combination of alternatives."""

    __slots__ = ("_owner", "_refusals", "known")

    def __init__(self, owner: Judgements) -> None:
        self._owner = owner
        self.known: dict[NodeState, Judgement] = {}
        """By kind and state. Do not change it."""
        self._refusals: dict[DoesNotFit, Judgement] = {}

    def refuse(self, state: NodeState, found: DoesNotFit, claims: Sequence[str]) -> None:
        """Remember that a node gives nothing, unless the reason names something that other nodes do not have."""
        if found.pools or any(claim in found.note for claim in claims):
            return
        steps = found.steps if found.cut_off else 0
        reasons = tuple(replace(reason, claim=str(claims.index(reason.claim))) for reason in found.reasons)
        refusal = replace(found, reasons=reasons, steps=steps)
        self._put(state, self._refusals.setdefault(refusal, Judgement(refusal)))

    def accept(self, state: NodeState, score: Score | None, rank: int) -> None:
        """Remember what a node gives."""
        self._put(state, Judgement(None, score, rank))

    def _put(self, state: NodeState, judgement: Judgement) -> None:
        self._owner.count_one()
        self.known[state] = judgement

    def clear(self) -> int:
        """Forget all; return how many there were."""
        count = len(self.known)
        self.known.clear()
        self._refusals.clear()
        return count


def refusal_text(refusal: DoesNotFit, claims: Sequence[str]) -> str:
    """Return why a node gives nothing, with the claims' names."""
    reasons = tuple(replace(reason, claim=claims[int(reason.claim)]) for reason in refusal.reasons)
    return str(replace(refusal, reasons=reasons))


class Judgements:
    """All that is remembered, by what is asked (Combination.key). One thread at a time."""

    def __init__(self, most: int = MAX_JUDGEMENTS) -> None:
        self._most = most
        self._ways: OrderedDict[Hashable, KnownStates] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def about(self, combination: Hashable) -> KnownStates:
        """Return what is known about a combination, for the time of one decision."""
        known = self._ways.get(combination)
        if known is None:
            known = self._ways[combination] = KnownStates(self)
            self._count += 1  # so that what finds no node is forgotten too
        self._ways.move_to_end(combination)
        while self._count > self._most:
            oldest, judgements = next(iter(self._ways.items()))
            self._count -= judgements.clear()
            if judgements is known:
                break
            self._count -= 1
            del self._ways[oldest]
        return known

    def count_one(self) -> None:
        """Note that a judgement was added."""
        self._count += 1
