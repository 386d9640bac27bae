"""What single nodes are found to give if the answer for their kind is only a bound, and what is remembered of them.

Asking the rules about one node takes half a millisecond, and between two decisions hardly any node changes. So each
state of each kind is judged once for each request, whatever the names of pods and claims (Judgements).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from dracaena.api.decision import part_in_words
from dracaena.controller.allocation.legal.outcome import DoesNotFit, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.score.choices import Choice
from dracaena.controller.allocation.score.order import LATER_BY_NAME, Score
from dracaena.controller.allocation.state.node_state import NodePool, NodeState

UNSCORED: Final = 1 << 4096
"""Rank of an allocation in which nothing was chosen by links: it comes after all others."""

FIRST: Final = -1
"""Bound of nodes about which nothing is known until the rules are asked: they are visited first."""


@dataclass(frozen=True, slots=True)
class FractionsThere:
    """What it means for the GPUs of a node that it gives fractions of them to a pod."""

    rank: int
    """Sorts the nodes of one decision, best first."""
    worse: str
    """Why other nodes come later, in words that follow a count of nodes."""
    joined: int = 0
    """Mask of the GPUs in use of which the pod gets a share."""
    devices: tuple[tuple[str, ...], ...] | None = None
    """The names of each request's parts, empty for one that gets whole GPUs of the choice; None if the rules allocated
    (NodeChoice.legal)."""


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """What one node gives to a pod."""

    pool: NodePool
    best: Choice | None
    """None if nothing is chosen by links."""
    second: Choice | None = None
    """The next best choice there, if it is known."""
    legal: tuple[Problem, Plan] | None = None
    """What the rules allocated; None if only the parts of the best choice are given."""
    cut_off: bool = False
    """Whether the search ended at its limit: a better set may exist."""
    fractions: FractionsThere | None = None
    """None if the pod gets no fractions of GPUs."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a node gives: a score, or none if nothing is chosen by links; or why it gives nothing."""

    refusal: DoesNotFit | None = None
    """With the place of each claim among the claims instead of its name."""
    score: Score | None = None
    rank: int = 0
    """Sorts the nodes that give something, best first."""


class Judged(NamedTuple):
    """Nodes for which we know how good what they give is, but not which devices it has."""

    state: NodeState
    judgement: Judgement


def worse_in(winner: NodeChoice, other: Judged | NodeChoice, seen: Callable[[Score], Score] | None) -> str:
    """Say why the winner came before nodes that also give something. `seen` returns the other score as the pod's family
    sees it; None: unchanged."""
    if winner.fractions is not None:
        return winner.fractions.worse
    best, score = (_score_of(found) for found in (winner, other))
    if score is not None and seen is not None:
        score = seen(score)
    part = None if best is None or score is None else best.first_difference(score)
    return LATER_BY_NAME if part is None else f"worse in {part_in_words(part)}"


def _score_of(found: Judged | NodeChoice) -> Score | None:
    if isinstance(found, Judged):
        return found.judgement.score
    return None if found.best is None else found.best.score


MAX_JUDGEMENTS: Final = 50_000
"""Judgements about everything that was asked lately, some 400 bytes each: 100 different claims among 500 nodes that
each have a state of their own. The least recently asked are dropped first."""


class KnownStates:
    """Judgements about one combination of alternatives."""

    __slots__ = ("_owner", "_refusals", "bounds", "known")

    def __init__(self, owner: Judgements) -> None:
        self._owner = owner
        self.bounds: dict[tuple[NodeState, int], int | str] = {}
        """The best rank of nodes whose GPUs are given in shares, or why there is no place. By state and GPUs that the
        pod has there. note_bound() adds to it."""
        self.known: dict[NodeState, Judgement] = {}
        """By kind and state. Read only."""
        self._refusals: dict[DoesNotFit, Judgement] = {}

    def refuse(self, state: NodeState, found: DoesNotFit, claims: Sequence[str]) -> None:
        """Remember that a node gives nothing, unless the reason names something that is not on other nodes."""
        if found.pools or any(claim in found.note for claim in claims):
            return
        steps = found.steps if found.cut_off else 0
        reasons = tuple(replace(reason, claim=str(claims.index(reason.claim))) for reason in found.reasons)
        refusal = replace(found, reasons=reasons, steps=steps)
        self._put(state, self._refusals.setdefault(refusal, Judgement(refusal)))

    def accept(self, state: NodeState, score: Score | None, rank: int) -> None:
        """Remember what a node gives."""
        self._put(state, Judgement(None, score, rank))

    def note_bound(self, state: NodeState, held: int, bound: int | str) -> None:
        """Remember the bound of nodes whose GPUs are given in shares."""
        self._owner.count_one()
        self.bounds[state, held] = bound

    def _put(self, state: NodeState, judgement: Judgement) -> None:
        self._owner.count_one()
        self.known[state] = judgement

    def clear(self) -> int:
        """Forget all; return how many there were."""
        count = len(self.known) + len(self.bounds)
        self.known.clear()
        self.bounds.clear()
        self._refusals.clear()
        return count


def refusal_text(refusal: DoesNotFit, claims: Sequence[str]) -> str:
    """Return why a node gives nothing, with the claims' names."""
    reasons = tuple(replace(reason, claim=claims[int(reason.claim)]) for reason in refusal.reasons)
    return str(replace(refusal, reasons=reasons))


class Judgements:
    """All that is remembered, by what is asked, the taints of all devices, the form of ranks. One thread at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_combination: OrderedDict[Hashable, KnownStates] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all."""
        self._by_combination.clear()
        self._count = 0

    def about(self, combination: Hashable) -> KnownStates:
        """Return what is known about a combination, for the time of one decision. `combination` is all that decides
        it: Combination.key, Inventory.taints_of_all and the form of the ranks (NodeRules)."""
        known = self._by_combination.get(combination)
        if known is None:
            known = self._by_combination[combination] = KnownStates(self)
            self._count += 1  # so that combinations that find no node are forgotten too
        self._by_combination.move_to_end(combination)
        while self._count > self._most:
            oldest, judgements = next(iter(self._by_combination.items()))
            self._count -= judgements.clear()
            if judgements is known:
                break
            self._count -= 1
            del self._by_combination[oldest]
        return known

    def count_one(self) -> None:
        """Note that a judgement was added."""
        self._count += 1
