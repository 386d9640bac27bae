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
from typing import Any, Final

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.reasons import of_untainted
from dracaena.controller.allocation.effort import DEVICE_STEPS, Effort, Memo, Work
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Plan
from dracaena.controller.allocation.legal.pools import gather_pools
from dracaena.controller.allocation.legal.problem import Problem, ShareModes, Snapshot, pose
from dracaena.controller.allocation.legal.read import claims as legal
from dracaena.controller.allocation.legal.read.claims import Unsupported
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.search import Restriction, solve
from dracaena.controller.allocation.request import ClaimDemand
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.score.choices import Engine
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import QuestionAnswers, Ranking
from dracaena.controller.allocation.walk.judgements import (
    FIRST,
    UNSCORED,
    Judgement,
    Judgements,
    NodeChoice,
    refusal_text,
)
from dracaena.controller.allocation.walk.matches import IdentityMasks, MatchedKinds
from dracaena.controller.allocation.walk.node_choice import Chosen, NodeGpus, NodeQuestion, choose
from dracaena.controller.allocation.walk.partitions.places import PartPlaces, PartTables
from dracaena.controller.allocation.walk.places import Places
from dracaena.controller.allocation.walk.pod_demand import Combination, CombinationFacts, PodDemand
from dracaena.controller.allocation.walk.shares.places import SharePlaces, most_left

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
    tables: PartTables


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
        *,
        is_exact: bool,
    ) -> None:
        """`is_exact`: whether the answers say everything about whole GPUs."""
        self.combination, self.facts, self.answers = combination, facts, answers
        self._inventory, self._demand, self._evaluators = inventory, demand, evaluators
        self._claims = [claim.claim.key for claim in combination.claims]
        self._texts: dict[int, str] = {}  # of refusals, by identity of the judgement
        self.is_exact = is_exact
        self.is_first_fit = evaluators.first_fit
        self._may_match_known: dict[NodeKind, bool] = {}
        self._parts = PartPlaces(inventory, answers, evaluators.engine, combination.scored, evaluators.tables)
        self._places = self._make_places()
        # Ranks have the form that fractions need, which depends on all kinds of nodes together.
        self._asked = combination.key, inventory.taints_of_all, self._places.form
        self._judgements = evaluators.judgements.about(self._asked)
        self._may_share = not facts.identity and not inventory.allowed_drivers
        self.mistake: NeedsPerson | None = None
        """The first mistake that kept a node from being used and that only a person can fix."""

    def _make_places(self) -> Places[Any]:
        facts, tools, inventory = self.facts, self._evaluators, self._inventory
        whole, features = Places[Any](inventory, self.answers, tools.engine), tools.features
        if tools.first_fit or not facts.question.counts:
            return whole
        if not facts.amounts:
            return self._parts if self._parts.elsewhere and not facts.has_all else whole
        if not (features.consumable_capacity and any(kind.shareable for kind in inventory.buckets)):
            return whole
        fractional = features.fractional_capacity_range
        return SharePlaces(inventory, self.answers, tools.engine, facts.amounts, tools.effort, fractional=fractional)

    def are_alike(self, name: str) -> bool:
        """Return whether every node in the state of this one gives the same."""
        return self._may_share and name not in self._demand.held

    def is_answered(self, name: str) -> bool:
        """Return whether the answer for its kind says everything about a node."""
        state = self._inventory.state(name)
        is_mixed = isinstance(state, NodeState) and self._inventory.is_mixed(state.kind)
        return self.is_exact and not is_mixed and name not in self._demand.held

    @property
    def has_fractions(self) -> bool:
        """Whether the pod may get fractions of GPUs: nodes that differ only in those in use have different bounds."""
        return bool(self._places.elsewhere)

    @property
    def parts_behind(self) -> int:
        """How many parts of rank() and bound() come after those that score whole GPUs."""
        return self._places.parts_behind

    def bound(self, state: NodeState, held: int = 0) -> int | str:
        """Return the best rank that nodes in this state may have, or why they give nothing. `held` are the GPUs there
        that the pod already has."""
        if self._evaluators.first_fit:
            return 0
        if self.facts.has_all:
            return FIRST  # what mode All takes is part of the pod's set, and no bound knows it
        if not self.facts.question.counts:
            return UNSCORED
        kind, bound = state.kind, self._bound_of_places(state, held)
        if not isinstance(bound, str) or not self._places.may_give_more(kind):
            return bound
        if held or self._places.asked(kind) is not None or self.answers.of_kind(kind).may_give_gpus():
            return FIRST
        if self._inventory.allowed_drivers:
            return UNSCORED  # a request may mean a device of another driver, which no kind of node knows
        return UNSCORED if self._may_match(kind) else MATCHES_NOTHING

    def ranking(self) -> Ranking[NodeState]:
        """Return the buckets of mixed nodes in the order of bound(). Cost: that of QuestionAnswers.ranking()."""
        ranking = self._evaluators.bounds.get(self._asked, partial(Ranking[NodeState], mixed_only=True))
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

    def _bound_of_places(self, state: NodeState, held: int) -> int | str:
        if not self.has_fractions:
            return self._places.bound(state, held)  # remembered by the answers
        known = self._judgements.bounds.get((state, held))
        if known is None:
            known = self._places.bound(state, held)
            self._judgements.note_bound(state, held, known)
        return known

    def note(self) -> str:
        """Say what of the cluster's GPUs can be given to no pod like this one; "" if nothing is known. Cost: a look at
        each state and each place of GPUs."""
        return most_left(self._inventory, self.facts.amounts) or self._parts.never(self._evaluators.selectors)

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
        return self._demand.held.get(name, 0)

    def rank(self, found: NodeChoice) -> int:
        """Return what sorts nodes, best first."""
        if self._evaluators.first_fit:
            return 0
        if found.fractions is not None:
            return found.fractions.rank
        name = found.pool.node
        return UNSCORED if found.best is None else self._places.rank(self._state(name), self.held(name), found.best)

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
        if self.facts.question.counts and not self.is_first_fit and not self._places.may_give_more(state.kind):
            bound = self._bound_of_places(state, self.held(name))
            text = bound if isinstance(bound, str) else ""
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
        held = self.held(name)
        at_once = self._places.at_once(pool, state, held) if self.is_exact else None
        if at_once is not None:
            return at_once
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
        placed = self._places.choose(problem, gpus, question, pool, state)
        if placed is not None:
            return placed
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
