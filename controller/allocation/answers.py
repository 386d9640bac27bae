"""What nodes can give to pods that ask alike, remembered by the kind of node and its free devices.

A decision looks at every bucket of the inventory, so a look must cost one step: the question is resolved once for a
decision, the kind once for all its buckets, and then the mask of free devices is the only key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dracaena.api.config.v1alpha1 import TopologyPolicy
from dracaena.controller.allocation.choices import Choice, Demand, Engine
from dracaena.controller.allocation.eligibility import Eligibility
from dracaena.controller.allocation.pool import NodeKind

MAX_ANSWERS: Final = 100_000
"""Remembered answers of all questions together, about 40 MB. Five kinds of 8-GPU nodes have 1,280 for a question; the
questions not asked for longest go first."""


_PART_BITS: Final = 48
"""Bits of a part of a rank: even kB/s would fit."""
_HALF: Final = 1 << (_PART_BITS - 1)


@dataclass(frozen=True, slots=True)
class Question:
    """What a pod asks of one node, whatever the node: pods with equal questions get equal answers."""

    counts: tuple[int, ...]
    """GPUs of each request, in the order of claims and requests."""
    policies: tuple[TopologyPolicy, ...]
    """Of each request."""
    eligibility: Eligibility

    @property
    def count(self) -> int:
        """GPUs of all requests together."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best that a node has to give, and the next best."""

    best: Choice | None
    second: Choice | None = None
    rank: int = 0
    """Sorts nodes, best first; of those that have something to give. The rank of the score as one number: a decision
    compares many, and numbers compare three times as fast as tuples."""
    reason: str = ""
    """Why there is nothing, in words that follow a count of nodes."""


class KindAnswers:
    """Answers of all nodes of one kind to one question."""

    __slots__ = ("_demands", "_engine", "_kind", "_owner", "_present", "known")

    def __init__(self, owner: Answers, engine: Engine, question: Question, kind: NodeKind) -> None:
        eligible = question.eligibility.of_kind(kind)
        self._owner = owner
        self._engine = engine
        self._kind = kind
        self._present = eligible.present
        self._demands = tuple(
            # "All that is there" is said in one way only: the engine's tables are shared by equal demands.
            Demand(count, policy, None if mask == eligible.present else mask)
            for count, policy, mask in zip(question.counts, question.policies, eligible.of_request, strict=True)
        )
        self.known: dict[int, Answer] = {}
        """Mask of the free devices → answer; what was asked so far."""

    def of(self, free: int) -> Answer:
        """Return the answer of a node with these free devices."""
        answer = self.known.get(free)
        if answer is None:
            answer = self.known[free] = self.beside(free, 0)
            self._owner.count_one()
        return answer

    def beside(self, free: int, held: int) -> Answer:
        """Return the answer for a pod that holds devices of the node already. Remembered by the engine alone."""
        found = self._engine.best_two(self._kind.box, free & self._present & ~held, self._demands, held)
        if found.best is None:
            assert found.shortfall is not None
            return Answer(None, reason=found.shortfall.text)
        return Answer(found.best, found.second, one_number(found.best.score.rank()))


def one_number(rank: Iterable[int]) -> int:
    """Return a number that sorts as the parts do, in their order; all ranks have to have as many parts."""
    number = 0
    for part in rank:
        assert abs(part) < _HALF, "a part of a rank is below 2^47"
        number = (number << _PART_BITS) + part + _HALF
    return number


class Answers:
    """All that is remembered, by question. One thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_question: OrderedDict[Question, dict[NodeKind, KindAnswers]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def to(self, question: Question) -> QuestionAnswers:
        """Return what answers a question, for the time of one decision."""
        known = self._by_question.get(question)
        if known is None:
            known = self._by_question[question] = {}
            self._count += 1  # so that questions which find no node are forgotten too
        self._by_question.move_to_end(question)
        self._forget(but=question)
        return QuestionAnswers(self, self._engine, question, known)

    def count_one(self) -> None:
        """Note that an answer was added."""
        self._count += 1

    def _forget(self, but: Question) -> None:
        """Forget the questions not asked for longest, and at last all answers to this one."""
        while self._count > MAX_ANSWERS:
            question = next(iter(self._by_question))
            kinds = self._by_question[question]
            self._count -= sum(len(answers.known) for answers in kinds.values())
            kinds.clear()
            if question == but:
                break
            self._count -= 1
            del self._by_question[question]


class QuestionAnswers:
    """Answers to one question, by kind."""

    __slots__ = ("_answers", "_engine", "_kinds", "_question")

    def __init__(
        self, answers: Answers, engine: Engine, question: Question, kinds: dict[NodeKind, KindAnswers]
    ) -> None:
        self._answers = answers
        self._engine = engine
        self._question = question
        self._kinds = kinds

    def of_kind(self, kind: NodeKind) -> KindAnswers:
        """Return the answers of one kind of node."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = KindAnswers(self._answers, self._engine, self._question, kind)
        return known
