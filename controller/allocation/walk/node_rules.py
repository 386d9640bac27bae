"""What one node gives for one choice of alternatives, according to the rules themselves.

An exact node is never asked: its answer (answers) says everything. For all others the answer is a bound, and what the
rules say is remembered (judgements). A selector that reads what distinguishes GPUs of equal nodes, such as a UUID, has
a different answer on every node: it is first evaluated on the few attributes that it reads, once for each state of a
pool (IdentityMasks).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from typing import Final, Protocol

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.reasons import of_untainted, too_small_gpus
from dracaena.api.sharing import size_in_words
from dracaena.controller.allocation.effort import DEVICE_STEPS, Effort, Memo, Work
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Plan
from dracaena.controller.allocation.legal.pools import gather_pools
from dracaena.controller.allocation.legal.problem import Problem, ShareModes, Snapshot, pose
from dracaena.controller.allocation.legal.read import claims as legal
from dracaena.controller.allocation.legal.read.claims import Unsupported
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.search import Restriction, solve
from dracaena.controller.allocation.legal.selectors import Selectors
from dracaena.controller.allocation.request import ClaimDemand
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import QuestionAnswers, Ranking
from dracaena.controller.allocation.walk.judgements import (
    FIRST,
    UNSCORED,
    Judgement,
    Judgements,
    NodeChoice,
    SharesThere,
    refusal_text,
)
from dracaena.controller.allocation.walk.matches import IdentityMasks, MatchedKinds
from dracaena.controller.allocation.walk.node_choice import (
    Chosen,
    NodeGpus,
    NodeQuestion,
    agreeing_gpus,
    choose,
    choose_proposed,
)
from dracaena.controller.allocation.walk.pod_demand import Combination, CombinationFacts, PodDemand
from dracaena.controller.allocation.walk.shares.places import SharePlaces, most_memory
from dracaena.controller.allocation.walk.shares.question import ShareQuestion, share_question

LACKS: Final = "without enough free devices that the selectors name by their identity"
MATCHES_NOTHING: Final = "without any device that one of the requests matches"
"""Why a node is out before the rules are asked, in words that follow a count of nodes."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """The tools with which every node of every decision is evaluated."""

    engine: Engine
    selectors: CelSelectors
    features: Features
    identities: IdentityMasks
    matched: MatchedKinds
    max_steps: int
    """Of the search, for a pod and node."""
    first_fit: bool
    """Take the first legal devices of the first node in Kubernetes' order."""
    effort: Effort
    judgements: Judgements
    bounds: Memo[Hashable, Ranking[NodeState]]
    """The mixed nodes in the order of their bounds, by what is asked."""


class PartJudge(Protocol):
    """What is asked about nodes whose GPUs are cut on demand (partitions.rules.PartRules)."""

    @property
    def is_needed(self) -> bool: ...  # noqa: D102

    @property
    def elsewhere(self) -> frozenset[int]: ...  # noqa: D102

    def bound(self, state: NodeState, held: int) -> int | str: ...  # noqa: D102

    def rank_of_whole(self, state: NodeState, choice: Choice) -> int: ...  # noqa: D102

    def gives_parts(self, kind: NodeKind) -> bool: ...  # noqa: D102

    def direct(self, pool: NodePool, state: NodeState, held: int) -> NodeChoice | None: ...  # noqa: D102

    def choose(  # noqa: D102
        self, problem: Problem, pool: NodePool, state: NodeState, held: int, node_question: NodeQuestion
    ) -> NodeChoice | DoesNotFit | NeedsPerson: ...

    def never(self, selectors: Selectors) -> str: ...  # noqa: D102


