"""The decision: all claims of a pod at once, on one node.

Order: what the policies require; then the parts of a score (order.Order), the fuller node among them; then names and
ordinals, so that the same input gives the same answer.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Final, TypeVar

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.effort import Effort, Memo, OverdueError, Rounds, Work, never
from dracaena.controller.allocation.explanation import AtOnce, Pace, ReasonCounts, Unsatisfied, ended
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import Mistake, NeedsPerson
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import MAX_STEPS
from dracaena.controller.allocation.nodes.matching import read_node_selector
from dracaena.controller.allocation.nodes.node_filter import Names, NodeFilter
from dracaena.controller.allocation.request import Question, RefusalKind, Refused
from dracaena.controller.allocation.result import (
    Allocation,
    RunnerUpChoice,
    make_allocation,
    make_part_allocation,
    planned_allocation,
)
from dracaena.controller.allocation.score.box import Box
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.order import follows_siblings
from dracaena.controller.allocation.state.families import Kin
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.published_names import PublishedNames
from dracaena.controller.allocation.walk.answers import Answers, QuestionAnswers
from dracaena.controller.allocation.walk.family import FamilyPreference
from dracaena.controller.allocation.walk.ignored import ignored_parts
from dracaena.controller.allocation.walk.judgements import MAX_JUDGEMENTS, Judgements, NodeChoice
from dracaena.controller.allocation.walk.lasting import Lack, LastingLacks, Never, reasons_of_nodes
from dracaena.controller.allocation.walk.matches import IdentityMasks, MatchedKinds
from dracaena.controller.allocation.walk.mistakes import selector_failure, unknown_names
from dracaena.controller.allocation.walk.node_rules import Evaluators, NodeRules, first_alternatives, states
from dracaena.controller.allocation.walk.overdue import too_long
from dracaena.controller.allocation.walk.partitions.places import PartTables
from dracaena.controller.allocation.walk.pod_demand import (
    MAX_COMBINATIONS,
    Combination,
    CombinationFacts,
    PodDemand,
    combination_count,
    combination_of,
    combinations,
    facts_of,
    read_pod_demand,
    reads_identities,
    shape,
)
from dracaena.controller.allocation.walk.walk import Walk

MAX_FACTS: Final = 4_096
"""Combinations whose facts are kept, about 1 KiB each: one for each different spec of claims without alternatives."""

MAX_BOUNDS: Final = 100
"""Combinations for which mixed nodes are kept in the order of their bounds, 0.2 MB each among 1,500 states: as many
different claims as judgements are kept of (MAX_JUDGEMENTS)."""

_KIND_OF: Final = {
    Mistake.SELECTOR: RefusalKind.SELECTOR,
    Mistake.LIMIT: RefusalKind.LIMIT,
    Mistake.UNSUPPORTED: RefusalKind.UNSUPPORTED,
    Mistake.CLASS_MISSING: RefusalKind.CLASS_MISSING,
}


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to decide: all claims are allocated, on an existing node."""


@dataclass(frozen=True, slots=True)
class NoFit:
    """The pod fits on no node now. It may fit later by itself. Allocator.explain() says why."""

    short: bool = field(default=False, compare=False)
    """Whether more CPU, memory and the like on some node may be all that it needs."""
    gpus: int = field(default=0, compare=False)
    """Whole GPUs that it asks for, with its most preferred alternatives."""
    amounts: bool = field(default=False, compare=False)
    """Whether it asks for amounts of memory or cores, with any alternatives."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A pod of a gang, read."""

    pod: Pod
    demand: PodDemand
    combination: Combination
    answers: QuestionAnswers
    alternative: int
    """Number of the combination of alternatives."""
    key: Hashable
    """Members with equal keys ask for the same."""

    @property
    def has_placement_rules(self) -> bool:
        """Whether other pods decide which nodes suit it."""
        spec = self.pod.spec
        return self.demand.placement is not None or bool(spec.affinity or spec.topology_spread_constraints)


