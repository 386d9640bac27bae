"""Where the GPUs of a pod go on nodes, whole or in fractions: one order for whole GPUs, for shares
(docs/design/shares.md) and for parts that are cut on demand (docs/design/mig.md).

Whole GPUs are chosen first, by their links, as if the fractions took nothing, but so that these find a place. Fractions
go where they break the fewest free GPUs, then where that damages the rest of the node least, and then where least is
lost or left over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby, islice
from typing import Final, Generic, NamedTuple, TypeVar

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.reasons import of_untainted
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.search import RequestKey, Restriction
from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Damage, Demand, Engine
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import QuestionAnswers
from dracaena.controller.allocation.walk.fractions import Deal, FractionQuestion, Option, Q
from dracaena.controller.allocation.walk.judgements import UNSCORED, FractionsThere, NodeChoice
from dracaena.controller.allocation.walk.node_choice import NodeGpus, NodeQuestion, choose_place, chosen_by_links

T = TypeVar("T")

MAX_SETS: Final = 256
"""Sets of whole GPUs that are tried beside fractions: more than 8 GPUs have. If there is no place beside any of them,
only the rules judge the node."""

MAX_EQUAL_SETS: Final = 128
"""Sets of whole GPUs of equal worth that are compared by what the fractions lose beside them: all 70 of 4 among 8 GPUs,
and all 120 of 2 among 16."""

_LOST_PARTS: Final = 2
_LAST_PARTS: Final = 3
"""Parts of Places.rank_of(): what is lost, and what is left on the GPUs and of them."""


class Placement(NamedTuple):
    """One way to serve the pod on a node."""

    deal: Deal
    rank: int
    """Sorts the nodes of one decision, best first."""


class Places(Generic[Q]):
    """Answers for one pod and one choice of alternatives, about all nodes. Reads the inventory, which must not change
    meanwhile. This class is for pods that get whole GPUs; it knows no fractions."""

    worse = ""
    """Why another node came first, in words that follow a count of nodes."""
    most_proposals: int | None = None
    """Places on a node that the rules are asked about, best first; None: all."""

    def __init__(
        self, inventory: Inventory, answers: QuestionAnswers, engine: Engine, elsewhere: frozenset[int] = frozenset()
    ) -> None:
        """`elsewhere`: the requests that get fractions on some node."""
        self._inventory, self.answers, self.engine, self.elsewhere = inventory, answers, engine, elsewhere
        self.requests = answers.question
        counts = enumerate(self.requests.counts)
        self._is_linked = sum(count for place, count in counts if place not in elsewhere) > 1

    @property
    def form(self) -> Hashable:
        """What the form of all ranks depends on."""
        return self.worse, self.elsewhere

    # What fractions add

    def question(self, kind: NodeKind) -> Q:
        """Return what is asked of the nodes of a kind about fractions. Cost: a look-up after the first time."""
        raise NotImplementedError

    def narrowed(self, asked: Q, problem: Problem, pool: NodePool, gpus: NodeGpus, node_question: NodeQuestion) -> Q:
        """Return the question reduced to one node: selectors may name a GPU by what no other node has."""
        raise NotImplementedError

    def on(self, asked: Q, state: NodeState, held: int) -> NodePlaces[Q]:
        """Return the places on nodes in a state where the pod already has the GPUs `held`."""
        raise NotImplementedError

    def is_exact(self, asked: Q, state: NodeState) -> bool:
        """Return whether places keep all rules, so that these need not be asked."""
        return False

    def _may_give_more(self, asked: Q) -> bool:
        return asked.kind.is_mixed

    # What is the same for all

    def asked(self, kind: NodeKind) -> Q | None:
        """Return what is asked about fractions of the nodes of a kind where places depend on them, else None."""
        found = self.question(kind) if self.elsewhere else None
        return found if found is not None and found.is_about_fractions else None

    def may_give_more(self, kind: NodeKind) -> bool:
        """Return whether nodes of a kind may have devices for the pod that no place counts with."""
        asked = self.asked(kind)
        return self._inventory.is_mixed(kind) if asked is None else self._may_give_more(asked)

    def free(self, state: NodeState, held: int) -> int:
        """Return the GPUs of nodes in a state that count for the pod and can be given whole."""
        return state.free & self.answers.of_kind(state.kind).present & ~held

    @property
    def parts_behind(self) -> int:
        """How many parts of a rank come after those of the whole GPUs (rank_of)."""
        if not self.elsewhere:
            return 0
        return _LOST_PARTS + _LAST_PARTS if self._is_linked else _LAST_PARTS

    def bound(self, state: NodeState, held: int) -> int | str:
        """Return the best rank that nodes in a state may have for what places count with, or why there is no place.
        `held` are the GPUs there that the pod already has."""
        asked = self.asked(state.kind)
        if asked is not None:
            places = self.on(asked, state, held)
            first = next(places.all(), None)
            if first is not None:
                return first.rank
            # If something was left out nothing is proved: the node is asked after all others.
            return UNSCORED if places.cut_off else places.refusal()
        answers = self.answers.of_kind(state.kind)
        answer = answers.with_held(state.free, held) if held else answers.of(state.free)
        if answer.best is None:
            return answer.reason
        return self._rank_of_whole(state, held, answer.best.score.best_node_rank()) if self.elsewhere else answer.bound

    def rank(self, state: NodeState, held: int, choice: Choice) -> int:
        """Return the rank of a node that gives only whole GPUs."""
        nodes = choice.score.node_rank()
        return self._rank_of_whole(state, held, nodes) if self.elsewhere else one_number(nodes)

    def _rank_of_whole(self, state: NodeState, held: int, nodes: tuple[int, ...]) -> int:
        return self.rank_of(self.question(state.kind), nodes, self.free(state, held))

    def rank_of(
        self,
        asked: FractionQuestion,
        nodes: tuple[int, ...],
        free: int,
        count: tuple[int, int] = (0, 0),
        left: tuple[int, int] = (0, 0),
    ) -> int:
        """Return the rank of a node, given the rank of its whole GPUs. GPUs that are lost to sets count before the
        position of the pod's one whole GPU, and after the links of several; so do GPUs that are given whole to requests
        that get fractions on other nodes."""
        counts = self.requests.counts
        instead = sum(counts[place] for place in self.elsewhere if place not in asked.fractions)
        lost = count[0] + instead, count[1] + asked.wasted
        ranks = (*nodes, *lost) if self._is_linked else (*lost, *nodes)
        return one_number((*ranks, *left, free.bit_count()))

    def choose(
        self, problem: Problem, gpus: NodeGpus, node_question: NodeQuestion, pool: NodePool, state: NodeState
    ) -> NodeChoice | DoesNotFit | NeedsPerson | None:
        """Return the best place that the rules can complete, or the first legal allocation if they complete none of
        them; None on nodes where only links of whole GPUs decide."""
        asked = self.asked(pool.kind)
        if asked is None:
            return None
        asked = self.narrowed(asked, problem, pool, gpus, node_question)
        places, driver = self.on(asked, state, gpus.held), self._inventory.driver
        keys = tuple(one.key for one in chosen_by_links(problem, node_question))
        found = choose_place(
            problem,
            gpus,
            self.engine,
            node_question,
            islice(places.all(), self.most_proposals),
            lambda placement: tuple(places.restrictions(driver, pool, placement, keys)),
        )
        if found is None:
            return DoesNotFit(note=places.refusal(), cut_off=places.cut_off, steps=places.looks)
        if isinstance(found, DoesNotFit | NeedsPerson):
            return found
        placement, legal = found
        if placement is None:
            return NodeChoice(pool, None, legal=legal)
        there = FractionsThere(placement.rank, self.worse, placement.deal.joined)
        return NodeChoice(pool, placement.deal.whole, legal=legal, cut_off=places.cut_off, fractions=there)

    def at_once(self, pool: NodePool, state: NodeState, held: int) -> NodeChoice | None:
        """Return the best place on a node whose state says everything, without asking the rules; None if there is more
        to check, or no place."""
        asked = self.asked(state.kind)
        if asked is None or not self.is_exact(asked, state):
            return None
        places = self.on(asked, state, held)
        placement = next(places.all(), None)
        if placement is None:
            return None
        names: list[list[str]] = [[] for _ in self.requests.counts]
        for at, name in places.names(pool, placement.deal):
            names[at].append(name)
        there = FractionsThere(placement.rank, self.worse, devices=tuple(map(tuple, names)))
        return NodeChoice(pool, placement.deal.whole, fractions=there)


class NodePlaces(ABC, Generic[Q]):
    """The places on a node in one state, for one question. Remembers nothing beyond itself."""

    looks = 0
    """Looks at GPUs so far, if they are counted."""

    def __init__(self, of_pod: Places[Q], asked: Q, state: NodeState, held: int) -> None:
        """`held`: whole GPUs there that the pod already has."""
        self._of_pod, self._engine, self._asked, self._box = of_pod, of_pod.engine, asked, state.kind.box
        self._requests, self._free, self._held = of_pod.requests, of_pod.free(state, held), held
        self._which = "untainted " if of_pod.answers.of_kind(state.kind).tainted else ""
        """The word for the GPUs that reasons are about."""
        self._nothing = tuple(Demand(0, policy) for policy in self._requests.policies)
        self.cut_off = False
        """Whether something was left out because there is too much of it: finding no place then proves nothing."""

    @abstractmethod
    def deals(self, option: Option, whole: Choice | None) -> Iterator[Deal]:
        """Yield the ways to serve the requests beside these whole GPUs, or only the best one whatever it damages."""

    @abstractmethod
    def names(self, pool: NodePool, deal: Deal) -> Iterator[tuple[int, str]]:
        """Yield request and device name of each fraction, in the order of the allocation's results."""

    @abstractmethod
    def no_room(self) -> str:
        """Say that there is no place for all requests at once, in words that follow a count of nodes."""

    def may_have_place(self, option: Option) -> bool:
        """Return whether the fractions may have a place beside some whole GPUs. Cost: less than a deal."""
        return True

    def settled(self, deal: Deal) -> Deal:
        """Return the best deal that breaks as many free GPUs as this one: those whose loss does least damage."""
        return deal

    def lack(self) -> str:
        """Return why one request alone gets nothing, in words that follow a count of nodes; "" if nothing is known."""
        return ""

    def all(self) -> Iterator[Placement]:
        """Yield the places, best first: by the whole GPUs, as if no fraction were asked for; then the fewest free GPUs
        that are broken, then those whose loss does least damage, then the least that is lost or left over. Lazy. At
        most MAX_SETS sets of whole GPUs are tried, and MAX_EQUAL_SETS equal ones compared."""
        for _, equal in groupby(self._most(MAX_SETS, self._sets()), key=_rank_of_whole):
            every = [deal for whole, option in self._most(MAX_EQUAL_SETS, equal) for deal in self.deals(option, whole)]
            every.sort(key=_broken)
            # Most callers ask for one place only, so no damage is worked out for deals that break more.
            for _, alike in groupby(every, key=_broken):
                yield from map(self._placement, sorted(map(self.settled, alike), key=self._order))

    def refusal(self) -> str:
        """Return why there is no place, in words that follow a count of nodes."""
        alone = self.lack()
        if alone:
            return alone
        wanted = sum(self._requests.counts[place] for place in self._asked.whole)
        every = self._asked.options
        if not wanted or any(next(self._choices(option), None) is not None for option in every):
            return self.no_room()
        demands = self._demands(every[0]) if every else ()
        found = self._engine.best_two(self._box, self._free, demands, self._held)
        reason = found.shortfall or f"without {wanted} free GPUs that the requests accept"
        return of_untainted(reason) if self._which else reason

    def restrictions(
        self, driver: str, pool: NodePool, placement: Placement, keys: Sequence[RequestKey]
    ) -> Iterator[Restriction]:
        """Yield the restrictions of each request to its fractions or its GPUs."""
        names: dict[int, set[str]] = {}
        for at, name in self.names(pool, placement.deal):
            names.setdefault(at, set()).add(name)
        whole = placement.deal.whole
        for at, part in () if whole is None else zip(self._asked.whole, whole.parts, strict=True):
            names[at] = {own for one in ordinals_of(part) if (own := pool.devices[one]) is not None}
        pools = frozenset({PoolId(driver, pool.pool)})
        for at, of_request in names.items():
            devices = frozenset(DeviceId(driver, pool.pool, name) for name in of_request)
            yield Restriction(pools, devices, frozenset({keys[at]}))

    def _most(self, count: int, every: Iterable[T]) -> Iterator[T]:
        """Yield at most `count`, and note whether there are more."""
        for number, one in enumerate(every):
            if number == count:
                self.cut_off = True
                return
            yield one

    def _sets(self) -> Iterator[tuple[Choice | None, Option]]:
        """Yield the whole GPUs that the pod may get, best first, with what the fractions may have beside them."""
        if not self._asked.whole:
            return iter([(None, option) for option in self._asked.options])
        options = filter(self.may_have_place, self._asked.options)
        every = [((choice, option) for choice in self._choices(option)) for option in options]
        return merge(*every, key=_rank_of_whole)

    def _choices(self, option: Option) -> Iterator[Choice]:
        return self._engine.choices(self._box, self._free, self._demands(option), self._held)

    def _demands(self, option: Option) -> tuple[Demand, ...]:
        requests, free = self._requests, self._free
        return tuple(
            Demand(requests.counts[at], requests.policies[at], None if mask & free == free else mask & free)
            for at, mask in zip(self._asked.whole, option.whole, strict=True)
        )

    def _order(self, deal: Deal) -> tuple[object, ...]:
        """Return a key that sorts deals, best first; their whole GPUs have one rank, and they break as many."""
        return self._damage(deal), deal.left, deal.picks, ordinals_of(deal.taken)

    def _damage(self, deal: Deal) -> Damage:
        if not deal.fresh:
            return ()
        return self._damages(self._free & ~deal.taken)(deal.fresh)

    def _damages(self, free: int) -> Callable[[int], Damage]:
        return self._engine.damages(self._box, free, self._nothing)

    def _placement(self, deal: Deal) -> Placement:
        rank = self._of_pod.rank_of(self._asked, self._node_rank(deal), self._free, deal.broken, deal.left)
        return Placement(deal, rank)

    def _node_rank(self, deal: Deal) -> tuple[int, ...]:
        """Return the part of a node's rank that its whole GPUs decide, including those that the fractions break."""
        if deal.whole is not None and not deal.fresh:
            return deal.whole.score.node_rank()
        if not deal.fresh:
            return (0,) * len(self._engine.order(self._nothing).node_names)
        lost = self._engine.score(self._box, self._free, deal.taken | deal.fresh, self._nothing, self._held)
        if deal.whole is None:
            return lost.node_rank()
        return replace(
            deal.whole.score,
            damage_gb_s=lost.damage_gb_s,
            damage_ring_gb_s=lost.damage_ring_gb_s,
            damage_levels=lost.damage_levels,
            taken_gpus=lost.taken_gpus,
        ).node_rank()


def _broken(deal: Deal) -> tuple[int, int]:
    return deal.broken


def _rank_of_whole(one: tuple[Choice | None, Option]) -> tuple[int, ...]:
    return () if one[0] is None else one[0].score.rank()