class NodeRules:
    """Answers for one pod and one choice of alternatives. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self,
        inventory: Inventory,
        demand: PodDemand,
        combination: Combination,
        facts: CombinationFacts,
        answers: QuestionAnswers,
        evaluators: Evaluators,
        parts: PartJudge,
        *,
        is_exact: bool,
    ) -> None:
        """`parts` judges nodes whose GPUs are cut on demand. `is_exact`: whether the answers say everything about whole
        GPUs."""
        self.combination, self.facts, self.answers = combination, facts, answers
        self._inventory, self._demand, self._evaluators = inventory, demand, evaluators
        self._claims = [claim.claim.key for claim in combination.claims]
        self._texts: dict[int, str] = {}  # of refusals, by identity of the judgement
        self.is_exact = is_exact
        self.is_first_fit = evaluators.first_fit
        self._share_questions: dict[NodeKind, ShareQuestion] = {}
        self._may_match_known: dict[NodeKind, bool] = {}
        self._has_shares = (
            bool(facts.amounts)
            and not evaluators.first_fit
            and evaluators.features.consumable_capacity
            and any(kind.shareable for kind in inventory.buckets)
        )
        self.part_rules = parts
        is_open = bool(facts.question.counts) and not (facts.amounts or facts.has_all or evaluators.first_fit)
        self._parts = self.part_rules if is_open and self.part_rules.is_needed else None
        # Ranks have the form that shares and parts need, which depends on all kinds of nodes together.
        elsewhere = None if self._parts is None else self._parts.elsewhere
        self._told = combination.key, inventory.taints_of_all, self._has_shares, elsewhere
        self._judgements = evaluators.judgements.about(self._told)
        self._may_share = not facts.identity and not inventory.allowed_drivers
        self.mistake: NeedsPerson | None = None
        """The first mistake that kept a node from being used and that only a person can fix."""

    def are_alike(self, name: str) -> bool:
        """Return whether every node in the state of this one gives the same."""
        return self._may_share and name not in self._demand.beside

    def is_answered(self, name: str) -> bool:
        """Return whether the answer for its kind says everything about a node."""
        state = self._inventory.state(name)
        is_mixed = isinstance(state, NodeState) and self._inventory.is_mixed(state.kind)
        return self.is_exact and not is_mixed and name not in self._demand.beside

    @property
    def reads_shares(self) -> bool:
        """Whether nodes that differ only in their shares have different bounds."""
        return self._has_shares or self._parts is not None

    def bound(self, state: NodeState, held: int = 0) -> int | str:
        """Return the best rank that nodes in this state may have, or why they give nothing. `held` are the GPUs there
        that the pod already has."""
        kind, free = state.kind, state.free
        if self._evaluators.first_fit:
            return 0
        if self.facts.has_all:
            return FIRST  # what mode All takes is part of the pod's set, and no bound knows it
        if not self.facts.question.counts:
            return UNSCORED
        if self._parts is not None:
            return self._bound_of_shares(state, held)
        if self._has_shares:
            bound = self._bound_of_shares(state, held)
            return FIRST if isinstance(bound, str) and self._inventory.is_mixed(kind) else bound
        answers = self.answers.of_kind(kind)
        answer = answers.beside(free, held) if held else answers.of(free)
        if answer.best is not None:
            return answer.bound
        if not self._inventory.is_mixed(kind):
            return answer.reason
        if held or answers.may_give_gpus():
            return FIRST
        if self._inventory.allowed_drivers:
            return UNSCORED  # a request may mean a device of another driver, which no kind of node knows
        return UNSCORED if self._may_match(kind) else MATCHES_NOTHING

    def ranking(self) -> Ranking[NodeState]:
        """Return the buckets of mixed nodes in the order of bound(). Cost: that of QuestionAnswers.ranking()."""
        ranking = self._evaluators.bounds.get(self._told, partial(Ranking[NodeState], mixed_only=True))
        ranking.follow(self._inventory.node_buckets, self._look, self._evaluators.effort)
        return ranking

    def _look(self, _: NodeKind, __: tuple[int, Hashable], names: Sequence[str]) -> tuple[int, NodeState] | str:
        bound = self.bound(state := self._state(names[0]))
        return bound if isinstance(bound, str) else (bound, state)

    def _may_match(self, kind: NodeKind) -> bool:
        """Return whether each request may mean some device of an existing kind of node, held or not; a device without
        an answer counts as meant. Cost: that of MatchedKinds.matches() for each request."""
        found = self._may_match_known.get(kind)
        if found is None:
            inventory, matches = self._inventory, self._evaluators.matched.matches
            found = self._may_match_known[kind] = all(
                matches(inventory.driver, expressions, inventory.devices_of, kind)
                for expressions in self.facts.question.eligibility.selectors
            )
        return found

    def _bound_of_shares(self, state: NodeState, held: int) -> int | str:
        known = self._judgements.bounds.get((state, held))
        if known is None:
            known = self._first_bound(state, held)
            self._judgements.note_bound(state, held, known)
        return known

    def _first_bound(self, state: NodeState, held: int) -> int | str:
        if self._parts is not None:
            return self._parts.bound(state, held)
        places = self._places(state, held)
        if places.question.is_about_shares:
            first = next(places.all(), None)
            if first is None:
                # If the search was cut off nothing is proved: the node is asked after all others.
                return UNSCORED if places.cut_off else places.refusal()
            return first.rank
        answer = self.answers.of_kind(state.kind).beside(state.free, held)
        return answer.reason if answer.best is None else places.rank(answer.best.score.best_node_rank())

    def most_left(self) -> str:
        """Say how much memory the GPU with most left has, in words; "" if no amount of memory is asked for.

        Cost: O(states of nodes × GPUs)."""
        wanted = [one.capacity[MEMORY_CAPACITY].nano for one in self.facts.amounts if MEMORY_CAPACITY in one.capacity]
        lefts = [
            left
            for kind, by_state in self._inventory.buckets.items()
            for names in by_state.values()
            for left in most_memory(kind, self._inventory.state(names[0]), names[0])
        ]
        if not wanted or not lefts:
            return "no GPU of the cluster is available in shares" if wanted else ""
        most, (left, node) = max(one for one, _, _ in lefts), max((left, node) for _, left, node in lefts)
        if max(wanted) > most:
            return too_small_gpus(f"{size_in_words(max(wanted))} of memory", size_in_words(most))
        if not left:
            return "no memory of any GPU is left"
        return f"the GPU with most memory left has {size_in_words(left)} (on {node})" if left < max(wanted) else ""

    def _places(self, state: NodeState, held: int, masks: Sequence[int] | None = None) -> SharePlaces:
        """Return where the shares of the pod, and whole GPUs beside them, have a place on nodes in a state."""
        kind = state.kind
        answers = self.answers.of_kind(kind)
        question = self._share_questions.get(kind)
        if question is None:
            of_pod = self.facts.question
            question = self._share_questions[kind] = share_question(
                kind,
                of_pod.policies,
                of_pod.counts,
                answers.of_request,
                self.facts.amounts,
                fractional=self._evaluators.features.fractional_capacity_range,
            )
        free = state.free & answers.present & ~held
        shares = tuple(one for one in state.shares if answers.present >> one.ordinal & 1)
        engine, effort = self._evaluators.engine, self._evaluators.effort
        hidden = answers.tainted
        return SharePlaces(question, engine, effort, free=free, shares=shares, held=held, masks=masks, hidden=hidden)

    def judgement(self, name: str, state: NodeState) -> Judgement | None:
        """Return what nodes in this state were found to give."""
        return self._judgements.known.get(state) if self.are_alike(name) else None

    def refusal(self, judgement: Judgement) -> str:
        """Return why nodes give nothing, in words that follow a count of nodes."""
        assert judgement.refusal is not None
        text = self._texts.get(id(judgement))
        if text is None:
            text = self._texts[id(judgement)] = f"where {refusal_text(judgement.refusal, self._claims)}"
        return text

    def held(self, name: str) -> int:
        """Return the GPUs on a node that the pod already has."""
        return self._demand.beside.get(name, 0)

    def rank(self, found: NodeChoice) -> int:
        """Return what sorts nodes, best first."""
        if self._evaluators.first_fit:
            return 0
        if found.shares is not None:
            return found.shares.rank
        if found.parts is not None:
            return found.parts.rank
        choice, name = found.best, found.pool.node
        if self._parts is not None and choice is not None:
            return self._parts.rank_of_whole(self._state(name), choice)
        if self._has_shares and choice is not None:
            return self._places(self._state(name), self.held(name)).rank(choice.score.node_rank())
        return UNSCORED if choice is None else one_number(choice.score.node_rank())

    def _state(self, name: str) -> NodeState:
        state = self._inventory.state(name)
        assert isinstance(state, NodeState)
        return state

    def shortfall(self, name: str) -> str | None:
        """Return why the node does not have the devices, in words that follow a count of nodes; None when it has."""
        state = self._inventory.state(name)
        if isinstance(state, str):
            return state
        is_mixed, text = self._inventory.is_mixed(state.kind), ""
        if self._parts is not None or (self._has_shares and self.facts.question.counts and not is_mixed):
            bound = self._bound_of_shares(state, self._demand.beside.get(name, 0))
            text = bound if isinstance(bound, str) else ""
        elif self.facts.question.counts and not is_mixed and not self.is_first_fit:
            kind, held = self.answers.of_kind(state.kind), self._demand.beside.get(name, 0)
            text = (kind.beside(state.free, held) if held else kind.of(state.free)).reason
        if text or (self.is_exact and not is_mixed):
            return text or None
        given = self.ask(name)
        return given if isinstance(given, str) else None

    def ask(self, name: str) -> NodeChoice | str:
        """Return what the node gives, or why nothing, in words that follow a count of nodes.

        Cost: the rules' own; a look-up if nodes in this state are known to give nothing.
        """
        state = self._inventory.state(name)
        if isinstance(state, str):
            return state
        lack = self.lack_of_identities(name, state.free | self._in_use(state))
        if lack is not None:
            return lack
        known = self.judgement(name, state)
        if known is not None and known.refusal is not None:
            return self.refusal(known)
        found = self._choose(name, state)
        if isinstance(found, NeedsPerson):
            self.mistake = self.mistake or found
            return f"where {found}"
        if isinstance(found, DoesNotFit):
            if self.are_alike(name):
                self._judgements.refuse(state, found, self._claims)
            return f"where {found}"
        if known is None and self.are_alike(name):
            self._judgements.accept(state, None if found.best is None else found.best.score, self.rank(found))
        return found

    def choice(self, name: str) -> NodeChoice | DoesNotFit | NeedsPerson:
        """Return what the rules say about a node that has a state, and remember nothing. Cost: the rules' own."""
        return self._choose(name, self._state(name))

    def lack_of_identities(self, name: str, gpus: int) -> str | None:
        """Say that these GPUs of a node that has a state are not the ones that some request names, in words that follow
        a count of nodes; None if they may be."""
        pool = self._inventory.pool(name)
        assert pool is not None
        if not any(self.facts.apart) or self._inventory.is_mixed(pool.kind):
            return None
        for count, expressions in zip(self.facts.question.counts, self.facts.apart, strict=True):
            mask = gpus
            for expression in expressions:
                mask &= self._evaluators.identities.may_match(self._inventory.driver, expression, pool)
            if mask.bit_count() < count:
                return LACKS
        return None

    def _in_use(self, state: NodeState) -> int:
        """Return the GPUs in use of which some request may have a share."""
        return mask_of(one.ordinal for one in state.shares) if self.facts.amounts else 0

    def _choose(self, name: str, state: NodeState) -> NodeChoice | DoesNotFit | NeedsPerson:
        inventory, combination = self._inventory, self.combination
        pool = inventory.pool(name)
        assert pool is not None
        held = self._demand.beside.get(name, 0)
        if self.is_exact and self._parts is not None and (found := self._parts.direct(pool, state, held)) is not None:
            return found
        problem = _pose(inventory, name, combination.claims, self._evaluators)
        if not isinstance(problem, Problem):
            return problem
        free = state.free & ~held
        if self.facts.question.counts:
            free &= self.answers.of_kind(state.kind).present
        gpus = NodeGpus(state.kind.box, _ids(inventory.driver, pool), free, held)
        question = NodeQuestion(
            chosen=combination.chosen,
            policies={request.key: request.demand.policy for request in combination.requests},
            base=(_offered_only(inventory.driver, pool),),
            max_steps=self._evaluators.max_steps,
            first_fit=self._evaluators.first_fit,
            effort=self._evaluators.effort,
        )
        if self._has_shares and self._places(state, held).question.is_about_shares:
            options = agreeing_gpus(problem, gpus, self._evaluators.engine, question)
            every = [self._places(state, held, masks) for masks in options]
            proposals = merge(*(one.all() for one in every), key=lambda one: one.order)
            taken = choose_proposed(problem, gpus, self._evaluators.engine, question, proposals)
            cut_off = any(one.cut_off for one in every)
            if taken is None:
                refusals = sorted({one.refusal() for one in every})
                return DoesNotFit(note="; ".join(refusals), cut_off=cut_off, steps=sum(one.looks for one in every))
            if not isinstance(taken, tuple):
                return taken
            plan, placement = taken
            legal_plan, shares = (problem, plan), SharesThere(placement.rank, placement.joined)
            return NodeChoice(pool, placement.whole, legal=legal_plan, cut_off=cut_off, shares=shares)
        if self._parts is not None and self._parts.gives_parts(state.kind):
            return self._parts.choose(problem, pool, state, held, question)
        chosen = choose(problem, gpus, self._evaluators.engine, question)
        if isinstance(chosen, DoesNotFit) and chosen.note and state.free & self.answers.of_kind(state.kind).tainted:
            return replace(chosen, note=of_untainted(f" {chosen.note}").strip())
        if not isinstance(chosen, Chosen):
            return chosen
        return NodeChoice(pool, chosen.choice, legal=(problem, chosen.plan), cut_off=chosen.cut_off)


