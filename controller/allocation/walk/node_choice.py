"""Topology and semantics together, on one node: the best of all legal allocations of a pod's claims.

The rules (legal) say what is legal, the engine (choices) says which set of GPUs is best. Sets are proposed best first,
and the first that the rules can complete wins, so no rule is in two places. docs/design/allocator.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from heapq import merge
from itertools import islice
from operator import or_
from typing import Final, TypeVar

from dracaena.api.config.v1alpha1 import TopologyPolicy
from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.legal.constraints import find_attribute, scalar
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Outcome, Plan
from dracaena.controller.allocation.legal.problem import Alternative, Problem, pose
from dracaena.controller.allocation.legal.search import RequestKey, Restriction, solve
from dracaena.controller.allocation.score.box import Box, make_rule, ordinals_of, rule_words
from dracaena.controller.allocation.score.choices import NO_PARTITION, Choice, Demand, Engine

MAX_DEALINGS: Final = 64
"""Ways to divide one set among the requests that are tried before the next set: all of 6 GPUs in twos."""

MAX_VALUES: Final = 64
"""Combinations of values of matchAttribute that get their own proposals; beyond that, the rules sort sets out."""

MANY_DEVICES: Final = 20
"""More devices than a node has GPUs. The rules are then asked about the best place, with its devices alone, before they
look for a legal allocation among all: one GPU that is cut on demand is 26 devices."""

PROPOSAL_STEPS: Final = 10
"""Steps of the search that one proposal counts at least: scoring a set takes about as long as ten looks at a device."""


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The GPUs of a node that are chosen by their links."""

    box: Box
    devices: tuple[DeviceId | None, ...]
    """By ordinal; None: no such GPU."""
    free: int
    """Mask of the GPUs that may be given, and that count when damage is measured."""
    held: int = 0
    """Mask of the GPUs that the pod already holds."""
    bases: Mapping[int, int] = field(default_factory=dict)
    """The GPUs among these that claims take whatever is chosen (mode All), by the places of the claims."""

    def mask(self, devices: Sequence[DeviceId] | frozenset[DeviceId]) -> int:
        """Return those of `devices` that are among these."""
        wanted = frozenset(devices)
        return sum(1 << ordinal for ordinal, device in enumerate(self.devices) if device in wanted)


@dataclass(frozen=True, slots=True)
class NodeQuestion:
    """What a node is asked: one alternative for each request."""

    chosen: Mapping[RequestKey, int]
    policies: Mapping[RequestKey, TopologyPolicy]
    """The policy of every request; its requirements hold however its GPUs are chosen."""
    base: tuple[Restriction, ...] = ()
    """Devices that may be given at all."""
    max_steps: int = 100_000
    first_fit: bool = False
    """Take the first legal set in Kubernetes' order instead of the best."""
    effort: Effort | None = None
    """What the search is charged to."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A legal allocation, with the GPUs that were chosen by their links."""

    plan: Plan
    choice: Choice | None
    """None if nothing was chosen by links: it is then the first legal allocation."""
    cut_off: bool = False
    """Whether a better one may exist that was not looked at."""


def choose(
    problem: Problem, gpus: NodeGpus | None, engine: Engine, question: NodeQuestion
) -> Chosen | DoesNotFit | NeedsPerson:
    """Return the best legal allocation for these alternatives, or why there is none. Same question, same answer.

    Never worse than the first fit, and equal to it if nothing is chosen by links. Cost: at most `question.max_steps`
    steps of the search, and a tenth as many scored sets.
    """
    attempt = _Attempt(problem, gpus, engine, question)
    return attempt.run()


P = TypeVar("P")


def choose_place(
    problem: Problem,
    gpus: NodeGpus,
    engine: Engine,
    question: NodeQuestion,
    places: Iterator[P],
    restrict: Callable[[P], tuple[Restriction, ...]],
) -> tuple[P | None, tuple[Problem, Plan]] | DoesNotFit | NeedsPerson | None:
    """Return the first of some places, worked out elsewhere, that the rules can complete. If they complete none, it is
    the first legal allocation, without a place, or None if that is not what the policies demand. Same question, same
    answer. `restrict` returns what the rules may give for a place."""
    return _Attempt(problem, gpus, engine, question).run_places(places, restrict)


def eligible_gpus(problem: Problem, gpus: NodeGpus, question: NodeQuestion) -> tuple[int, ...]:
    """Return the GPUs that no rule about a single GPU keeps from each request whose GPUs are chosen."""
    return tuple(gpus.mask(problem.eligible(one)) for one in chosen_by_links(problem, question))


