"""What nodes can give to pods that ask for the same, remembered by the kind of node and its free devices.

An answer is worked out once for each mask of free devices of a kind, and the buckets of the inventory are in the order
of the answers (Ranking), so that a decision looks only at the best of them. Which devices of a kind each request may
use is worked out once, and only for kinds that a decision visits (eligible): taints and selectors decide. Selectors
that read what distinguishes devices of equal nodes are left to node_rules. Last comes what all nodes that were not
taken had to give (Census).
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from heapq import merge
from itertools import takewhile
from operator import or_
from typing import Any, Final, Generic, TypeVar

from dracaena.api.decision import part_in_words
from dracaena.api.objects import Taint, Toleration
from dracaena.api.reasons import of_untainted
from dracaena.controller.allocation.effort import Effort, Work
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.selectors import SelectorFailure, Selectors
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.nodes.node_filter import Names
from dracaena.controller.allocation.request import Eligibility, Question
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.order import LATER_BY_NAME, first_difference, first_differences, one_number
from dracaena.controller.allocation.state.device_kind import groups
from dracaena.controller.allocation.state.node_state import SPARE_EMPTY, NodeBuckets, NodeKind
from dracaena.controller.allocation.walk.partitions.question import PartQuestion, part_question


@dataclass(frozen=True, slots=True)
class Failure:
    """A selector that has no answer for a device. The device is not given; a person should fix the selector."""

    request: int
    """Place among the requests."""
    expression: str
    reason: str


@dataclass(frozen=True, slots=True)
class Eligible:
    """Masks over the ordinals of a kind of node."""

    present: int
    """Devices that count for this pod at all, free or not. The others are neither taken nor needed to make a node
    whole: only pods that tolerate their taints can use them."""
    of_request: tuple[int, ...]
    """One mask per request: what it may take. A part of `present`."""
    failures: tuple[Failure, ...] = ()
    """At most one per request."""


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
least recently asked questions are dropped first."""

