"""What the search has chosen so far, what that takes from the rest, and what is left for later requests.

Every step can be taken back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from dracaena.controller.allocation.legal.constraints import (
    ConstraintState,
    Values,
    as_set,
    find_attribute,
    scalar,
)
from dracaena.controller.allocation.legal.outcome import DeviceRule, Pick
from dracaena.controller.allocation.legal.problem import Alternative, Candidate, MistakeError, Problem
from dracaena.controller.allocation.legal.read.claims import Constraint, Request
from dracaena.controller.allocation.legal.read.slices import CounterId, PublishedDevice


@dataclass(frozen=True, slots=True)
class _Placed:
    """One chosen device, and what has to be given back for it."""

    alternative: Alternative
    place: int
    pick: Pick
    charged: bool
    """Whether the counters were charged for it."""


class Tentative:
    """Devices chosen for the requests of one problem. The last one chosen is the first to be taken back."""

    __slots__ = (
        "_charged",
        "_constraints",
        "_consumed",
        "_modes",
        "_placed",
        "_problem",
        "_shares",
        "_taken",
        "_used",
        "taken_places",
    )

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.taken_places = 0
        """Devices that some claim has whole, as a bit at each place."""
        self._placed: list[list[_Placed]] = [[] for _ in problem.claims]
        self._taken: dict[int, set[int]] = {}
        self._shares: dict[int, int] = {}
        self._consumed: dict[int, dict[str, int]] = {}
        self._modes: dict[int, list[str]] = {}
        self._used: dict[int, dict[CounterId, int]] = {}
        self._charged: dict[int, list[PublishedDevice]] = {}
        lists = problem.features.list_attributes
        self._constraints = [
            [ConstraintState(constraint, lists=lists) for constraint in claim.constraints] for claim in problem.claims
        ]

    def count(self, claim: int) -> int:
        """Return the number of devices that the claim has."""
        return len(self._placed[claim])

    def places_of(self, alternative: Alternative) -> frozenset[int]:
        """Return the places of the devices that the alternative has."""
        return frozenset(
            placed.place for placed in self._placed[alternative.claim] if placed.alternative is alternative
        )

    def constraints(self, claim: int) -> Sequence[ConstraintState]:
        """Return the claim's constraints over the devices that it has."""
        return self._constraints[claim]

    def picks(self, claim: int) -> tuple[Pick, ...]:
        """Return what the claim has, in the order in which it was chosen."""
        return tuple(placed.pick for placed in self._placed[claim])

    def refused_at_once(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Return the rule by which the device is taken; the cheapest question, asked first."""
        taken = self._taken.get(place, ())
        if alternative.request.admin_access:
            return DeviceRule.TAKEN if alternative.claim in taken else None
        if self._problem.held(place):
            return DeviceRule.IN_USE
        return DeviceRule.TAKEN if taken else None

    def place(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Choose the device for the alternative; return None, or the rule that forbids it with nothing changed.

        The request must select the device (`Problem.unselected_by`).
        """
        problem = self._problem
        rule = self.refused_at_once(alternative, place)
        if rule is not None:
            return rule
        if not problem.candidates[place].reachable.is_operable:
            return DeviceRule.NODE_OPERATIONS
        shared = problem.is_shareable(place)
        wanted = None
        if problem.features.consumable_capacity:
            wanted = problem.amounts(alternative, place)
            rule = problem.refused_by_capacity(place, wanted, self._consumed.get(place))
            if rule is not None:
                return rule
        mode = problem.mode(alternative, place)
        if mode is not None and any(one != mode for one in self._modes.get(place, ())):
            return DeviceRule.MODE
        if problem.is_in_another_mode(alternative, place):
            return DeviceRule.MODE
        candidate = problem.candidates[place]
        device = candidate.reachable.device
        charged = bool(device.counter_sets) and not (shared and self._shares.get(place))
        if charged:
            used = self._used.get(candidate.pool, {})
            rule = problem.refused_by_counters(place, used, self._charged.get(candidate.pool, ()))
            if rule is not None:
                return rule
            charged = not (shared and problem.cluster.books.is_shared(candidate.id))
        if problem.blocking_taint(alternative, place):
            return DeviceRule.TAINT
        if not self._constrain(alternative, place):
            return DeviceRule.CONSTRAINT
        pick = Pick(alternative.request, device, candidate.reachable.slice, shared, wanted if shared else None)
        self._record(_Placed(alternative, place, pick, charged))
        return None

    def take_back(self, claim: int) -> None:
        """Take back the last device that was chosen for the claim."""
        placed = self._placed[claim].pop()
        place = placed.place
        for state in self._constraints[claim]:
            state.remove(placed.alternative.request)
        if placed.charged:
            self._charge(placed, -1)
            self._charged[self._problem.candidates[place].pool].remove(placed.pick.device)
        if not placed.pick.shared:
            self._taken[place].discard(claim)
            if not self._taken[place]:
                self.taken_places &= ~(1 << place)
            return
        self._shares[place] -= 1
        if self._problem.mode(placed.alternative, place) is not None:
            self._modes[place].pop()  # what was placed last is taken back first
        for name, amount in (placed.pick.consumed or {}).items():
            self._consumed[place][name] -= amount.nano

    def _constrain(self, alternative: Alternative, place: int) -> bool:
        states = self._constraints[alternative.claim]
        for index, state in enumerate(states):
            applies = state.constraint.applies_to(alternative.request)
            found = self._problem.attribute(alternative, place, state.constraint.attribute) if applies else None
            if not state.add(alternative.request, found):
                for earlier in states[:index]:
                    earlier.remove(alternative.request)
                return False
        return True

    def _record(self, placed: _Placed) -> None:
        self._placed[placed.alternative.claim].append(placed)
        if placed.charged:
            self._charge(placed, 1)
            self._charged.setdefault(self._problem.candidates[placed.place].pool, []).append(placed.pick.device)
        if not placed.pick.shared:
            self._taken.setdefault(placed.place, set()).add(placed.alternative.claim)
            self.taken_places |= 1 << placed.place
            return
        self._shares[placed.place] = self._shares.get(placed.place, 0) + 1
        mode = self._problem.mode(placed.alternative, placed.place)
        if mode is not None:
            self._modes.setdefault(placed.place, []).append(mode)
        consumed = self._consumed.setdefault(placed.place, {})
        for name, amount in (placed.pick.consumed or {}).items():
            consumed[name] = consumed.get(name, 0) + amount.nano

    def _charge(self, placed: _Placed, sign: int) -> None:
        used = self._used.setdefault(self._problem.candidates[placed.place].pool, {})
        for counter, amount in placed.pick.device.consumes:
            used[counter] = used.get(counter, 0) + sign * amount


def requests_of(problem: Problem, chosen: dict[tuple[int, int], int], claim: int) -> tuple[Request, ...]:
    """Return the alternative that was taken for each request of a claim."""
    return tuple(
        alternatives[chosen.get((claim, index), 0)].request
        for index, alternatives in enumerate(problem.requests[claim])
    )


class Lookahead:
    """Whether the later requests could be served at all after a choice; for one search.

    It only checks what is necessary (enough free devices that match what is already fixed), so it never refuses a
    choice that leads to a solution. Without it, a request at the end of a long claim that only one device can serve
    would cost all combinations of the requests before it. Devices are bits of an int, at their places.
    """

    __slots__ = ("_by_value", "_could", "_matching", "_problem", "_refused", "_requests", "_whole")

    def __init__(
        self, problem: Problem, forbidden: Callable[[Alternative], int], fixed: Mapping[tuple[int, int], int]
    ) -> None:
        self._problem = problem
        self._whole = (1 << len(problem.candidates)) - 1
        self._matching: dict[tuple[str, Values | None], int] = {}
        self._by_value: dict[str, dict[tuple[str, Hashable], int]] = {}
        self._requests = [
            tuple(
                alternative
                for alternative in alternatives
                if fixed.get((claim, index), alternative.nth) == alternative.nth
            )
            for claim, requests in enumerate(problem.requests)
            for index, alternatives in enumerate(requests)
        ]
        # Both by identity of the alternative: the first rule that alone refuses a place, and the places that none
        # refuses.
        self._refused: dict[int, dict[int, DeviceRule]] = {}
        self._could: dict[int, int] = {}
        for alternatives in self._requests:
            for alternative in alternatives:
                refused = self._refused[id(alternative)] = dict(
                    self._refused_alone(alternative, forbidden(alternative))
                )
                self._could[id(alternative)] = self._whole & ~sum(1 << place for place in refused)

    def too_few_values(self) -> str:
        """Return which constraint wants more different values than there are; empty when none does.

        Devices that are distinct in an attribute each need at least one value that no other has.
        """
        for index, claim in enumerate(self._problem.claims):
            for constraint in claim.constraints:
                if constraint.distinct:
                    wanted, could = self._wanted_by(index, constraint)
                    values = self._values_of(constraint.attribute, could)
                    if wanted > len(values):
                        what = f"{wanted} devices are to differ in {constraint.attribute}"
                        return f"claim {claim.key}: {what}, of which those that it could get have {len(values)} values"
        return ""

    def _wanted_by(self, claim: int, constraint: Constraint) -> tuple[int, int]:
        """Return the smallest number of devices that a constraint can apply to, and all devices that it could apply to.
        Requests that derive the attribute are skipped: their values are not computed for devices that the search may
        never meet."""
        wanted = could = 0
        for alternatives in self._requests:
            derived = any(one.request.derives(constraint.attribute) is not None for one in alternatives)
            if alternatives[0].claim == claim and not derived:
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
                # One device may have a value of an unknown type: it differs from all others.
                found |= {(values.type, value) for value in values.values} if values is not None else {("", None)}
        return frozenset(found)

    def blocked_request(
        self, tentative: Tentative, chosen: Alternative | None, place: int, number: int
    ) -> tuple[Alternative, ...]:
        """Return the alternatives of the first request that can no longer be served; empty when there is none.

        `place` is the device number `number` of the alternative `chosen`, which `tentative` already has.
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
        """Yield each device that the alternative cannot have, with the rule that refuses it."""
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
            constraint = state.constraint
            derived = alternative.request.derives(constraint.attribute) is not None
            if state.is_fixed and constraint.applies_to(alternative.request) and not derived:
                found &= self._matches(state)
        return found

    def _free_for(self, tentative: Tentative, alternative: Alternative) -> int:
        # Admin access takes nothing from others; a conflict in its own claim is found when the device is placed.
        return self._whole if alternative.request.admin_access else self._whole & ~tentative.taken_places

    def _matches(self, state: ConstraintState) -> int:
        """Return the devices that share a value with what the constraint's devices have in common."""
        name, common = state.constraint.attribute, state.common
        found = self._matching.get((name, common))
        if found is None:
            places = self._places_with(name)
            each = () if common is None else (places.get((common.type, value), 0) for value in common.values)
            found = self._matching[name, common] = reduce(or_, each, 0)
        return found

    def _places_with(self, name: str) -> Mapping[tuple[str, Hashable], int]:
        """Return the devices that have each value of an attribute, by its type and itself: a bit at each place."""
        known = self._by_value.get(name)
        if known is None:
            known = self._by_value[name] = {}
            for candidate in self._problem.candidates:
                values = self._values(candidate, name)
                for key in () if values is None else [(values.type, value) for value in values.values]:
                    known[key] = known.get(key, 0) | 1 << candidate.place
        return known

    def _values(self, candidate: Candidate, name: str) -> Values | None:
        attribute = find_attribute(candidate.reachable.device, name)
        if attribute is None:
            return None
        return as_set(attribute) if self._problem.features.list_attributes else scalar(attribute)

    def _refused_alone(self, alternative: Alternative, forbidden: int) -> Iterator[tuple[int, DeviceRule]]:
        for place in range(len(self._problem.candidates)):
            if forbidden >> place & 1:
                yield place, DeviceRule.NOT_OFFERED
                continue
            try:
                rule = self._problem.refused_alone(alternative, place)
            except MistakeError:
                # The search reports a mistake when it meets it.
                continue
            if rule is None and self._problem.is_in_another_mode(alternative, place):
                rule = DeviceRule.MODE
            if rule is not None:
                yield place, rule