def states(inventory: Inventory, demand: PodDemand, *, alike: bool) -> Iterator[str]:
    """Yield a node of each state where the pod may run; with `alike` only one of each, else all of them."""
    for by_state in inventory.buckets.values():
        for names in by_state.values():
            for name in names:
                if demand.filter.reason(inventory.nodes.get(name)) is None:
                    yield name
                    if alike:
                        break


def first_alternatives(
    inventory: Inventory, name: str, claims: Sequence[ClaimDemand], evaluators: Evaluators
) -> tuple[int, ...] | None:
    """Return the most preferred alternatives that are legal on a node, by their places, in the order of claims and
    requests; None when none are. Requirements of policies do not count."""
    pool = inventory.pool(name)
    problem = _pose(inventory, name, claims, evaluators)
    if pool is None or not isinstance(problem, Problem):
        return None
    plan = solve(
        problem,
        restrictions=(_offered_only(inventory.driver, pool),),
        max_steps=evaluators.max_steps,
        effort=evaluators.effort,
    )
    if not isinstance(plan, Plan):
        return None
    return tuple(
        request.alternatives.index(chosen)
        for claim in plan.claims
        for request, chosen in zip(claim.claim.requests, claim.chosen, strict=True)
    )


def _pose(
    inventory: Inventory, node: str, claims: Sequence[ClaimDemand], evaluators: Evaluators
) -> Problem | DoesNotFit | NeedsPerson:
    """Return the question what the claims may get on a node, with every alternative open; or its answer."""
    evaluators.effort.charge(DEVICE_STEPS * (1 + inventory.device_count(node)), Work.DEVICES)
    slices, books = inventory.reach(node)
    # Posing a question checks every alternative, so all their classes are needed.
    classes: dict[str, legal.ClassRequirements | Unsupported] = {
        one.device_class.name: one.device_class for claim in claims for entry in claim.requests for one in entry
    }
    modes = _modes(inventory, node, claims)
    cluster = Snapshot(classes, books, evaluators.selectors, evaluators.features, modes)
    pools = gather_pools(slices, inventory.nodes.get(node).node, cluster.features)
    return pools if isinstance(pools, NeedsPerson) else pose(cluster, node, [claim.spec for claim in claims], pools)