def agreeing_gpus(
    problem: Problem, gpus: NodeGpus, engine: Engine, question: NodeQuestion
) -> tuple[tuple[int, ...], ...]:
    """Return the same for each combination of values that requests with matchAttribute may agree on. There is one if
    none has to agree, or no group of GPUs is large enough."""
    eligible = eligible_gpus(problem, gpus, question)
    scored = list(zip(chosen_by_links(problem, question), eligible, strict=True))
    return tuple(_Attempt(problem, gpus, engine, question).agreeing(scored)) or (eligible,)


def alternatives_of(problem: Problem, question: NodeQuestion) -> Iterator[Alternative]:
    """Yield the alternative that is taken for each request, in order."""
    for claim, requests in enumerate(problem.requests):
        for index, alternatives in enumerate(requests):
            yield alternatives[question.chosen.get((claim, index), 0)]


def chosen_by_links(problem: Problem, question: NodeQuestion) -> Iterator[Alternative]:
    """Yield the alternatives whose GPUs are chosen, in order."""
    for alternative in alternatives_of(problem, question):
        if alternative.everything is None and not alternative.request.admin_access:
            yield alternative


class _Attempt:
    def __init__(self, problem: Problem, gpus: NodeGpus | None, engine: Engine, question: NodeQuestion) -> None:
        self.problem, self.gpus, self.engine, self.question = problem, gpus, engine, question
        self.steps = 0

    def run_places(
        self, places: Iterator[P], restrict: Callable[[P], tuple[Restriction, ...]]
    ) -> tuple[P | None, tuple[Problem, Plan]] | DoesNotFit | NeedsPerson | None:
        whole = self.problem
        has_many = len(whole.candidates) > MANY_DEVICES
        first = None if has_many else self._solve(())
        if isinstance(first, DoesNotFit | NeedsPerson):
            return first
        for place in places:
            if self.steps >= self.question.max_steps:
                return DoesNotFit(note="no place that the rules allow was found", cut_off=True, steps=self.steps)
            self.steps += PROPOSAL_STEPS
            restrictions = restrict(place)
            self.problem = _narrowed(whole, restrictions) if has_many else whole
            plan = self._solve(restrictions)
            if isinstance(plan, Plan):
                return place, (self.problem, plan)
        self.problem = whole
        first = first or self._solve(())
        if isinstance(first, Plan):
            return (None, (whole, first)) if self._keeps_policies(first) else None
        return first

    def run(self) -> Chosen | DoesNotFit | NeedsPerson:
        first = self._solve(())
        if not isinstance(first, Plan):
            return first
        self._set_aside()
        scored = self._scored()
        keeps = self._keeps_policies(first)
        if self.question.first_fit and keeps:
            return Chosen(first, self._choice_of(first))
        if self.gpus is not None and scored:
            for choice, parts in self._proposals(scored):
                if self.steps >= self.question.max_steps:
                    return self._cut_off(first, keeps=keeps)
                self.steps += PROPOSAL_STEPS
                plan = self._solve(self._restrictions(scored, parts))
                if isinstance(plan, Plan):
                    return Chosen(plan, self._taken(choice, self._all_parts(scored, parts)))
        if keeps:
            return Chosen(first, self._choice_of(first))
        return self._against_policies()

    def _taken(self, choice: Choice, parts: tuple[int, ...]) -> Choice:
        """Return a choice with the parts of all requests, as the rules allow it to be divided."""
        assert self.gpus is not None
        claims = self._claims(parts)
        if len(claims) < 2:
            return Choice(choice.mask, parts, choice.score, choice.held, choice.claims)
        gpus, scored = self.gpus, chosen_by_links(self.problem, self.question)
        demands = tuple(Demand(0, self.question.policies[alternative.key]) for alternative in scored)
        score = self.engine.score(gpus.box, gpus.free, choice.mask, demands, gpus.held, claims)
        return Choice(choice.mask, parts, score, choice.held, claims)

    def _set_aside(self) -> None:
        """Treat the GPUs of requests in mode All as held: there is nothing to choose, and the pod's set has them."""
        if self.gpus is None:
            return
        bases: dict[int, int] = {}
        for alternative in self._alternatives():
            if alternative.everything is not None and not alternative.request.admin_access:
                meant = [self.problem.candidates[place].id for place in alternative.everything]
                taken = self.gpus.mask(meant) & self.gpus.free
                bases[alternative.claim] = bases.get(alternative.claim, 0) | taken
        mask = reduce(or_, bases.values(), 0)
        self.gpus = replace(self.gpus, free=self.gpus.free & ~mask, held=self.gpus.held | mask, bases=bases)

    def _solve(self, restrictions: tuple[Restriction, ...]) -> Outcome:
        left = max(0, self.question.max_steps - self.steps)
        found = solve(
            self.problem,
            restrictions=(*self.question.base, *restrictions),
            chosen=self.question.chosen,
            max_steps=left,
            effort=self.question.effort,
        )
        if not isinstance(found, NeedsPerson):
            self.steps += found.steps
        return found

    def _cut_off(self, first: Plan, *, keeps: bool) -> Chosen | DoesNotFit:
        if keeps:
            return Chosen(first, self._choice_of(first), cut_off=True)
        return DoesNotFit(note="no set that meets the topology policy was found", cut_off=True, steps=self.steps)

    def _against_policies(self) -> DoesNotFit:
        words = sorted({rule_words(policy) for policy in self.question.policies.values()} - {""})
        note = f"free GPUs do not meet {'; '.join(words)}" if words else NO_PARTITION.removeprefix("whose ")
        return DoesNotFit(note=note, steps=self.steps)

    def _alternatives(self) -> Iterator[Alternative]:
        yield from alternatives_of(self.problem, self.question)

    def _scored(self) -> list[tuple[Alternative, int]]:
        """Return the scored whose devices are chosen by links, each with the GPUs that it may have."""
        if self.gpus is None:
            return []
        found = []
        for alternative in chosen_by_links(self.problem, self.question):
            mask = self.gpus.mask(self.problem.eligible(alternative)) & self.gpus.free
            if mask.bit_count() >= alternative.wanted:
                found.append((alternative, mask))
        return found

    def _demands(self, scored: Sequence[tuple[Alternative, int]], masks: Sequence[int]) -> tuple[Demand, ...]:
        assert self.gpus is not None
        return tuple(
            Demand(
                alternative.wanted,
                self.question.policies[alternative.key],
                None if mask == self.gpus.free else mask,
                *self._claim_of(alternative),
            )
            for (alternative, _), mask in zip(scored, masks, strict=True)
        )

    def _claim_of(self, alternative: Alternative) -> tuple[int, int]:
        """Return a claim and what it takes whatever is chosen, if that matters (Demand.claim)."""
        assert self.gpus is not None
        if not self.gpus.box.partitions:
            return 0, 0
        return alternative.claim, self.gpus.bases.get(alternative.claim, 0)

    def _claims(self, parts: Sequence[int]) -> tuple[int, ...]:
        """Return the GPUs of each claim that has any, from those of each request; empty if it does not matter."""
        assert self.gpus is not None
        if not self.gpus.box.partitions:
            return ()
        claims = dict(self.gpus.bases)
        for alternative, part in zip(self._alternatives(), parts, strict=True):
            claims[alternative.claim] = claims.get(alternative.claim, 0) | part
        return tuple(gpus for _, gpus in sorted(claims.items()) if gpus)

    def _proposals(self, scored: Sequence[tuple[Alternative, int]]) -> Iterator[tuple[Choice, tuple[int, ...]]]:
        """Yield sets of GPUs with the part of each alternative, best first; each set first divided in the best way."""
        gpus = self.gpus
        assert gpus is not None
        options = self.agreeing(scored)

        def of(masks: tuple[int, ...]) -> Iterator[tuple[Choice, tuple[Demand, ...]]]:
            demands = self._demands(scored, masks)
            for choice in self.engine.choices(gpus.box, gpus.free, demands, gpus.held):
                yield choice, demands

        ranked = merge(*map(of, options), key=lambda one: (one[0].score.rank(), ordinals_of(one[0].mask)))
        for choice, demands in ranked:
            yield choice, choice.parts
            if len(scored) > 1:
                dealt = self.engine.splits(gpus.box, gpus.free, choice.mask, demands)
                for parts in islice(dealt, MAX_DEALINGS):
                    if parts != choice.parts:
                        yield choice, parts

    def agreeing(self, scored: Sequence[tuple[Alternative, int]]) -> list[tuple[int, ...]]:
        """Return the masks of the scored alternatives, reduced to devices of one value for each way to choose the
        values to agree on."""
        options = [tuple(mask for _, mask in scored)]
        if self.problem.features.list_attributes:
            return options  # several values of one device may agree; the rules sort that out
        for claim, entry in enumerate(self.problem.claims):
            for constraint in entry.constraints:
                places = [
                    place
                    for place, (alternative, _) in enumerate(scored)
                    if alternative.claim == claim and constraint.applies_to(alternative.request)
                ]
                derived = any(scored[place][0].request.derives(constraint.attribute) is not None for place in places)
                if constraint.distinct or derived or not places:
                    continue
                cut = [
                    masks
                    for option in options
                    for group in self._groups(constraint.attribute)
                    for masks in [tuple(m & group if i in places else m for i, m in enumerate(option))]
                    if all(masks[place].bit_count() >= scored[place][0].wanted for place in places)
                ]
                if len(cut) > MAX_VALUES:
                    return options
                options = cut
        return options

    def _groups(self, attribute: str) -> list[int]:
        """Return the GPUs with each value of an attribute."""
        assert self.gpus is not None
        by_id = {candidate.id: candidate.reachable.device for candidate in self.problem.candidates}
        masks: dict[object, int] = {}
        for ordinal, device in enumerate(self.gpus.devices):
            known = by_id.get(device) if device is not None else None
            found = find_attribute(known, attribute) if known is not None else None
            value = scalar(found) if found is not None else None
            if value is not None:
                masks[value] = masks.get(value, 0) | 1 << ordinal
        return list(masks.values())

    def _restrictions(self, scored: Sequence[tuple[Alternative, int]], parts: Sequence[int]) -> tuple[Restriction, ...]:
        """Return what restricts each alternative to its part, and the other requests to devices outside the set."""
        assert self.gpus is not None
        every = frozenset(candidate.id for candidate in self.problem.candidates)
        pools = frozenset(device.pool_id for device in every)
        return tuple(
            Restriction(pools, self._ids(part), frozenset({alternative.key}))
            for (alternative, _), part in zip(scored, parts, strict=True)
            if part
        )

    def _ids(self, mask: int) -> frozenset[DeviceId]:
        assert self.gpus is not None
        return frozenset(
            device for ordinal in ordinals_of(mask) for device in [self.gpus.devices[ordinal]] if device is not None
        )

    def _all_parts(self, scored: Sequence[tuple[Alternative, int]], parts: Sequence[int]) -> tuple[int, ...]:
        """Return one mask per request of the pod, 0 for those that are not chosen by links."""
        of_request = {alternative.key: part for (alternative, _), part in zip(scored, parts, strict=True)}
        return tuple(of_request.get(alternative.key, 0) for alternative in self._alternatives())

    def _parts_of(self, plan: Plan) -> tuple[int, ...]:
        """Return the GPUs that each request gets in a plan; those for admin access do not count."""
        if self.gpus is None:
            return tuple(0 for _ in self._alternatives())
        parts = []
        for alternative in self._alternatives():
            picks = plan.claims[alternative.claim].picks
            ids = [
                pick.device.id
                for pick in picks
                if pick.request is alternative.request and not alternative.request.admin_access
            ]
            parts.append(self.gpus.mask(ids))
        return tuple(parts)

    def _choice_of(self, plan: Plan) -> Choice | None:
        """Return the GPUs of a plan that was not proposed, with their score; None if none of them is scored."""
        if self.gpus is None:
            return None
        parts = self._parts_of(plan)
        aside = self.gpus.held
        parts = tuple(part & ~aside for part in parts)
        together = 0
        for part in parts:
            together |= part
        if not (together | aside) or together & ~self.gpus.free:
            return None
        demands = tuple(
            Demand(part.bit_count(), self.question.policies[alternative.key])
            for alternative, part in zip(self._alternatives(), parts, strict=True)
        )
        claims = self._claims(parts)
        score = self.engine.score(self.gpus.box, self.gpus.free, together, demands, self.gpus.held, claims)
        return Choice(together, parts, score, self.gpus.held, claims)

    def _keeps_policies(self, plan: Plan) -> bool:
        """Return whether the GPUs of each request are what its policy demands."""
        if self.gpus is None:
            return True
        scored, parts = tuple(self._alternatives()), self._parts_of(plan)
        policies = [self.question.policies[alternative.key] for alternative in scored]
        table = self.engine.table(self.gpus.box, tuple(Demand(0, policy) for policy in policies))
        claims: dict[int, int] = {}
        for alternative, part in zip(scored, parts, strict=True):
            claims[alternative.claim] = claims.get(alternative.claim, 0) | part
        every = (1 << self.gpus.box.gpu_count) - 1
        return all(map(self.gpus.box.can_have, claims.values())) and all(
            make_rule(table.linked(claims[alternative.claim]), policy, every).allows(part)
            for alternative, policy, part in zip(scored, policies, parts, strict=True)
        )


def _narrowed(problem: Problem, restrictions: Sequence[Restriction]) -> Problem:
    """Return the question about only the proposed devices, if nothing else is asked for: the rules look at each."""
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
    return posed if isinstance(posed, Problem) else problem
