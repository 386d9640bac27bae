"""What nodes can give to pods that ask alike, remembered by the kind of node and its free devices.

A decision looks at every bucket of the inventory, so a look must cost one step: the question is resolved once for a
decision, the kind once for all its buckets, and then the mask of free devices is the only key. Which devices of a kind
each request may use is asked once, and only of kinds that a decision comes to (eligible): taints and selectors
decide. Selectors that read what tells devices of equal nodes apart are left to node_rules. Last, what all nodes that
were not taken had to give (Census).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Final

from dracaena.api.decision import part_in_words
from dracaena.api.objects import Taint, Toleration
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.selectors import SelectorFailure, Selectors
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.request import Eligibility, Question
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.order import first_difference, one_number
from dracaena.controller.allocation.state.device_kind import groups
from dracaena.controller.allocation.state.node_state import NodeKind
from dracaena.controller.allocation.walk.partitions.question import PartQuestion, part_question


@dataclass(frozen=True, slots=True)
class Failure:
    """A selector that has no answer for a device. The device is not given; a person should mend the selector."""

    request: int
    """Place among the requests."""
    expression: str
    reason: str


@dataclass(frozen=True, slots=True)
class Eligible:
    """Masks over the ordinals of a kind of node."""

    present: int
    """Devices that count for this pod at all, free or not. The others neither are taken nor make a node whole: nobody
    can use them who does not tolerate what they suffer from."""
    of_request: tuple[int, ...]
    """One mask a request: what it may take. A part of `present`."""
    failures: tuple[Failure, ...] = ()
    """At most one a request."""


def eligible(eligibility: Eligibility, kind: NodeKind, selectors: Selectors) -> Eligible:
    """Return the masks for all nodes of a kind. Cost: O(requests × devices), selectors asked once for each."""
    every = (1 << kind.box.gpu_count) - 1
    taints_of_all = eligibility.taints_of_all
    tolerated = [every & ~_untolerated(kind, taints_of_all, tolerations) for tolerations in eligibility.tolerations]
    present = 0
    for mask in tolerated:
        present |= mask
    failures: list[Failure] = []
    for request, expressions in enumerate(eligibility.selectors):
        if expressions:
            tolerated[request] &= _matching(kind, selectors, request, expressions, failures)
    return Eligible(present, tuple(tolerated), tuple(failures))


def _untolerated(kind: NodeKind, taints_of_all: tuple[Taint, ...], tolerations: Sequence[Toleration]) -> int:
    if first_untolerated(taints_of_all, tolerations) is not None:
        return -1
    mask = 0
    for ordinal, taints in kind.foreign_taints:
        if first_untolerated(taints, tolerations) is not None:
            mask |= 1 << ordinal
    return mask


def _matching(
    kind: NodeKind, selectors: Selectors, request: int, expressions: Sequence[str], failures: list[Failure]
) -> int:
    """Return the devices that all expressions match; the first failure of each request is added to `failures`."""
    mask = 0
    for ordinal, device_kind in enumerate(kind.devices):
        if device_kind is None:
            continue
        for expression in expressions:
            answer = selectors.evaluate(expression, device_kind.device)
            if isinstance(answer, SelectorFailure):
                if all(failure.request != request for failure in failures):
                    failures.append(Failure(request, expression, answer.reason))
                break
            if not answer:
                break
        else:
            mask |= 1 << ordinal
    return mask


MAX_ANSWERS: Final = 100_000
"""Remembered answers of all questions together, about 40 MB. Five kinds of 8-GPU nodes have 1,280 for a question; the
questions not asked for longest go first."""


MAX_SETS: Final = 20_000
"""Sets of GPUs that are looked at for one that holds to distinctAttribute: more than any 16 GPUs have of one size."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The best that a node has to give, and the next best."""

    best: Choice | None
    second: Choice | None = None
    rank: int = 0
    """Sorts nodes, best first; of those that have something to give. The rank of the score as one number: a decision
    compares many, and numbers compare three times as fast as tuples."""
    bound: int = 0
    """What no other set of the node comes before (Score.best_node_rank)."""
    reason: str = ""
    """Why there is nothing, in words that follow a count of nodes."""


