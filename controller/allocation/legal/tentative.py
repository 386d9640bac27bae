"""What the search has chosen so far, and what that takes from the rest. Every step can be taken back exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dracaena.controller.allocation.legal.constraints import ConstraintState
from dracaena.controller.allocation.legal.outcome import DeviceRule, Pick
from dracaena.controller.allocation.legal.problem import Alternative, Problem
from dracaena.controller.allocation.legal.read.claims import Request
from dracaena.controller.allocation.legal.read.slices import CounterId


@dataclass(frozen=True, slots=True)
class _Placed:
    """One chosen device, and what has to be given back for it."""

    alternative: Alternative
    place: int
    pick: Pick
    charged: bool
    """Whether it was the one to pay for the counters."""


class Tentative:
    """Devices chosen for the requests of one problem. The last one chosen is the first to be taken back."""

    __slots__ = ("_constraints", "_consumed", "_placed", "_problem", "_shares", "_taken", "_used", "taken_places")

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.taken_places = 0
        """Devices that some claim has whole: a bit at each place."""
        self._placed: list[list[_Placed]] = [[] for _ in problem.claims]
        self._taken: dict[int, set[int]] = {}
        self._shares: dict[int, int] = {}
        self._consumed: dict[int, dict[str, int]] = {}
        self._used: dict[int, dict[CounterId, int]] = {}
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
        """Return the constraints of the claim over what it has."""
        return self._constraints[claim]

    def picks(self, claim: int) -> tuple[Pick, ...]:
        """Return what the claim has, in the order in which it was chosen."""
        return tuple(placed.pick for placed in self._placed[claim])

    def refused_at_once(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Return the rule by which the device is in somebody's hands; the cheapest question, and asked first."""
        taken = self._taken.get(place, ())
        if alternative.request.admin_access:
            return DeviceRule.TAKEN if alternative.claim in taken else None
        if self._problem.held(place):
            return DeviceRule.IN_USE
        return DeviceRule.TAKEN if taken else None

    def place(self, alternative: Alternative, place: int) -> DeviceRule | None:
        """Choose the device for the alternative; return None, or the rule that forbids it with nothing changed.

        The device must be what the request means (`Problem.unselected_by`).
        """
        problem = self._problem
        rule = self.refused_at_once(alternative, place)
        if rule is not None:
            return rule
        shared = problem.is_shareable(place)
        wanted = None
        if problem.features.consumable_capacity:
            wanted = problem.amounts(alternative, place)
            rule = problem.refused_by_capacity(place, wanted, self._consumed.get(place))
            if rule is not None:
                return rule
        candidate = problem.candidates[place]
        device = candidate.reachable.device
        charged = bool(device.counter_sets) and not (shared and self._shares.get(place))
        if charged:
            rule = problem.refused_by_counters(place, self._used.get(candidate.pool, {}))
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
        if not placed.pick.shared:
            self._taken[place].discard(claim)
            if not self._taken[place]:
                self.taken_places &= ~(1 << place)
            return
        self._shares[place] -= 1
        for name, amount in (placed.pick.consumed or {}).items():
            self._consumed[place][name] -= amount.nano

    def _constrain(self, alternative: Alternative, place: int) -> bool:
        device = self._problem.candidates[place].reachable.device
        states = self._constraints[alternative.claim]
        for index, state in enumerate(states):
            if not state.add(alternative.request, device):
                for earlier in states[:index]:
                    earlier.remove(alternative.request)
                return False
        return True

    def _record(self, placed: _Placed) -> None:
        self._placed[placed.alternative.claim].append(placed)
        if placed.charged:
            self._charge(placed, 1)
        if not placed.pick.shared:
            self._taken.setdefault(placed.place, set()).add(placed.alternative.claim)
            self.taken_places |= 1 << placed.place
            return
        self._shares[placed.place] = self._shares.get(placed.place, 0) + 1
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
