"""What nodes whose GPUs are cut on demand give to one pod, for one choice of alternatives
(docs/design/0034-mig-placement.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.partitions import lefts
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Outcome, Plan
from dracaena.controller.allocation.legal.problem import Alternative, Problem, pose
from dracaena.controller.allocation.legal.read.claims import MAX_DEVICES
from dracaena.controller.allocation.legal.search import RequestKey, Restriction, solve
from dracaena.controller.allocation.legal.selectors import Selectors
from dracaena.controller.allocation.request import Question
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import QuestionAnswers
from dracaena.controller.allocation.walk.judgements import FIRST, UNSCORED, NodeChoice, PartsThere
from dracaena.controller.allocation.walk.node_choice import NodeQuestion, chosen_by_links
from dracaena.controller.allocation.walk.partitions.places import PartPlacement, PartPlaces, PartTables
from dracaena.controller.allocation.walk.partitions.question import PartOption, PartQuestion
from dracaena.controller.allocation.walk.pod_demand import ChosenRequest

MAX_PROPOSALS: Final = 8
"""Places that the rules are asked about, best first. A place meets all rules but the rarest (a value in which several
parts of one GPU have to differ), so the first one is nearly always taken."""


class PartRules:
    """Answers for one pod and one choice of alternatives. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self,
        inventory: Inventory,
        requests: Sequence[ChosenRequest],
        question: Question,
        answers: QuestionAnswers,
        engine: Engine,
        tables: PartTables,
    ) -> None:
        self._inventory, self._question, self._answers = inventory, question, answers
        self._requests = requests
        self._engine, self._tables = engine, tables
        self.elsewhere = frozenset(
            place for kind in inventory.buckets if kind.partitions.gpus for place in answers.of_kind(kind).parts.parts
        )
        """The requests that get parts of GPUs on some node. Every rank depends on it."""

    @property
    def is_needed(self) -> bool:
        """Whether some request gets parts of GPUs on some node."""
        return bool(self.elsewhere)

    def never(self, selectors: Selectors) -> str:
        """Say why no GPU of the cluster can ever be cut into what the pod asks for; "" if one can, or if no request
        visibly asks for parts. Cost: O(kinds of nodes × places)."""
        kinds = [kind for kind in self._inventory.buckets if kind.partitions.gpus]
        for place, chosen in enumerate(self._requests):
            if place in self.elsewhere or any(
                self._answers.of_kind(k).of_request[place] for k in self._inventory.buckets
            ):
                continue
            profiles = {
                cut.profile
                for kind in kinds
                for one in kind.partitions.gpus
                for cut, device in zip(one.geometry.places, one.devices, strict=True)
                if chosen.demand.device_class.selectors
                and all(selectors.evaluate(each, device) is True for each in chosen.demand.device_class.selectors)
            }
            if profiles:
                name = chosen.demand.request.name
                return f"no GPU can be cut into what request {name} selects, but into {', '.join(sorted(profiles))}"
        counts = [self._most(kind) for kind in kinds]
        if self.elsewhere and not any(counts):
            parts = sum(self._question.counts[place] for place in self.elsewhere)
            what = "the requested part" if parts == 1 else f"the {parts} requested parts"
            return f"no node has room for {what}, even with all of its GPUs free"
        return ""

    def _most(self, kind: NodeKind) -> bool:
        """Whether a node of a kind could serve the pod with all of its GPUs free, unless the contrary is proved."""
        question = self._answers.of_kind(kind).parts
        if not question.parts:
            return set(range(len(self._question.counts))) != self.elsewhere
        state = NodeState(kind, self._answers.of_kind(kind).present)
        places = self._places(question, state, 0)
        return self._may_give_more(question) or next(places.all(), None) is not None or places.cut_off

    def gives_parts(self, kind: NodeKind) -> bool:
        """Whether a request gets parts on nodes of this kind."""
        return bool(self._answers.of_kind(kind).parts.parts)

    def bound(self, state: NodeState, held: int) -> int | str:
        """Return the best rank that nodes in a state may have, or why they give nothing; FIRST if only the rules can
        know: there is something else beside GPUs that are cut on demand, or a request is for neither; UNSCORED if too
        much was left out to know."""
        question = self._answers.of_kind(state.kind).parts
        if not question.parts:
            answer = self._answers.of_kind(state.kind).beside(state.free, held)
            if answer.best is None:
                return FIRST if state.kind.is_mixed else answer.reason
            return self.rank_of_whole(state, answer.best, best=True)
        places = self._places(question, state, held)
        first = next(places.all(), None)
        if first is not None:
            return first.rank
        if self._may_give_more(question):
            return FIRST
        # If something was left out nothing is proved: the node is asked after all others.
        return UNSCORED if places.cut_off else self._refusal(question)

    def rank_of_whole(self, state: NodeState, choice: Choice, *, best: bool = False) -> int:
        """Return the rank of a node that gives only whole GPUs, among nodes that give parts: each GPU that is given
        where another node would give a part counts as broken."""
        nodes = choice.score.best_node_rank() if best else choice.score.node_rank()
        fresh = sum(self._question.counts[place] for place in self.elsewhere)
        is_linked = sum(self._question.counts) - fresh > 1
        told = (*nodes, fresh) if is_linked else (fresh, *nodes)
        return one_number((*told, 0, 0, state.free.bit_count()))

    def _may_give_more(self, question: PartQuestion) -> bool:
        """Whether a request may get a device that no place counts with: one that is neither a whole GPU nor a part that
        is cut on demand, or a part where places give it a whole GPU."""
        return (
            question.has_either
            or question.kind.partitions.has_more
            or len(question.parts) + len(question.whole) < len(self._question.counts)
        )

    def _refusal(self, question: PartQuestion) -> str:
        count = sum(self._question.counts[place] for place in question.parts)
        which = "untainted " if self._answers.of_kind(question.kind).tainted else ""
        if count == 1:
            return f"without room on {'an' if which else 'a'} {which}GPU for the requested part"
        return f"without room on their {which}GPUs for the {count} requested parts"

    def _places(self, question: PartQuestion, state: NodeState, held: int) -> PartPlaces:
        free = state.free & self._answers.of_kind(state.kind).present & ~held
        left = lefts(state.kind.partitions.gpus, state.rest)
        return PartPlaces(question, self._question, self._engine, self._tables, free=free, lefts=left, held=held)

    def direct(self, pool: NodePool, state: NodeState, held: int) -> NodeChoice | None:
        """Return the best place on a node whose state says everything, without asking the rules: for pods that need no
        more than counters, selectors and taints of places. None if there is more to check, or no place."""
        question = self._answers.of_kind(state.kind).parts
        if not question.is_exact or sum(self._question.counts) > MAX_DEVICES:
            return None
        if any(amount < 0 for left in lefts(state.kind.partitions.gpus, state.rest) for amount in left):
            return None  # the rules give nothing of a pool that is overdrawn anywhere
        placement = next(self._places(question, state, held).all(), None)
        if placement is None:
            return None
        names: list[list[str]] = [[] for _ in self._question.counts]
        for gpu, demand, place in placement.cut.picks:
            names[question.parts[demand]].append(pool.order[question.kind.partitions.gpus[gpu].numbers[place]])
        there = PartsThere(placement.rank, tuple(map(tuple, names)))
        return NodeChoice(pool, placement.whole, parts=there)

    def choose(
        self, problem: Problem, pool: NodePool, state: NodeState, held: int, node_question: NodeQuestion
    ) -> NodeChoice | DoesNotFit | NeedsPerson:
        """Return the best place that the rules can complete, or the first legal allocation if they complete none of
        MAX_PROPOSALS."""
        alternatives = tuple(chosen_by_links(problem, node_question))
        keys = tuple(one.key for one in alternatives)
        question = _cut_to(self._answers.of_kind(state.kind).parts, pool, problem, alternatives)
        places = self._places(question, state, held)
        for placement in islice(places.all(), MAX_PROPOSALS):
            restrictions = tuple(self._restrictions(question, pool, placement, keys))
            narrowed = _narrowed(problem, restrictions)
            found = narrowed if isinstance(narrowed, NeedsPerson) else _solve(narrowed, node_question, restrictions)
            if isinstance(narrowed, Problem) and isinstance(found, Plan):
                there = PartsThere(placement.rank)
                return NodeChoice(pool, placement.whole, legal=(narrowed, found), parts=there)
        first = _solve(problem, node_question, ())
        return NodeChoice(pool, None, legal=(problem, first)) if isinstance(first, Plan) else first

    def _restrictions(
        self, question: PartQuestion, pool: NodePool, placement: PartPlacement, keys: tuple[RequestKey, ...]
    ) -> Iterator[Restriction]:
        """Yield the restrictions of each request to its part or its GPUs."""
        pools = frozenset({PoolId(self._inventory.driver, pool.pool)})
        names: dict[int, set[str]] = {}
        for gpu, demand, place in placement.cut.picks:
            number = question.kind.partitions.gpus[gpu].numbers[place]
            names.setdefault(question.parts[demand], set()).add(pool.order[number])
        if placement.whole is not None:
            for at, part in zip(question.whole, placement.whole.parts, strict=True):
                names[at] = {name for one in ordinals_of(part) if (name := pool.devices[one]) is not None}
        for at, of_request in names.items():
            ids = frozenset(DeviceId(self._inventory.driver, pool.pool, name) for name in of_request)
            yield Restriction(pools, ids, frozenset({keys[at]}))