class KindAnswers:
    """Answers of all nodes of one kind to one question."""

    __slots__ = (
        "_distinct",
        "_engine",
        "_kind",
        "_options",
        "_owner",
        "_parts",
        "_question",
        "failures",
        "known",
        "of_request",
        "present",
    )

    def __init__(self, owner: Answers, engine: Engine, question: Question, kind: NodeKind) -> None:
        found = eligible(question.eligibility, kind, owner.selectors)
        self._owner = owner
        self._engine = engine
        self._kind = kind
        self._question = question
        self.present = found.present
        """Mask of the devices that count for the pod at all (Eligible)."""
        self.of_request = found.of_request
        """Masks of the devices that each request may have (Eligible)."""
        self._options = tuple(
            tuple(
                # "All that is there" is said in one way only: the engine's tables are shared by equal demands.
                Demand(count, policy, None if mask == found.present else mask)
                for count, policy, mask in zip(question.counts, question.policies, masks, strict=True)
            )
            for masks in _agreeing(kind, question, found.of_request)
        )
        self._distinct = tuple(groups(kind.devices, match.attribute) for match in question.matches if match.distinct)
        self.failures: tuple[Failure, ...] = found.failures
        """Selectors that have no answer for some device of this kind."""
        self._parts: PartQuestion | None = None
        self.known: dict[int, NodeAnswer] = {}
        """Mask of the free devices → answer; what was asked so far."""

    @property
    def parts(self) -> PartQuestion:
        """Which requests get parts of GPUs that are cut on demand."""
        if self._parts is None:
            self._parts = part_question(self._kind, self._question, self.of_request, self._owner.selectors)
        return self._parts

    def may_give_gpus(self) -> bool:
        """Return whether any request may have a GPU of such a node, free or not: all else is not chosen by links."""
        published = mask_of(ordinal for ordinal, device in enumerate(self._kind.devices) if device is not None)
        return any(mask & published for mask in self.of_request)

    def matches_parts(self) -> bool:
        """Return whether any request matches a part of a GPU that is cut on demand, whatever whole GPUs it matches."""
        nothing = [0] * len(self.of_request)
        return bool(part_question(self._kind, self._question, nothing, self._owner.selectors).parts)

    def of(self, free: int) -> NodeAnswer:
        """Return the answer of a node with these free devices."""
        answer = self.known.get(free)
        if answer is None:
            answer = self.known[free] = self.beside(free, 0)
            self._owner.count_one()
        return answer

    def beside(self, free: int, held: int) -> NodeAnswer:
        """Return the answer for a pod that holds devices of the node already. Remembered by the engine alone."""
        usable = free & self.present & ~held
        if self._distinct:
            return self._differing(usable, held)
        found = [self._engine.best_two(self._kind.box, usable, demands, held) for demands in self._options]
        if len(found) == 1 and found[0].best is not None:
            return _answer(found[0].best, found[0].second)
        if len(found) == 1 and found[0].shortfall:
            return NodeAnswer(None, reason=found[0].shortfall)
        choices = {choice.mask: choice for two in found for choice in (two.second, two.best) if choice is not None}
        ranked = sorted(choices.values(), key=lambda choice: (choice.score.rank(), ordinals_of(choice.mask)))
        if not ranked:
            names = ", ".join(sorted({match.attribute for match in self._question.matches}))
            count = self._question.count
            lack = f"{count} free GPUs that agree in" if count > 1 else "a free GPU that has"
            return NodeAnswer(None, reason=f"without {lack} {names}")
        second = ranked[1] if len(ranked) > 1 else None
        return _answer(ranked[0], second)

    def _differing(self, usable: int, held: int) -> NodeAnswer:
        """Return the answer where devices must differ: sets are gone through best first until two hold to that."""
        found: list[Choice] = []
        for number, choice in enumerate(self._choices(usable, held)):
            if all(self._differ(choice.mask, groups) for groups in self._distinct):
                found.append(choice)
                if len(found) == 2:
                    break
            if number >= MAX_SETS and not found:
                return NodeAnswer(None, reason=f"where the search was cut off after {MAX_SETS} sets of GPUs")
        if not found:
            names = ", ".join(sorted({match.attribute for match in self._question.matches}))
            return NodeAnswer(
                None, reason=f"without {self._question.count} free GPUs that hold to the constraints on {names}"
            )
        second = found[1] if len(found) > 1 else None
        return _answer(found[0], second)

    def _choices(self, usable: int, held: int) -> Iterator[Choice]:
        each = (self._engine.choices(self._kind.box, usable, demands, held) for demands in self._options)
        return merge(*each, key=lambda choice: (choice.score.rank(), ordinals_of(choice.mask)))

    @staticmethod
    def _differ(mask: int, of_values: tuple[int, ...]) -> bool:
        """Whether no two devices of a set have one value, and each has one."""
        known = 0
        for group in of_values:
            known |= group
            if (mask & group).bit_count() > 1:
                return False
        return not mask & ~known


def _answer(best: Choice, second: Choice | None) -> NodeAnswer:
    return NodeAnswer(best, second, one_number(best.score.node_rank()), one_number(best.score.best_node_rank()))


def _agreeing(kind: NodeKind, question: Question, masks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the masks of the requests cut to devices that agree, once for each way to choose the common values.

    A set that holds to all constraints lies in just one of them, so the best of all is the best there is.
    """
    options = [masks]
    for match in question.matches:
        if match.distinct:
            continue
        options = [
            cut
            for option in options
            for group in groups(kind.devices, match.attribute)
            for cut in [tuple(m & group if i in match.requests else m for i, m in enumerate(option))]
            if all(cut[i].bit_count() >= question.counts[i] for i in match.requests)
        ]
    return options


class Answers:
    """All that is remembered, by question. One thread at a time."""

    def __init__(self, engine: Engine, selectors: CelSelectors | None = None) -> None:
        self.selectors = selectors or CelSelectors(Features())
        self._engine = engine
        self._by_question: OrderedDict[Question, dict[NodeKind, KindAnswers]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all."""
        self._by_question.clear()
        self._count = 0

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


LATER_BY_NAME: Final = "equal, and later by name"


@dataclass(frozen=True, slots=True)
class Census:
    """What became of the nodes of a decision, as it was found on the way: nothing is worked out for it. Each node but
    the winner's is counted once; Walk.census() states for which reason."""

    filtered: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer devices of ours."""
    outside: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer none."""
    behind: tuple[tuple[int, int], ...] = ()
    """Rank of nodes that come after the winner, as one number → how many have it."""

    def reasons(self, winner: Choice) -> tuple[tuple[str, int], ...]:
        """Return why the nodes other than the winner's were not taken, in words that follow a count; the most first."""
        counts: Counter[str] = Counter({**self.filtered})
        counts.update(self.outside)
        rank, names = one_number(winner.score.node_rank()), winner.score.order.node_names[::-1]
        worse: Counter[int | None] = Counter()
        for other, count in self.behind:
            worse[first_difference(rank, other)] += count
        for place, count in worse.items():
            counts[LATER_BY_NAME if place is None else f"worse in {part_in_words(names[place])}"] += count
        return tuple(sorted((+counts).items(), key=lambda reason: (-reason[1], reason[0])))