MAX_SETS: Final = 20_000
"""Sets of GPUs that are looked at for one that meets distinctAttribute: more than any 16 GPUs have of one size."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The best that a node has to give, and the next best."""

    best: Choice | None
    second: Choice | None = None
    rank: int = 0
    """Sorts the nodes that have something to give, best first. The rank of the score as one number: a decision compares
    many, and numbers compare three times as fast as tuples."""
    bound: int = 0
    """A rank that no other set of the node comes before (Score.best_node_rank)."""
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
        "tainted",
    )

    def __init__(self, owner: Answers, engine: Engine, question: Question, kind: NodeKind) -> None:
        found = eligible(question.eligibility, kind, owner.selectors)
        self._owner = owner
        self._engine = engine
        self._kind = kind
        self._question = question
        self.present = found.present & ~_left_out(kind.twins, found.of_request)
        """Mask of the devices that count for the pod at all (Eligible); of twins only the one that it may have."""
        self.tainted = _published(kind) & ~found.present
        """Mask of the devices that no request may have because of their taints."""
        self.of_request = found.of_request
        """Masks of the devices that each request may have (Eligible)."""
        # Only partitions ask which claims GPUs are for; elsewhere all pods with the same requests share answers.
        claims = (kind.box.partitions and question.claims) or (0,) * len(question.counts)
        self._options = tuple(
            tuple(
                # There is only one way to say "all devices", because equal demands share the engine's tables.
                Demand(count, policy, None if mask == self.present else mask, claim)
                for count, policy, mask, claim in zip(question.counts, question.policies, masks, claims, strict=True)
            )
            for masks in _agreeing(kind, question, found.of_request)
        )
        self._distinct = tuple(groups(kind.devices, match.attribute) for match in question.matches if match.distinct)
        if any(both & self.present == both for both in kind.twins):  # requests for both ways to have a GPU
            self._distinct += (_gpus(kind),)
        self.failures: tuple[Failure, ...] = found.failures
        """Selectors that have no answer for some device of this kind."""
        self._parts: PartQuestion | None = None
        self.known: dict[int, NodeAnswer] = {}
        """Mask of the free devices → answer, for what was asked so far."""

    @property
    def parts(self) -> PartQuestion:
        """Which requests get parts of GPUs that are cut on demand."""
        if self._parts is None:
            self._parts = part_question(self._kind, self._question, self.of_request, self._owner.selectors)
        return self._parts

    def may_give_gpus(self) -> bool:
        """Return whether any request may have a GPU of such a node, free or not: only GPUs are chosen by links."""
        published = _published(self._kind)
        return any(mask & published for mask in self.of_request)

    def matches_parts(self) -> bool:
        """Return whether any request matches a part of a GPU that is cut on demand, whatever whole GPUs it matches."""
        nothing = [0] * len(self.of_request)
        return bool(part_question(self._kind, self._question, nothing, self._owner.selectors).fractions)

    def of(self, free: int) -> NodeAnswer:
        """Return the answer of a node with these free devices."""
        answer = self.known.get(free)
        if answer is None:
            answer = self.known[free] = self.with_held(free, 0)
            self._owner.count_one()
        return answer

    def with_held(self, free: int, held: int) -> NodeAnswer:
        """Return the answer for a pod that already holds devices of the node. Only the engine remembers it."""
        answer = self._usable(free & self.present & ~held, held)
        return replace(answer, reason=of_untainted(answer.reason)) if free & self.tainted & ~held else answer

    @property
    def told_apart(self) -> tuple[int, ...]:
        """Masks of devices that are alike to this question only if all or none of them are inside."""
        masks = {demand.eligible for demands in self._options for demand in demands if demand.eligible is not None}
        return (*sorted(masks), *(mask for of_values in self._distinct for mask in of_values))

    def sets(self, free: int, apart: Sequence[int]) -> list[int]:
        """Return the sets of free devices that meet all that is asked, in no order, one for all that can stand for each
        other although `apart` tells them apart (Engine.sets)."""
        usable = free & self.present
        found = {
            mask: None
            for demands in self._options
            if all(usable.bit_count() >= demand.count for demand in demands)
            for mask in self._engine.sets(self._kind.box, usable, demands, apart)
        }
        return [mask for mask in found if all(self._differ(mask, of_values) for of_values in self._distinct)]

    def choice(self, free: int, mask: int) -> Choice:
        """Return one of sets() as the choice of a pod that takes it out of the free devices: each request has its best
        part of it."""
        usable = free & self.present
        within = (
            tuple(replace(one, eligible=mask if one.eligible is None else one.eligible & mask) for one in demands)
            for demands in self._options
        )
        found = (next(self._engine.choices(self._kind.box, usable, demands), None) for demands in within)
        return min((one for one in found if one is not None), key=lambda choice: choice.score.rank())

    def _usable(self, usable: int, held: int) -> NodeAnswer:
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
            unmet = sorted({two.shortfall for two in found if two.shortfall.startswith("whose")})
            if unmet:  # enough of them agree, and their links do not do
                return NodeAnswer(None, reason=unmet[0].replace("GPUs", f"GPUs that agree in {names}", 1))
            count = self._question.count
            lack = f"{count} free GPUs that agree in" if count > 1 else "a free GPU that has"
            return NodeAnswer(None, reason=f"without {lack} {names}")
        return _answer(*ranked[:2])

    def _differing(self, usable: int, held: int) -> NodeAnswer:
        """Return the answer if devices must differ: sets are tried best first until two meet that."""
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
            lack = f" that satisfy the constraints on {names}" if names else ""
            return NodeAnswer(None, reason=f"without {self._question.count} free GPUs{lack}")
        return _answer(*found)

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


def _published(kind: NodeKind) -> int:
    return mask_of(ordinal for ordinal, device in enumerate(kind.devices) if device is not None)


def _gpus(kind: NodeKind) -> tuple[int, ...]:
    """Return a mask for each GPU of the devices that it is."""
    twins = reduce(or_, kind.twins, 0)
    return (*kind.twins, *(1 << place for place in range(len(kind.devices)) if not twins >> place & 1))


def _left_out(twins: Sequence[int], of_request: Sequence[int]) -> int:
    """Return the twins that do not count, so that a GPU counts once: the one no request may have, else the higher."""
    wanted = reduce(or_, of_request, 0)
    return sum(both & ~(both & wanted or both & -both) for both in twins)


def _answer(best: Choice, second: Choice | None = None) -> NodeAnswer:
    return NodeAnswer(best, second, one_number(best.score.node_rank()), one_number(best.score.best_node_rank()))


