"""The walk over the nodes for what cannot be answered for all nodes of a kind: node by node, by the rules themselves.

The answer of the kind (answers) is a bound: no node gives more. So nodes are come to in the order of their bounds, and
the walk ends where no bound is better than what was found.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dracaena.api.decision import part_in_words
from dracaena.controller.allocation.answers import QuestionAnswers, one_number
from dracaena.controller.allocation.choices import Choice, Engine
from dracaena.controller.allocation.demands import ClaimDemand
from dracaena.controller.allocation.effort import DEVICE_STEPS, Effort, OverdueError, Work
from dracaena.controller.allocation.identities import IdentityMasks
from dracaena.controller.allocation.inventory import Inventory, Place
from dracaena.controller.allocation.joint import Asked, Chosen, NodeGpus, choose
from dracaena.controller.allocation.judgements import Judgement, Judgements, refusal_text
from dracaena.controller.allocation.order import Score
from dracaena.controller.allocation.pod_demand import PodDemand
from dracaena.controller.allocation.pool import NodeKind, NodePool
from dracaena.controller.allocation.result import LATER_BY_NAME, Census
from dracaena.controller.allocation.search import NO_ROOM, NOT_SELECTED
from dracaena.controller.allocation.structured import claims as structured
from dracaena.controller.allocation.structured.cel_selectors import CelSelectors
from dracaena.controller.allocation.structured.documents import Unsupported
from dracaena.controller.allocation.structured.features import Features
from dracaena.controller.allocation.structured.outcome import DoesNotFit, NeedsPerson
from dracaena.controller.allocation.structured.problem import Cluster, Problem, pose
from dracaena.controller.allocation.structured.search import Restriction
from dracaena.controller.allocation.structured.slices import DeviceId, PoolId
from dracaena.controller.allocation.ways import Reading

UNSCORED: Final = 1 << 4096
"""Rank of an allocation in which nothing was chosen by links: after all others."""

FIRST: Final = -1
"""Rank of what has to be looked at before anything is decided."""


LATER: Final = 1 << 5000
"""Added to the rank of a node that was asked in vain in an earlier try: behind all others."""

SECOND_LOOKS: Final = 2
"""Nodes that are asked for a runner-up: it is told to people and decides nothing, and each look costs as much as a
small decision."""

NOT_BETTER: Final = "that can give nothing better, and were not asked"
BY_NAME: Final = "that come later by name, and were not asked"
NOT_IN_TIME: Final = "that were not asked in the time that one pod may take"
ASKED_BEFORE: Final = "asked in vain by an earlier try"
"""What becomes of nodes that the walk does not come to, in words that follow a count."""

LACKS: Final = "without enough free devices that the selectors name by their identity"
"""Why a node is out before the rules are asked, in words that follow a count of nodes."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all nodes have in common."""

    engine: Engine
    selectors: CelSelectors
    identities: IdentityMasks
    max_steps: int
    """Of the search, for a pod and node."""
    first_fit: bool
    effort: Effort
    judgements: Judgements


@dataclass(frozen=True, slots=True)
class Found:
    """What a node gives."""

    pool: NodePool
    problem: Problem
    chosen: Chosen


_Entry = tuple[int, str, Found | Judgement | None]
"""A node to come to: its bound, its name, and what it gives once that is known. What it gives has a rank of its own,
and that is its bound then."""


