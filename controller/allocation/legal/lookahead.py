"""Looking ahead: whether the requests that are still to come could be served at all after a choice.

It only asks what is necessary (enough devices that nobody has and that match what is fixed already), so it never
refuses a choice that leads to a solution. Without it a request that only one device can serve, at the end of a long
claim, costs all combinations of the requests before it. Devices are bits of an int, at their places.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping

from dracaena.controller.allocation.legal.constraints import (
    ConstraintState,
    Values,
    as_set,
    find_attribute,
    scalar,
)
from dracaena.controller.allocation.legal.outcome import DeviceRule
from dracaena.controller.allocation.legal.problem import Alternative, Candidate, MistakeError, Problem
from dracaena.controller.allocation.legal.read.claims import Constraint
from dracaena.controller.allocation.legal.tentative import Tentative


class Lookahead:
    """What each alternative could get, for one search."""

    __slots__ = ("_could", "_matching", "_problem", "_refused", "_requests", "_whole")

    def __init__(
        self, problem: Problem, forbids: Callable[[Alternative, int], bool], fixed: Mapping[tuple[int, int], int]
    ) -> None:
        self._problem = problem
        self._whole = (1 << len(problem.candidates)) - 1
        self._matching: dict[tuple[str, Values | None], int] = {}
        self._requests = [
            tuple(
                alternative
                for alternative in alternatives
                if fixed.get((claim, index), alternative.nth) == alternative.nth
            )
            for claim, requests in enumerate(problem.requests)
            for index, alternatives in enumerate(requests)
        ]
        # Both by identity of the alternative: the first rule that refuses a place by itself, and the places that none
        # refuses.
        self._refused: dict[int, dict[int, DeviceRule]] = {}
        self._could: dict[int, int] = {}
        for alternatives in self._requests:
            for alternative in alternatives:
                refused = self._refused[id(alternative)] = dict(self._refused_alone(alternative, forbids))
                self._could[id(alternative)] = self._whole & ~sum(1 << place for place in refused)

    def too_few_values(self) -> str:
        """Return which constraint wants more different values than there are, empty when none does.

        Devices that are distinct in an attribute need at least one value each that no other has.
        """
        for index, claim in enumerate(self._problem.claims):
            for constraint in claim.constraints:
                if constraint.distinct:
                    wanted, could = self._wanted_by(index, constraint)
                    values = self._values_of(constraint.attribute, could)
                    if wanted > len(values):
                        what = f"{wanted} devices are to differ in {constraint.attribute}"
                        return f"claim {claim.key}: {what}, which has {len(values)} values here"
        return ""

    def _wanted_by(self, claim: int, constraint: Constraint) -> tuple[int, int]:
        """Return the fewest devices that a constraint can be about, and all that it could be about."""
        wanted = could = 0
        for alternatives in self._requests:
            if alternatives[0].claim == claim:
                wanted += min(
                    alternative.wanted if constraint.applies_to(alternative.request) else 0
                    for alternative in alternatives
                )
                for alternative in alternatives:
                    if constraint.applies_to(alternative.request):
                        could |= self._could[id(alternative)]
        return wanted, could

    def _values_of(self, name: str, places: int) -> frozenset[tuple[str, Hashable]]:
        found: set[tuple[str, Hashable]] = set()
        for candidate in self._problem.candidates:
            if places >> candidate.place & 1 and find_attribute(candidate.reachable.device, name) is not None:
                values = self._values(candidate, name)
                # One device may have a value of a type that is not known: it differs from all others.
                found |= {(values.type, value) for value in values.values} if values is not None else {("", None)}
        return frozenset(found)

    def blocked_request(
        self, tentative: Tentative, chosen: Alternative | None, place: int, number: int
    ) -> tuple[Alternative, ...]:
        """Return the alternatives of the first request that can no longer be served, empty when there is none.

        `place` is the device number `number` of the alternative `chosen`, which the tentative has already.
        """
        if chosen is not None:
            left = 0 if chosen.everything is not None else chosen.wanted - number - 1
            later = self._open_for(tentative, chosen) & (self._whole << (place + 1))
            if left and later.bit_count() < left:
                return (chosen,)
        for alternatives in self._requests:
            first = alternatives[0]
            is_done = chosen is not None and (first.claim, first.index) <= (chosen.claim, chosen.index)
            if not is_done and not any(self._is_possible(tentative, alternative) for alternative in alternatives):
                return alternatives
        return ()

    def reasons(self, tentative: Tentative, alternative: Alternative) -> Iterator[tuple[int, DeviceRule]]:
        """Return why each device that the alternative cannot have is refused."""
        refused = self._refused[id(alternative)]
        open_now = self._open_for(tentative, alternative)
        free = self._free_for(tentative, alternative)
        own = tentative.places_of(alternative)
        for place in range(len(self._problem.candidates)):
            if place in refused:
                yield place, refused[place]
            elif place not in own and not open_now >> place & 1:
                yield place, DeviceRule.CONSTRAINT if free >> place & 1 else DeviceRule.TAKEN

    def _is_possible(self, tentative: Tentative, alternative: Alternative) -> bool:
        open_now = self._open_for(tentative, alternative)
        if alternative.everything is None:
            return open_now.bit_count() >= alternative.wanted
        return bool(alternative.everything) and all(open_now >> place & 1 for place in alternative.everything)

    def _open_for(self, tentative: Tentative, alternative: Alternative) -> int:
        found = self._could[id(alternative)] & self._free_for(tentative, alternative)
        for state in tentative.constraints(alternative.claim):
            if state.is_fixed and state.constraint.applies_to(alternative.request):
                found &= self._matches(state)
        return found

    def _free_for(self, tentative: Tentative, alternative: Alternative) -> int:
        # Whom admin access disturbs is asked when it comes to it.
        return self._whole if alternative.request.admin_access else self._whole & ~tentative.taken_places

    def _matches(self, state: ConstraintState) -> int:
        """Return the devices that have a value in common with those that the constraint's devices have in common."""
        name, common = state.constraint.attribute, state.common
        found = self._matching.get((name, common))
        if found is None:
            found = 0 if common is None else sum(1 << place for place in self._places_with(name, common))
            self._matching[name, common] = found
        return found

    def _places_with(self, name: str, common: Values) -> Iterator[int]:
        for candidate in self._problem.candidates:
            values = self._values(candidate, name)
            if values is not None and values.type == common.type and values.values & common.values:
                yield candidate.place

    def _values(self, candidate: Candidate, name: str) -> Values | None:
        attribute = find_attribute(candidate.reachable.device, name)
        if attribute is None:
            return None
        return as_set(attribute) if self._problem.features.list_attributes else scalar(attribute)

    def _refused_alone(
        self, alternative: Alternative, forbids: Callable[[Alternative, int], bool]
    ) -> Iterator[tuple[int, DeviceRule]]:
        for candidate in self._problem.candidates:
            if forbids(alternative, candidate.place):
                yield candidate.place, DeviceRule.NOT_PROPOSED
                continue
            try:
                rule = self._problem.refused_alone(alternative, candidate.place)
            except MistakeError:
                # The search shows a mistake when it stands in its way.
                continue
            if rule is not None:
                yield candidate.place, rule