def _cut_to(
    question: PartQuestion, pool: NodePool, problem: Problem, alternatives: Sequence[Alternative]
) -> PartQuestion:
    """Return the question of a kind reduced to one node: selectors may name a GPU by what no other node has."""
    masks = []
    for place in question.parts:
        able = {device.device for device in problem.eligible(alternatives[place])}
        numbers = (one.numbers for one in question.kind.partitions.gpus)
        masks.append(tuple(mask_of(at for at, number in enumerate(of) if pool.order[number] in able) for of in numbers))
    options = (
        PartOption(
            option.whole,
            tuple(tuple(map(int.__and__, of, mask)) for of, mask in zip(option.parts, masks, strict=True)),
        )
        for option in question.options
    )
    return replace(question, options=tuple(options))


def _narrowed(problem: Problem, restrictions: Sequence[Restriction]) -> Problem | NeedsPerson:
    """Return the question about only the proposed devices, if nothing else is asked for: a node that is cut on demand
    has 200 devices, and the rules look at each of them."""
    if len(restrictions) < sum(map(len, problem.requests)):
        return problem
    proposed = frozenset[DeviceId]().union(*(one.devices for one in restrictions))
    pools = tuple(
        replace(
            pool,
            devices=tuple(one for one in pool.devices if one.device.id in proposed),
            elsewhere=(*pool.elsewhere, *(one.device for one in pool.devices if one.device.id not in proposed)),
        )
        for pool in problem.pools
    )
    posed = pose(problem.cluster, problem.node, problem.claims, pools)
    return problem if isinstance(posed, DoesNotFit) else posed


def _solve(problem: Problem, question: NodeQuestion, restrictions: tuple[Restriction, ...]) -> Outcome:
    return solve(
        problem,
        restrictions=(*question.base, *restrictions),
        chosen=question.chosen,
        max_steps=question.max_steps,
        effort=question.effort,
    )