def numbered_share_ids() -> Iterator[str]:
    """Yield share ids that are the same in each run, for allocations that are never written."""
    number = 0
    while True:
        yield f"00000000-0000-4000-8000-{number:012x}"
        number += 1


class Allocator:
    """Decides. Holds only earlier results, so that equal nodes cost one look-up. One thread at a time."""

    def __init__(
        self,
        *,
        first_fit: bool = False,
        max_steps: int = MAX_STEPS,
        share_ids: Iterator[str] | None = None,
    ) -> None:
        """`first_fit`: take the first legal devices of the first node in Kubernetes' order. `max_steps` bounds the
        search for a pod and node. `share_ids` yields a new UUID for each share of a device; by default they are
        numbered.
        """
        self.effort = Effort()
        self.engine = Engine(effort=self.effort)
        self._max_steps, self._first_fit = max_steps, first_fit
        self._share_ids = share_ids or numbered_share_ids()
        self.serve(Features())

    def serve(self, features: Features) -> None:
        """Decide by a cluster's features from now on (Features.of). Everything remembered except links is forgotten."""
        self.features = features
        self._rounds = Rounds()
        self.selectors = CelSelectors(features, self.effort)
        self._answers = Answers(self.engine, self.selectors)
        self._evaluators = Evaluators(
            self.engine,
            self.selectors,
            features,
            IdentityMasks(self.selectors),
            MatchedKinds(self.selectors),
            self._max_steps,
            self._first_fit,
            self.effort,
            Judgements(MAX_JUDGEMENTS),
            Memo(MAX_BOUNDS),
            PartTables(self.effort),
        )
        self._names = PublishedNames()
        self._facts: Memo[Hashable, CombinationFacts] = Memo(MAX_FACTS)

    def reprice(self, inventory: Inventory, shares: tuple[int, int, int]) -> bool:
        """Let decisions weigh what a pod gains on a node against what others lose there, given the shares of GPUs that
        they ask for (Prices.shares). Return whether that changes anything: prices that are about right stay, because
        other prices mean that all answers are worked out again. Cost: a step for each bucket.
        """
        nodes: Counter[Box] = Counter()
        for kind, by_state in inventory.buckets.items():
            nodes[kind.box] += sum(map(len, by_state.values()))
        prices = self.engine.priced(shares, nodes)
        if prices is None or prices.is_near(self.engine.prices):
            return False
        self.engine.reprice(prices)
        self._answers.clear()
        self._evaluators.judgements.clear()
        self._evaluators.bounds.clear()
        return True

    def allocate(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        barred: Mapping[str, str] = MappingProxyType({}),
        within: Names | None = None,
        preempting: bool = False,
        is_over: Callable[[int], bool] = never,
    ) -> Allocation | NoFit | Refused | Settled:
        """Decide for all `claims` of a pod, in the order in which the pod names them. Changes nothing.

        Claims that are allocated already pin the pod to their nodes, and their GPUs count as part of its set. The
        answer depends on nothing but the arguments (share ids aside). Combinations of alternatives are tried in order
        of preference, and the first that any node can serve wins. Cost: one step for each node that is refused before
        one fits, and the comparison of candidates for each kind and mask of free GPUs that was never asked before; more
        where the rules have to be asked, and for pods of families (Walk.best). `barred` nodes give nothing, for the
        reasons given there, and nodes that are not `within` are not asked at all; None: all are. `preempting`: CPU and
        the like that pods of lower priority take counts as free.

        `is_over` is called from time to time and says whether to stop (effort.Effort.begin). The answer is then the
        best found so far, else a refusal of the kind TOO_LONG that names what cost most. What was worked out is
        remembered, and if nodes are tried one by one, the next attempt begins with those that were not tried: a pod
        that is expensive for good reason gets its decision after several attempts.
        """
        self.effort.begin(is_over)
        name = (pod.metadata.uid or pod.key) + (" preempting" if preempting else "")
        try:
            tried = self._rounds.of(name)
            decision = self._allocate(inventory, pod, claims, barred, tried, within, preempting=preempting)
        except OverdueError:
            work, what = self.effort.heaviest()
            # A selector that takes this long is its author's fault; a large cluster is not.
            goes_on = work is Work.DEVICES and self._rounds.is_under_way(name)
            return too_long(inventory, pod, claims, work, what, goes_on=goes_on)
        self._rounds.forget(name)
        return decision

    def _allocate(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        barred: Mapping[str, str],
        tried: Callable[[int], set[str]],
        within: Names | None = None,
        *,
        preempting: bool = False,
    ) -> Allocation | NoFit | Refused | Settled:
        """`tried` returns the nodes that earlier attempts found unable to serve a combination, by its number."""
        demand = read_pod_demand(
            inventory, pod, claims, self._evaluators.matched, barred, self.effort, within, preempting=preempting
        )
        if isinstance(demand, Refused):
            return demand
        if not demand.claims:
            return Settled() if _is_somewhere(inventory, demand) else NoFit()
        refused: Refused | None = None
        is_round_over = False
        kin = None if self._evaluators.first_fit else inventory.kin(pod)
        gpus, amounts = 0, False
        for number, (combination, facts) in enumerate(self._each_combination(inventory, demand)):
            gpus, amounts = gpus or facts.question.count, amounts or bool(facts.amounts)
            answers = self._answers.to(facts.question)
            rules = partial(self._rules, inventory, demand, combination, facts, answers)
            # If amounts are asked for, nodes are ranked by what is left of GPUs.
            family = None
            if kin is not None and not facts.amounts:
                family = self._family_preference(inventory, kin, facts.question, answers)
            is_exact = self._is_exact(inventory, facts)
            walk = Walk(inventory, demand, answers, rules, self.effort, tried(number), family, is_exact=is_exact)
            best = walk.best()
            is_round_over = is_round_over or walk.is_round_over
            if best is not None:
                made = self._allocation(inventory, demand, combination, best)
                if isinstance(made, NeedsPerson):
                    return _refused(made, demand)
                census = walk.census(best)
                is_scored = best.best is not None and not self._evaluators.first_fit
                second = _if_in_time(walk.second) if is_scored else None
                runner_up, requirement = _runner_up(best, second), combination.requirement
                return replace(made, runner_up=runner_up, census=census, requirement=requirement)
            if refused is None and walk.mistake is not None:
                refused = _refused(walk.mistake, demand)
                if refused.kind is RefusalKind.SELECTOR:
                    unknown = unknown_names(inventory, combination, self.selectors, self._names)
                    refused = replace(refused, text="; ".join((refused.text, *unknown)))
            if refused is None:
                refused = selector_failure(inventory, demand, combination, answers, self.selectors, self._names)
        if is_round_over and refused is None:
            raise OverdueError  # each node was asked, but not all at one moment: start over
        return NoFit(demand.filter.is_short, gpus, amounts) if refused is None else refused

    def member(
        self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], alternative: int = 0
    ) -> Member | Refused:
        """Read a pod of a gang with the combination of alternatives of that number, or the last that it has. Refused:
        also if it does not ask for whole GPUs alone, of which nodes are known to give what they have free. Charged to
        `effort`, which the caller begins."""
        demand = read_pod_demand(inventory, pod, claims, self._evaluators.matched, effort=self.effort)
        if isinstance(demand, Refused):
            return demand
        number, (combination, facts) = list(
            enumerate(islice(self._each_combination(inventory, demand), alternative + 1))
        )[-1]
        if not demand.claims or not facts.question.count or not self._is_exact(inventory, facts) or demand.held:
            text = f"pod {pod.key}: only pods that ask for whole GPUs are decided together"
            return Refused(RefusalKind.UNSUPPORTED, text, demand.concerns_us)
        labels = {} if demand.placement is None else demand.placement.labels
        key = combination.key, shape(pod, claims, labels=labels, effort=self.effort)
        return Member(pod, demand, combination, self._answers.to(facts.question), number, key)

    def give(self, inventory: Inventory, member: Member, node: str, free: int, mask: int) -> Allocation:
        """Return the decision that gives a member these of the free GPUs of a node."""
        pool = inventory.pool(node)
        assert pool is not None
        of_kind = member.answers.of_kind(pool.kind)
        alone = of_kind.of(free).best
        best = alone if alone is not None and alone.mask == mask else of_kind.choice(free, mask)
        made = make_allocation(
            inventory.driver, NodeChoice(pool, best), member.combination, self.features, self._share_ids
        )
        return replace(made, requirement=member.combination.requirement)

    def unfit(self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], node: str) -> str | None:
        """Return why a node does not suit a pod, whatever its devices; None when it does."""
        demand = read_pod_demand(inventory, pod, claims, self._evaluators.matched, effort=self.effort)
        assert not isinstance(demand, Refused)
        return demand.filter.reason(inventory.nodes.get(node))

    def suppose(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        barred: Mapping[str, str] = MappingProxyType({}),
        is_over: Callable[[int], bool] = never,
    ) -> Allocation | NoFit | Refused | Settled:
        """Decide as allocate() would for a pod and claims that nobody has made. No later attempt begins where this one
        ends, and it fits nowhere if there is not enough time."""
        self.effort.begin(is_over)
        try:
            return self._allocate(inventory, pod, claims, barred, _tried_nothing)
        except OverdueError:
            return NoFit()

    def explain(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        is_over: Callable[[int], bool] = never,
    ) -> Unsatisfied | Refused | None:
        """Count why the pod fits on no node; None when it fits after all. Cost: one step per node.

        For a pod with alternatives the reasons are those of the most preferred combination. `is_over` as in allocate().
        """
        return ended(self.explain_in_turns(inventory, pod, claims, barred={}, pace=AtOnce(is_over)))

    def explain_in_turns(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        barred: Mapping[str, str],
        pace: Pace,
    ) -> Generator[None, None, Unsatisfied | Refused | None]:
        """Do what explain() does, and yield between turns, in which the inventory may change and decisions be made.

        A node counts once, under a reason that held when it was looked at, or not at all if it was gone by then. A pod
        that fits on a node at that moment fits after all.
        """
        self.effort.begin(pace.begin_turn())
        counts, never = ReasonCounts(), Never()
        try:
            found = self._allocate(inventory, pod, claims, barred, _tried_nothing)
            if not isinstance(found, NoFit):
                return found if isinstance(found, Refused) else None
            left = deque(inventory.nodes.names)
            while True:
                demand = read_pod_demand(inventory, pod, claims, self._evaluators.matched, barred, self.effort)
                if isinstance(demand, Refused):
                    return demand
                # Nodes count by the first alternatives; the others only show whether any node could ever serve the pod.
                each = islice(self._each_rules(inventory, demand), 1 if never.is_refuted else None)
                lacks = [LastingLacks(inventory, rules, self._answers) for rules in each]
                for name, reason in reasons_of_nodes(inventory, demand.filter, lacks, left, never):
                    if reason is None and self._fits_on(inventory, pod, claims, barred, name):
                        return None
                    if isinstance(reason, Lack):
                        counts.add(name, reason.text, lasting=reason.lasting)
                    else:
                        counts.add(name, reason or "that were not looked at")
                    if pace.turn_is_up():
                        break
                if not left:
                    rules = next(self._each_rules(inventory, demand)) if demand.claims else None
                    note = "" if rules is None else rules.note()
                    first = next(combinations(demand.claims))
                    unknown = unknown_names(inventory, first, self.selectors, self._names)
                    # What is left of shared GPUs is reported as it is now, whether that is lasting or not.
                    may_last = rules is not None and rules.has_fractions
                    return counts.unsatisfied(never.words(found.gpus), unknown, note, may_last=may_last)
                yield
                self.effort.begin(pace.begin_turn())
        except OverdueError:
            return too_long(inventory, pod, claims, *self.effort.heaviest(), goes_on=False)

    def ignored(
        self,
        inventory: Inventory,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        *,
        others: Collection[str] = (),
        is_over: Callable[[int], bool] = never,
    ) -> tuple[str, ...]:
        """Return what has no effect in the claims and the pod's containers (walk.ignored); nothing when overdue.
        `others`: the claims that other pods also name, as `namespace/name`. `is_over` as in allocate()."""
        self.effort.begin(is_over)
        try:
            return ignored_parts(inventory, pod, claims, others, self.selectors, self._names, self.features)
        except OverdueError:
            return ()

    def _fits_on(
        self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], barred: Mapping[str, str], name: str
    ) -> bool:
        found = self._allocate(inventory, pod, claims, barred, _tried_nothing, frozenset((name,)))
        return isinstance(found, Allocation | Settled)

    def questions(
        self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], *, barred: Mapping[str, str]
    ) -> tuple[NodeFilter, tuple[NodeRules, ...]] | None:
        """Return what a node is asked in a decision for a pod: the filter, and the rules of each choice of
        alternatives, of which one has to serve it. None when no node could, or nothing is left to decide.

        Charged to `effort`, which the caller begins; it and the answers may raise OverdueError.
        """
        demand = read_pod_demand(inventory, pod, claims, self._evaluators.matched, barred, self.effort)
        if isinstance(demand, Refused) or not demand.claims:
            return None
        return demand.filter, tuple(self._each_rules(inventory, demand))

    def _family_preference(
        self, inventory: Inventory, kin: Kin, question: Question, answers: QuestionAnswers
    ) -> FamilyPreference | None:
        """Return what a pod of a family prefers; None if no GPUs are chosen by their links, if siblings do not count,
        or if it is the first pod and all domains are alike to it."""
        if not question.count or not follows_siblings(question.policies):
            return None
        if not kin.siblings and kin.left is None and inventory.locations.is_empty:
            return None
        order = self.engine.order([Demand(*one) for one in zip(question.counts, question.policies, strict=True)])
        return FamilyPreference(inventory, kin, question.count, order, lambda kind: answers.of_kind(kind).present)

    def _each_rules(self, inventory: Inventory, demand: PodDemand) -> Iterator[NodeRules]:
        """Yield the rules for each choice of alternatives, the most preferred first."""
        for combination, facts in self._each_combination(inventory, demand):
            yield self._rules(inventory, demand, combination, facts, self._answers.to(facts.question))

    def _rules(
        self,
        inventory: Inventory,
        demand: PodDemand,
        combination: Combination,
        facts: CombinationFacts,
        answers: QuestionAnswers,
    ) -> NodeRules:
        is_exact = self._is_exact(inventory, facts)
        return NodeRules(inventory, demand, combination, facts, answers, self._evaluators, is_exact=is_exact)

    def _is_exact(self, inventory: Inventory, facts: CombinationFacts) -> bool:
        """Whether the answers say everything about whole GPUs."""
        return facts.exact and not self._evaluators.first_fit and not inventory.allowed_drivers

    def _each_combination(
        self, inventory: Inventory, demand: PodDemand
    ) -> Iterator[tuple[Combination, CombinationFacts]]:
        """Yield each choice of alternatives, the most preferred first."""
        for combination in self._combinations(inventory, demand):
            taints = inventory.taints_of_all
            facts = self._facts.get(
                (inventory.driver, taints, combination.key),
                partial(facts_of, inventory.driver, combination, self.selectors, taints),
            )
            yield combination, facts

    def _combinations(self, inventory: Inventory, demand: PodDemand) -> Iterator[Combination]:
        """Yield the combinations to try: at most MAX_COMBINATIONS, then the first legal one of each node, each once.

        A policy's requirement is not a rule of the API: a node whose first legal choice does not meet it gets no second
        one.
        """
        yield from islice(combinations(demand.claims), MAX_COMBINATIONS)
        if combination_count(demand.claims) <= MAX_COMBINATIONS:
            return
        alike = not inventory.allowed_drivers and not reads_identities(inventory.driver, demand.claims, self.selectors)
        first = {
            first_alternatives(inventory, name, demand.claims, self._evaluators)
            for name in states(inventory, demand, alike=alike)
        }
        for alternatives in sorted(taken for taken in first if taken is not None):
            yield combination_of(demand.claims, alternatives)

    def _allocation(
        self, inventory: Inventory, demand: PodDemand, combination: Combination, found: NodeChoice
    ) -> Allocation | NeedsPerson:
        if found.fractions is not None and found.fractions.devices is not None:
            nothing, ids = self._no_choice(inventory, found), self._share_ids
            return make_part_allocation(inventory.driver, found, combination, nothing, self.features, ids)
        if found.legal is None:
            return make_allocation(inventory.driver, found, combination, self.features, self._share_ids)
        allocations = allocation_results(*found.legal, self._share_ids)
        if isinstance(allocations, NeedsPerson):
            return allocations
        choice = self._no_choice(inventory, found) if found.best is None else found.best
        made = planned_allocation(inventory.driver, found.pool, choice, demand.claims, allocations)
        if found.fractions is not None:
            shared = frozenset(
                (one.key[0], one.demand.name) for one in combination.scored if one.demand.request.capacity
            )
            made = replace(made, shared=shared, has_joined=bool(found.fractions.joined))
        return replace(made, cut_off=found.cut_off)

    def _no_choice(self, inventory: Inventory, found: NodeChoice) -> Choice:
        """Return the placeholder of a choice if nothing was chosen by links: its score is that of no GPU at all."""
        state = inventory.state(found.pool.node)
        assert not isinstance(state, str)
        return Choice(0, (), self.engine.score(state.kind.box, state.free, 0))


