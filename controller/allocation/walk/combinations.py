"""The combinations of a pod's alternatives, one for each request, in order of preference.

Preference counts before score: the first combination that any node can serve wins, and only then the best set of
devices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Final

from dracaena import cel
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.search import RequestKey
from dracaena.controller.allocation.request.demands import ClaimDemand, RequestDemand
from dracaena.controller.allocation.state.device_kind import is_identity, reads_identity
from dracaena.controller.allocation.walk.answers import Match, Question
from dracaena.controller.allocation.walk.eligibility import Eligibility

MAX_COMBINATIONS: Final = 64
"""Combinations that are tried: those of two requests with all eight alternatives that the API allows. Of further ones
only those that come first on some node are tried."""

MAX_MATCHES: Final = 2
"""Constraints whose values are gone through together for a kind of node: 8 × 8 look-ups for the usual 8 GPUs."""


@dataclass(frozen=True, slots=True)
class ChosenRequest:
    """One request with the alternative that is taken."""

    key: RequestKey
    alternative: int
    demand: RequestDemand

    @property
    def is_scored(self) -> bool:
        """Whether devices are chosen by their links: false for allocationMode All and for adminAccess."""
        return not self.demand.request.all_devices and not self.demand.request.admin_access

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class Combination:
    """One alternative for each request of all claims of a pod."""

    claims: tuple[ClaimDemand, ...]
    requests: tuple[ChosenRequest, ...]
    """In the order of claims and requests."""

    @property
    def chosen(self) -> Mapping[RequestKey, int]:
        """The alternatives by their places."""
        return {chosen.key: chosen.alternative for chosen in self.requests}

    @property
    def key(self) -> Hashable:
        """What is asked for, whatever the claims are called: equal for claims with equal specs."""
        return tuple(claim.read for claim in self.claims), tuple(chosen.alternative for chosen in self.requests)

    def of_claim(self, claim: int) -> tuple[ChosenRequest, ...]:
        """Return the requests of one claim, in order."""
        return tuple(chosen for chosen in self.requests if chosen.key[0] == claim)

    @property
    def scored(self) -> tuple[ChosenRequest, ...]:
        """The requests whose devices are chosen by their links."""
        return tuple(chosen for chosen in self.requests if chosen.is_scored)


@dataclass(frozen=True, slots=True)
class CombinationFacts:
    """What can be said of a combination without a look at any node; the same for all of one key."""

    question: Question
    """About the scored requests. Where not `exact`, its answer is at least as good as what a node really gives."""
    exact: bool
    """Whether the answer to the question is all there is to know about a node that has nothing but whole GPUs."""
    identity: bool
    """Whether equal nodes may give different answers."""
    apart: tuple[tuple[str, ...], ...] = ()
    """Of each scored request the selectors that read an identity: they can be asked of a node's devices only."""

    has_all: bool = False
    """Whether some request takes all devices that it matches."""


def combinations(claims: Sequence[ClaimDemand]) -> Iterator[Combination]:
    """Yield the combinations, the most preferred first: earlier claims and requests count before later ones."""
    every = [
        [ChosenRequest((claim, index), place, demand) for place, demand in enumerate(alternatives)]
        for claim, entry in enumerate(claims)
        for index, alternatives in enumerate(entry.requests)
    ]
    for requests in product(*every):
        yield Combination(tuple(claims), requests)


def combination_of(claims: Sequence[ClaimDemand], alternatives: Sequence[int]) -> Combination:
    """Return the combination of these alternatives, by their places, in the order of claims and requests."""
    keys = [(claim, index) for claim, entry in enumerate(claims) for index in range(len(entry.requests))]
    return Combination(
        tuple(claims),
        tuple(
            ChosenRequest(key, place, claims[key[0]].requests[key[1]][place])
            for key, place in zip(keys, alternatives, strict=True)
        ),
    )


def combination_count(claims: Sequence[ClaimDemand]) -> int:
    """Return the number of combinations()."""
    return prod(len(alternatives) for entry in claims for alternatives in entry.requests)


def facts_of(driver: str, combination: Combination, selectors: CelSelectors) -> CombinationFacts:
    """Work out what can be asked once for all nodes of a kind."""
    scored = combination.scored
    places = {chosen: place for place, chosen in enumerate(scored)}
    matches = []
    identity = False
    exact = len(scored) == len(combination.requests)
    for index, claim in enumerate(combination.claims):
        for constraint in claim.spec.constraints:
            concerned = [
                chosen for chosen in combination.of_claim(index) if constraint.applies_to(chosen.demand.request)
            ]
            if not concerned:
                continue
            if is_identity(driver, constraint.attribute):
                identity = True
            elif all(chosen.is_scored for chosen in concerned) and (
                not constraint.distinct or len(concerned) == len(combination.requests)
            ):
                concerns = tuple(places[chosen] for chosen in concerned)
                matches.append(Match(constraint.attribute, concerns, distinct=constraint.distinct))
                continue
            exact = False
    kept, apart = [], []
    for chosen in scored:
        expressions = (*chosen.demand.device_class.selectors, *chosen.demand.request.selectors)
        unreadable = tuple(e for e in expressions if reads_identity(driver, _footprint(selectors, e)))
        identity = identity or bool(unreadable)
        apart.append(unreadable)
        # The amounts that are wanted are rules about one device, which the general path asks.
        exact = exact and chosen.demand.request.capacity is None
        kept.append(tuple(e for e in expressions if e not in unreadable))
    exact = exact and not identity and len(matches) <= MAX_MATCHES
    question = Question(
        counts=tuple(chosen.demand.count for chosen in scored),
        policies=tuple(chosen.demand.policy for chosen in scored),
        eligibility=Eligibility(
            tuple(chosen.demand.tolerations for chosen in scored), tuple(kept) if any(kept) else ()
        ),
        matches=tuple(matches[:MAX_MATCHES]),
    )
    requests = (chosen.demand.request for chosen in combination.requests)
    has_all = any(request.all_devices and not request.admin_access for request in requests)
    return CombinationFacts(question, exact, identity, tuple(apart), has_all)


def reads_identities(driver: str, claims: Sequence[ClaimDemand], selectors: CelSelectors) -> bool:
    """Return whether equal nodes may give different answers to some alternative of the claims."""
    expressions = {
        expression
        for claim in claims
        for entry in claim.requests
        for demand in entry
        for expression in (*demand.device_class.selectors, *demand.request.selectors)
    }
    constrained = (constraint.attribute for claim in claims for constraint in claim.spec.constraints)
    return any(is_identity(driver, attribute) for attribute in constrained) or any(
        reads_identity(driver, _footprint(selectors, expression)) for expression in expressions
    )


def _footprint(selectors: CelSelectors, expression: str) -> cel.Footprint:
    """Return what an expression that compiles can read."""
    found = selectors.footprint(expression)
    assert isinstance(found, cel.Footprint), "expressions were compiled when the claims were read"
    return found