def _modes(inventory: Inventory, node: str, claims: Sequence[ClaimDemand]) -> ShareModes:
    """Return how the requests want to share the GPUs of a node that are given in shares; nothing if none asks for an
    amount, because a GPU that is taken whole is not shared."""
    pool = inventory.pool(node)
    if pool is None or not pool.kind.shareable:
        return ShareModes()
    every = [
        ((claim, index, nth), demand)
        for claim, entry in enumerate(claims)
        for index, alternatives in enumerate(entry.requests)
        for nth, demand in enumerate(alternatives)
    ]
    if all(demand.request.capacity is None for _, demand in every):
        return ShareModes()
    ids = enumerate(_ids(inventory.driver, pool))
    devices = frozenset(one for place, one in ids if one is not None and pool.kind.shareable >> place & 1)
    return ShareModes(devices, {places: demand.mode for places, demand in every})


def _ids(driver: str, pool: NodePool) -> tuple[DeviceId | None, ...]:
    return tuple(None if name is None else DeviceId(driver, pool.pool, name) for name in pool.devices)


def _offered_only(driver: str, pool: NodePool) -> Restriction:
    """Return the restriction to devices that can be read and have our taint: kube-scheduler allocates those without."""
    names = [name for ordinal, name in enumerate(pool.devices) if name is not None and pool.offered >> ordinal & 1]
    devices = frozenset(DeviceId(driver, pool.pool, name) for name in (*names, *pool.others))
    return Restriction(frozenset({PoolId(driver, pool.pool)}), devices)