T = TypeVar("T")


def _tried_nothing(_combination: int) -> set[str]:
    """Return the nodes that earlier tries found unable to serve a combination: none."""
    return set()


def _if_in_time(work: Callable[[], T | None]) -> T | None:
    """Return what is only shown to people; None when the decision is overdue."""
    try:
        return work()
    except OverdueError:
        return None


def _refused(found: NeedsPerson, demand: PodDemand) -> Refused:
    return Refused(_KIND_OF.get(found.mistake, RefusalKind.MISTAKE), str(found), demand.concerns_us)


def _is_somewhere(inventory: Inventory, demand: PodDemand) -> bool:
    """Whether there is a node on which all allocated claims can be used; it need not give anything."""
    selectors = tuple(map(read_node_selector, demand.pins))
    names = inventory.nodes.selected(selectors)
    nodes = (inventory.nodes.get(name).node for name in (inventory.nodes.names if names is None else names))
    return any(all(selector.matches(node) for selector in selectors) for node in nodes)


def _runner_up(winner: NodeChoice, other: NodeChoice | None) -> RunnerUpChoice | None:
    """Return the best choice that was not taken: on another node, or on the same one if that is better."""
    if winner.best is None:
        return None
    others = []
    if other is not None and other.best is not None:
        part = winner.best.score.first_difference(other.best.score)
        others.append(RunnerUpChoice(other.pool, other.best, part or "node_name"))
    if winner.second is not None:
        part = winner.best.score.first_difference(winner.second.score, on_one_node=True)
        others.append(RunnerUpChoice(winner.pool, winner.second, part or "ordinals"))
    # min() keeps the first of equal ones: another node says more than another set of the same node.
    return min(others, key=lambda second: second.choice.score.node_rank(), default=None)