class JointSearch:
    """One decision's walk for one way. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self,
        inventory: Inventory,
        demand: PodDemand,
        reading: Reading,
        answers: QuestionAnswers,
        rules: Rules,
        asked: set[str] | None = None,
    ) -> None:
        """`asked` are the nodes that earlier tries asked in vain before they were overdue; they come last, and those
        that are asked in vain now are added.
        """
        self._asked = set() if asked is None else asked
        self._inventory, self._demand, self._reading = inventory, demand, reading
        self._answers, self._rules = answers, rules
        self._judgements = rules.judgements.about(reading.way.key)
        self._may_be_alike = not reading.identity and not inventory.allowed_drivers
        self._claims = [claim.claim.key for claim in reading.way.claims]
        self._texts: dict[int, str] = {}  # of refusals, by identity of the judgement
        self._reasons: Counter[str] = Counter()
        self._short: list[tuple[int, str]] = []
        """Nodes that are left out for want of room, with their bounds."""
        self._heap: list[_Entry] = []
        self._at: tuple[int, str] | None = None  # where the walk is
        self._end: tuple[int, str] | None = None  # where best() ended it
        self._is_part = False
        self.is_round_over = False
        """Whether best() asked nobody, because earlier tries together have asked every node in vain."""
        self.mistake: NeedsPerson | None = None
        """The first thing that only a person can mend and that kept a node from being used."""

    def best(self, only: Collection[str] | None = None) -> Found | None:
        """Return what the best node gives, of equal ones the first by name; None when none does.

        `only` narrows the nodes to these, which are mixed. When the decision is overdue it is the best of the nodes
        asked until then; where none gives anything, OverdueError goes on to the caller. Cost: a step a node, and
        the rules asked for each that is come to; of one kind and state one node is asked, where nothing else matters.
        """
        self._is_part = only is not None
        later = frozenset(self._asked)
        entries = [] if only is not None and not only else self._entries(only)
        self._heap = [
            (rank + LATER, name, found) if name in later else (rank, name, found) for rank, name, found in entries
        ]
        if later and self._heap and all(name in later for _, name, _ in self._heap):
            self._asked.clear()
            self.is_round_over = True
            return None
        heapq.heapify(self._heap)
        try:
            best = self._next(None)
            self._end = self._at
            return best
        except OverdueError:
            entries = (entry for entry in self._heap if isinstance(entry[2], Found))
            best_yet = min(entries, default=None)
            if best_yet is None or not isinstance(best_yet[2], Found):
                raise
            self._end = best_yet[:2]
            self._heap.remove(best_yet)
            if self._at is not None:
                self._heap.append((*self._at, None))  # it was being asked
            heapq.heapify(self._heap)
            return replace(best_yet[2], chosen=replace(best_yet[2].chosen, cut_off=True))

    def second(self) -> Found | None:
        """Return what the next best node gives after best(); None also where a few nodes more do not tell."""
        return self._next(SECOND_LOOKS)

    def _next(self, looks: int | None) -> Found | None:
        """Walk on to the next node in order that gives something, and ask at most so many on the way."""
        heap = self._heap
        while heap:
            rank, name, found = heapq.heappop(heap)
            self._at = rank, name
            if isinstance(found, Found):
                return found
            if found is None:
                unfit = self._demand.filter.reason(self._inventory.nodes.get(name))
                if unfit is not None:
                    self._reasons[unfit] += 1
                    continue
                if looks == 0:
                    return None
                # What is remembered counts as a look too: the answer must not depend on what was asked before.
                looks = None if looks is None else looks - 1
                known = self._known(name)
                if known is not None and known.refusal is not None:
                    self._reasons[self._refusal_text(known)] += 1
                    continue
                if known is not None and known.rank > rank:
                    heapq.heappush(heap, (known.rank, name, known))
                    continue
            answer = self.on_node(name)
            if isinstance(answer, str):
                self._asked.add(name)
                self._reasons[answer] += 1
                continue
            own = self._rank(answer.chosen.choice)
            if own <= rank:
                return answer
            heapq.heappush(heap, (own, name, answer))
        return None

    def census(self, winner: Found) -> Census:
        """Return what became of all nodes that best() was about, right after it: each other than the winner's is
        counted once, for the first of these that holds. It has no GPUs of ours to give; the pod's node selectors leave
        it out; it has not what is asked for, as far as all nodes of its kind tell; it comes after the winner; it has
        too little of what is no device; it is none for the pod for another reason; it cannot serve the claims.

        Of a part of the nodes those that have no GPUs of ours to give are not counted. Cost: one step a node.
        """
        reasons = Counter(self._reasons)
        for entry in self._heap:
            reasons[self._after(winner, *entry)] += 1
        for rank, name in self._short:
            is_after = self._end is not None and (rank, name) > self._end
            reasons[self._after(winner, rank, name, None) if is_after else NO_ROOM] += 1
        outside = {} if self._is_part else dict(self._inventory.outside)
        return Census(dict(reasons), outside)

    def _after(self, winner: Found, rank: int, name: str, found: Found | Judgement | None) -> str:
        """Say of a node that was not come to, or that gives less than it seemed to, why the winner came first."""
        if found is not None:
            best, other = _score_of(winner), _score_of(found)
            part = None if best is None or other is None else best.first_difference(other)
            return LATER_BY_NAME if part is None else f"worse in {part_in_words(part)}"
        if rank >= LATER:
            return ASKED_BEFORE
        if self._end is not None and (rank, name) < self._end:
            return NOT_IN_TIME
        return BY_NAME if self._rules.first_fit else NOT_BETTER

    def on_node(self, name: str) -> Found | str:
        """Return what the node gives, or why nothing, in words that follow a count of nodes."""
        place = self._inventory.place(name)
        if isinstance(place, str):
            return place
        lack = self._lack(name, place)
        if lack is not None:
            return lack
        known = self._known(name)
        if known is not None and known.refusal is not None:
            return self._refusal_text(known)
        found = self._ask(name, place)
        if isinstance(found, NeedsPerson):
            self.mistake = self.mistake or found
            return f"where {found}"
        if isinstance(found, DoesNotFit):
            if self._is_alike(name):
                self._judgements.refuse(place, found, self._claims)
            return f"where {found}"
        if known is None and self._is_alike(name):
            choice = found.chosen.choice
            self._judgements.accept(place, None if choice is None else choice.score, self._rank(choice))
        return found

    def _known(self, name: str) -> Judgement | None:
        """Return what nodes like this one were found to give."""
        place = self._inventory.place(name)
        return self._judgements.known.get(place) if isinstance(place, Place) and self._is_alike(name) else None

    def _refusal_text(self, known: Judgement) -> str:
        assert known.refusal is not None
        text = self._texts.get(id(known))
        if text is None:
            text = self._texts[id(known)] = f"where {refusal_text(known.refusal, self._claims)}"
        return text

    def _is_alike(self, name: str) -> bool:
        """Whether every node of the same kind with the same free devices gives the same."""
        return self._may_be_alike and name not in self._demand.beside

    def _lack(self, name: str, place: Place) -> str | None:
        """Say that a node lacks the very devices that some request names; None when it may have them."""
        if not any(self._reading.apart) or name in self._inventory.mixed:
            return None
        pool = self._inventory.pool(name)
        assert pool is not None
        for count, expressions in zip(self._reading.question.counts, self._reading.apart, strict=True):
            mask = place.free
            for expression in expressions:
                mask &= self._rules.identities.may_match(self._inventory.driver, expression, pool)
            if mask.bit_count() < count:
                return LACKS
        return None

    def _rank(self, choice: Choice | None) -> int:
        if self._rules.first_fit:
            return 0
        return UNSCORED if choice is None else one_number(choice.score.rank())

    def _entries(self, only: Collection[str] | None) -> Iterator[_Entry]:
        """Yield the nodes to come to with their bounds, and count those that cannot give anything. `only` as in best().

        Nodes with the bound FIRST are come to in any case: what is known of them is taken into account at once.
        Cost: a step a node; for those a look at the filter too.
        """
        nodes, mixed, beside = self._inventory.nodes, self._inventory.mixed, self._demand.beside
        narrowed, with_room = self._demand.filter.narrowed(nodes), self._demand.filter.with_room()
        for kind, by_free in self._inventory.buckets.items():
            if only is not None and not kind.rest:
                continue  # none of them is mixed
            for free, names in by_free.items():
                self._rules.effort.charge(len(names), Work.NODES)
                of_all: int | str | None = None
                for name in names:
                    if only is not None and name not in only:
                        continue
                    if narrowed is not None and name not in narrowed:
                        self._reasons[NOT_SELECTED] += 1
                        continue
                    if name in beside:
                        rank = self._bound(kind, free, beside[name])
                    else:
                        rank = of_all = self._bound(kind, free, 0) if of_all is None else of_all
                    if isinstance(rank, str):
                        if name not in mixed:
                            self._reasons[rank] += 1
                            continue
                        rank = FIRST
                    if with_room is not None and name not in with_room:
                        self._short.append((rank, name))
                        continue
                    known = self._known(name) if rank == FIRST else None
                    if known is None:
                        yield rank, name, None
                        continue
                    unfit = self._demand.filter.reason(nodes.get(name))
                    if unfit is not None:
                        self._reasons[unfit] += 1
                    elif known.refusal is not None:
                        self._reasons[self._refusal_text(known)] += 1
                    else:
                        yield known.rank, name, known

    def _bound(self, kind: NodeKind, free: int, held: int) -> int | str:
        """Return the best rank that nodes of a bucket may have, or why they give nothing unless they are mixed. `held`
        are the GPUs there that the pod has already."""
        if self._rules.first_fit:
            return 0
        if self._reading.has_all:
            return FIRST  # what mode All takes is part of the pod's set, and no bound knows it
        if not self._reading.question.counts:
            return UNSCORED
        answers = self._answers.of_kind(kind)
        answer = answers.beside(free, held) if held else answers.of(free)
        return answer.reason if answer.best is None else answer.rank

    def _ask(self, name: str, place: Place) -> Found | DoesNotFit | NeedsPerson:
        inventory, way = self._inventory, self._reading.way
        pool = inventory.pool(name)
        assert pool is not None
        problem = pose_on(inventory, name, way.claims, self._rules)
        if not isinstance(problem, Problem):
            return problem
        held = self._demand.beside.get(name, 0)
        free = place.free & ~held
        if self._reading.question.counts:
            free &= self._answers.of_kind(place.kind).present
        gpus = NodeGpus(place.kind.box, _ids(inventory.driver, pool), free, held)
        asked = Asked(
            chosen=way.chosen,
            policies={request.key: request.demand.policy for request in way.requests},
            base=(offered_only(inventory.driver, pool),),
            max_steps=self._rules.max_steps,
            first_fit=self._rules.first_fit,
            effort=self._rules.effort,
        )
        chosen = choose(problem, gpus, self._rules.engine, asked)
        return Found(pool, problem, chosen) if isinstance(chosen, Chosen) else chosen


def pose_on(
    inventory: Inventory, node: str, claims: Sequence[ClaimDemand], rules: Rules
) -> Problem | DoesNotFit | NeedsPerson:
    """Return the question what the claims may get on a node, with every alternative open; or its answer."""
    rules.effort.charge(DEVICE_STEPS * (1 + inventory.device_count(node)), Work.DEVICES)
    slices, books = inventory.reach(node)
    # Posing a question checks every alternative, so all their classes are needed.
    classes: dict[str, structured.DeviceClass | Unsupported] = {
        one.device_class.name: one.device_class for claim in claims for entry in claim.requests for one in entry
    }
    cluster = Cluster(slices, classes, books, rules.selectors, Features())
    return pose(cluster, inventory.nodes.get(node).node, [claim.spec for claim in claims])


def _score_of(found: Found | Judgement) -> Score | None:
    if isinstance(found, Judgement):
        return found.score
    return None if found.chosen.choice is None else found.chosen.choice.score


def _ids(driver: str, pool: NodePool) -> tuple[DeviceId | None, ...]:
    return tuple(None if name is None else DeviceId(driver, pool.pool, name) for name in pool.devices)


def offered_only(driver: str, pool: NodePool) -> Restriction:
    """Return what keeps devices without our taint from being given: kube-scheduler allocates them."""
    names = [name for ordinal, name in enumerate(pool.devices) if name is not None and pool.offered >> ordinal & 1]
    devices = frozenset(DeviceId(driver, pool.pool, name) for name in (*names, *pool.others))
    return Restriction(frozenset({PoolId(driver, pool.pool)}), devices)