def _agreeing(kind: NodeKind, question: Question, masks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the masks of the requests reduced to devices that agree, once for each way to choose the common values.

    A set that meets all constraints is in exactly one of them, so the best of all is the best there is.
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
        self.engine = engine
        self._by_question: OrderedDict[Question, QuestionAnswers] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all."""
        self._by_question.clear()
        self._count = 0

    def to(self, question: Question) -> QuestionAnswers:
        """Return the answers to a question, for use in one decision."""
        known = self._by_question.get(question)
        if known is None:
            known = self._by_question[question] = QuestionAnswers(self, question)
            self._count += 1  # so that questions that find no node are forgotten too
        self._by_question.move_to_end(question)
        self._forget(but=question)
        return known

    def count_one(self) -> None:
        """Note that an answer was added."""
        self._count += 1

    def _forget(self, but: Question) -> None:
        """Forget the least recently asked questions, and finally all answers to this one."""
        while self._count > MAX_ANSWERS:
            question, answers = next(iter(self._by_question.items()))
            self._count -= answers.forget()
            if question == but:
                break
            self._count -= 1
            del self._by_question[question]


G = TypeVar("G")

Look = Callable[[NodeKind, tuple[int, Hashable], Sequence[str]], tuple[int, G] | str]
"""Returns what the nodes of a kind in a state (NodeState.key) give, and its rank; or why nothing. With their names."""


class QuestionAnswers:
    """Answers to one question, by kind, and the buckets of an inventory in their order."""

    __slots__ = ("_kinds", "_owner", "_ranking", "question")

    def __init__(self, owner: Answers, question: Question) -> None:
        self._owner = owner
        self.question = question
        self._kinds: dict[NodeKind, KindAnswers] = {}
        self._ranking: Ranking[NodeAnswer] = Ranking()

    def of_kind(self, kind: NodeKind) -> KindAnswers:
        """Return the answers of one kind of node."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = KindAnswers(self._owner, self._owner.engine, self.question, kind)
        return known

    def ranking(self, buckets: NodeBuckets, effort: Effort) -> Ranking[NodeAnswer]:
        """Return the buckets in the order of these answers, until they change. `buckets` remember empty ones. Cost: a
        step for each bucket that has nodes for the first time since the last call, a look at each that has none yet."""
        self._ranking.follow(buckets, self._look, effort)
        return self._ranking

    def forget(self) -> int:
        """Forget all; return how many answers there were."""
        count = sum(len(answers.known) for answers in self._kinds.values())
        self._kinds.clear()
        self._ranking = Ranking()
        return count

    def _look(self, kind: NodeKind, key: tuple[int, Hashable], _: Sequence[str]) -> tuple[int, NodeAnswer] | str:
        answer = self.of_kind(kind).of(key[0])
        return answer.reason if answer.best is None else (answer.rank, answer)


class Ranking(Generic[G]):
    """The buckets of an inventory in the order of what their nodes give to one question.

    What the nodes are and what is free there decides. So a node whose state changes moves to another bucket, and only a
    bucket that is new has to be put in its place, once it has a node. Empty buckets stay.
    """

    __slots__ = ("_buckets", "_last", "_mixed_only", "_unranked", "answers", "names", "nothing", "ranks", "reasons")

    def __init__(self, *, mixed_only: bool = False) -> None:
        """`mixed_only`: only buckets of nodes that have more to give than whole GPUs."""
        self._mixed_only = mixed_only
        self._start(None)

    def _start(self, buckets: NodeBuckets | None) -> None:
        self._buckets, self._last = buckets, 0  # the number of the last bucket that was read
        # Buckets that had no node yet when they were read.
        self._unranked: list[tuple[NodeKind, tuple[int, Hashable], Sequence[str]]] = []
        self.ranks: list[int] = []
        """Ranks of the buckets whose nodes give something, ascending. Equal ones are in any order."""
        self.names: list[Sequence[str]] = []
        """The nodes of each of these, ascending."""
        self.answers: list[G] = []
        """What the nodes of each of these give."""
        self.reasons: list[tuple[NodeKind, str]] = []
        """The kind of each bucket whose nodes give nothing, and why they do not."""
        self.nothing: list[Sequence[str]] = []
        """The nodes of each of these, ascending."""

    def follow(self, buckets: NodeBuckets, look: Look[G], effort: Effort) -> None:
        """Take in the new buckets (NodeBuckets.ever). After an OverdueError the next call goes on. `look` answers the
        same question each time."""
        count = len(self.ranks) + len(self.nothing) + len(self._unranked)
        if buckets is not self._buckets or count > 2 * len(buckets.ever) + SPARE_EMPTY:  # many were forgotten
            self._start(buckets)
        new = takewhile(lambda bucket: bucket[1][0] > self._last, reversed(buckets.ever.items()))
        self._unranked += [
            (kind, key, names) for (kind, key), (_, names) in new if kind.is_mixed or not self._mixed_only
        ]
        self._last = next(reversed(buckets.ever.values()), (self._last,))[0]
        ready = [bucket for bucket in self._unranked if bucket[2]]
        self._unranked = [bucket for bucket in self._unranked if not bucket[2]]
        try:
            while ready:
                kind, key, names = ready[-1]
                effort.charge(1, Work.SETS)
                self._put(look(kind, key, names), kind, names)
                ready.pop()
        finally:
            self._unranked += ready

    def _put(self, found: tuple[int, G] | str, kind: NodeKind, names: Sequence[str]) -> None:
        if isinstance(found, str):
            self.reasons.append((kind, found))
            self.nothing.append(names)
            return
        rank, answer = found
        place = bisect(self.ranks, rank)
        self.ranks.insert(place, rank)
        self.names.insert(place, names)
        self.answers.insert(place, answer)


def of_whole_gpus(kind: NodeKind, reason: str) -> str:
    """Return why nodes of a kind were not taken for whole GPUs, in words that are true although they have more to give:
    that was not asked for, because another node had enough whole ones."""
    return reason.replace("GPU", "whole GPU", 1) if kind.is_mixed else reason


NOT_SELECTED: Final = "left out by the pod's selectors, affinity or volumes"


@dataclass(frozen=True, slots=True)
class Unvisited:
    """Nodes that a walk did not visit, in buckets, as they were when it ended."""

    ranks: Sequence[int] = ()
    """Ranks of the buckets whose nodes give something, ascending."""
    reasons: Sequence[tuple[NodeKind, str]] = ()
    """Reasons of the other buckets (Ranking)."""
    counts: Sequence[int] = ()
    """Number of nodes of each bucket, those with a rank first. Empty if some nodes are selected."""
    names: Sequence[Sequence[str]] = ()
    """The nodes themselves, if some are selected."""
    selected: Names | None = None
    """The nodes that the pod's node selectors leave; None: all."""
    only_whole: bool = False
    """Whether the reasons are about whole GPUs, whatever else nodes have to give."""

    @classmethod
    def of(cls, ranking: Ranking[Any], place: int, selected: Names | None) -> Unvisited:
        """Return the buckets from a place on, and all that give nothing. Cost: a copy of a number for each bucket, or
        of all names if some are selected: they are counted only on demand."""
        buckets = [*ranking.names[place:], *ranking.nothing]
        ranks, reasons = ranking.ranks[place:], tuple(ranking.reasons)
        if selected is None:
            return cls(ranks, reasons, counts=list(map(len, buckets)))
        return cls(ranks, reasons, names=list(map(tuple, buckets)), selected=frozenset(selected))

    def counted(self) -> Sequence[int]:
        """Return how many of the nodes of each bucket are selected. Cost: if not all are, a step for each node."""
        selected = self.selected
        return self.counts if selected is None else [len(selected.intersection(names)) for names in self.names]


@dataclass(frozen=True, slots=True)
class Census:
    """What became of the nodes of a decision, as found on the way: nothing is worked out for it until it is asked for.
    Each node but the winner's is counted once; Walk.census() states for which reason."""

    nodes: int = 0
    """All nodes but the winner's. Those that count nowhere else are not selected."""
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer devices of ours."""
    outside: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer none."""
    behind: tuple[tuple[int, int], ...] = ()
    """Rank of nodes that come after the winner, as one number → how many have it."""
    unvisited: Unvisited = Unvisited()

    def reasons(self, winner: Choice) -> tuple[tuple[str, int], ...]:
        """Return why all nodes but the winner's were not taken, in words that follow a count; most frequent first."""
        counts: Counter[str] = Counter({**self.filtered})
        counts.update(self.outside)
        rank, names = one_number(winner.score.node_rank()), winner.score.order.node_names[::-1]
        worse: Counter[int | None] = Counter()
        for other, count in self.behind:
            worse[first_difference(rank, other)] += count
        unvisited = self.unvisited.counted()
        for place, start, end in first_differences(rank, self.unvisited.ranks):
            worse[place] += sum(unvisited[start:end])
        for (kind, reason), count in zip(self.unvisited.reasons, unvisited[len(self.unvisited.ranks) :], strict=True):
            counts[of_whole_gpus(kind, reason) if self.unvisited.only_whole else reason] += count
        for place, count in worse.items():
            counts[LATER_BY_NAME if place is None else f"worse in {part_in_words(names[place])}"] += count
        counts[NOT_SELECTED] += self.nodes - counts.total()
        return tuple(sorted((+counts).items(), key=lambda reason: (-reason[1], reason[0])))
