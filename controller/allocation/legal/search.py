"""The search: the first legal allocation of all claims in Kubernetes' own order, within a number of steps.

Depth first: claims, requests and devices in order, every choice taken back when nothing fits after it. Within a request
only later devices are tried after a device, so each set is tried once. The search keeps its own stack: claims come from
users, and a pod may have more of them than Python has frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.controller.allocation.effort import SEARCH_STEPS, Effort, Work
from dracaena.controller.allocation.legal.outcome import (
    ClaimPlan,
    DeviceRule,
    DoesNotFit,
    Outcome,
    Plan,
    RefusedDevices,
)
from dracaena.controller.allocation.legal.problem import Alternative, Candidate, MistakeError, Problem
from dracaena.controller.allocation.legal.read.claims import MAX_DEVICES
from dracaena.controller.allocation.legal.tentative import Lookahead, Tentative, requests_of

MAX_STEPS: Final = 100_000
"""Devices looked at for a pod and a node: at most two seconds, a thousand times what an ordinary pod needs."""

RequestKey = tuple[int, int]
"""Place of a claim among the claims, and of a request in it."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """Only these devices of these pools may be given to these requests."""

    pools: frozenset[PoolId]
    devices: frozenset[DeviceId]
    requests: frozenset[RequestKey] | None = None
    """None: all requests."""

    def forbidden(self, candidates: Iterable[Candidate]) -> int:
        """Return the devices that its requests must not have, as a bit at each place."""
        others = (one for one in candidates if one.id not in self.devices)
        return sum(1 << one.place for one in others if one.id.pool_id in self.pools)


def solve(
    problem: Problem,
    *,
    restrictions: Iterable[Restriction] = (),
    chosen: Mapping[RequestKey, int] | None = None,
    max_steps: int = MAX_STEPS,
    effort: Effort | None = None,
) -> Outcome:
    """Return the first legal allocation, or why there is none. The same question has the same answer.

    `restrictions` narrow the devices, `chosen` fixes the alternative of some requests by its place. Whatever the limit,
    a Plan is legal; a DoesNotFit with `cut_off` says that the limit ended the search. Cost: at most `max_steps` looks
    at a device, each O(constraints of the claim + capacities and counters of the device); charged to `effort`.
    """
    search = _Search(problem, tuple(restrictions), chosen or {}, max_steps, effort or Effort())
    try:
        return search.run()
    except MistakeError as error:
        return error.found


class _Position(NamedTuple):
    """Where the search goes on: device number `number` of one alternative, from the candidate `start` on."""

    claim: int
    request: int = 0
    nth: int | None = None
    """None: still to be chosen."""
    number: int = 0
    start: int = 0


class _Failure(NamedTuple):
    """Nothing fits from here on."""

    claim: int
    too_many: bool
    """The claim would get more devices than it can hold: other devices would not help, a smaller alternative may."""


@dataclass(slots=True)
class _Alternatives:
    """A request whose alternatives are tried in turn."""

    claim: int
    request: int
    left: list[int]
    all_too_many: bool = True


@dataclass(slots=True)
class _Devices:
    """One device of a request, for which candidates are tried in turn."""

    position: _Position
    alternative: Alternative
    next: int
    """The candidate to try next; in mode All the device's number."""
    placed: bool = False

    @property
    def claim(self) -> int:
        return self.position.claim


class _CutOffError(Exception):
    pass


@dataclass(slots=True)
class _Search:
    problem: Problem
    restrictions: tuple[Restriction, ...]
    fixed: Mapping[RequestKey, int]
    max_steps: int
    effort: Effort
    steps: int = 0
    stack: list[_Alternatives | _Devices] = field(default_factory=list)
    taken: dict[RequestKey, int] = field(default_factory=dict)
    refusals: dict[tuple[int, int, int, DeviceRule], set[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    forbidden: tuple[tuple[frozenset[RequestKey] | None, int], ...] = field(init=False)
    """For each restriction the requests that it concerns, and the devices that they must not have."""
    explained: set[int] = field(default_factory=set)
    tentative: Tentative = field(init=False)
    ahead: Lookahead = field(init=False)

    def __post_init__(self) -> None:
        candidates = self.problem.candidates
        self.forbidden = tuple((one.requests, one.forbidden(candidates)) for one in self.restrictions)
        self.tentative = Tentative(self.problem)
        self.ahead = Lookahead(self.problem, self._forbidden_for, self.fixed)

    def run(self) -> Outcome:
        if self._is_hopeless():
            return self._does_not_fit(cut_off=False)
        try:
            return self._plan() if self._find() else self._does_not_fit(cut_off=False)
        except _CutOffError:
            return self._does_not_fit(cut_off=True)

    def _is_hopeless(self) -> bool:
        """Return whether it is clear before the first device that not everything can be served."""
        few = self.ahead.too_few_values()
        if few:
            self.notes.append(few)
        return bool(few) or self._is_blocked()

    def _is_blocked(self, alternative: Alternative | None = None, place: int = -1, number: int = -1) -> bool:
        """Return whether a later request can no longer be served, and note why the first time."""
        blocked = self.ahead.blocked_request(self.tentative, alternative, place, number)
        for one in blocked:
            if id(one) not in self.explained:
                self.explained.add(id(one))
                if one.blocked and one.blocked not in self.notes:
                    self.notes.append(one.blocked)
                for refused, rule in self.ahead.reasons(self.tentative, one):
                    self._note(one, refused, rule)
        return bool(blocked)

    def _note(self, alternative: Alternative, place: int, rule: DeviceRule) -> None:
        self.refusals.setdefault((alternative.claim, alternative.index, alternative.nth, rule), set()).add(place)

    def _find(self) -> bool:
        """Walk until everything is placed (True) or nothing is left to try (False)."""
        going: _Position | _Failure = _Position(0)
        while True:
            if isinstance(going, _Position):
                opened = self._open(going)
                if opened is None:
                    return True
                if isinstance(opened, _Failure):
                    going = opened
                    continue
                self.stack.append(opened)
                going = self._advance(opened)
            elif not self.stack:
                return False
            else:
                going = self._retreat(going)

    def _open(self, position: _Position) -> _Alternatives | _Devices | _Failure | None:
        """Return the next choice to make, an obvious failure, or None when everything is placed."""
        requests = self.problem.requests
        while True:
            self._step()
            claim = position.claim
            if claim >= len(requests):
                return None
            if position.request >= len(requests[claim]):
                position = _Position(claim + 1)
                continue
            alternatives = requests[claim][position.request]
            if position.nth is None:
                key = (claim, position.request)
                left = [self.fixed[key]] if key in self.fixed else list(range(len(alternatives)))
                return _Alternatives(claim, position.request, left)
            alternative = alternatives[position.nth]
            if alternative.everything is not None and not alternative.everything:
                if alternative.blocked and alternative.blocked not in self.notes:
                    self.notes.append(alternative.blocked)
                return _Failure(claim, too_many=False)
            if position.number >= alternative.wanted:
                position = _Position(claim, position.request + 1)
                continue
            if self.tentative.count(claim) + alternative.wanted - position.number > MAX_DEVICES:
                return _Failure(claim, too_many=True)
            return _Devices(
                position, alternative, position.number if alternative.everything is not None else position.start
            )

    def _retreat(self, failure: _Failure) -> _Position | _Failure:
        """Take back the last choice and make another one, or fail before it."""
        frame = self.stack[-1]
        # Another claim has its own limit: "too many" there only means "no" here.
        too_many = failure.too_many and failure.claim == frame.claim
        if isinstance(frame, _Alternatives):
            frame.all_too_many = frame.all_too_many and too_many
            return self._advance(frame)
        if frame.placed:
            self.tentative.take_back(frame.claim)
            frame.placed = False
        if too_many or frame.alternative.everything is not None:
            self.stack.pop()
            return _Failure(frame.claim, too_many)
        return self._advance(frame)

    def _advance(self, frame: _Alternatives | _Devices) -> _Position | _Failure:
        """Make the next choice of the top frame, or drop the frame."""
        if isinstance(frame, _Alternatives):
            if not frame.left:
                self.stack.pop()
                return _Failure(frame.claim, frame.all_too_many)
            nth = frame.left.pop(0)
            self.taken[frame.claim, frame.request] = nth
            return _Position(frame.claim, frame.request, nth)
        found = self._next_device(frame)
        if found is None:
            self.stack.pop()
            return _Failure(frame.claim, too_many=False)
        frame.placed = True
        return frame.position._replace(number=frame.position.number + 1, start=found + 1)

    def _next_device(self, frame: _Devices) -> int | None:
        """Place the next device that will do, and return its place."""
        if frame.alternative.everything is not None:
            place = frame.alternative.everything[frame.next]
            return place if self._try(frame, place) else None
        while frame.next < len(self.problem.candidates):
            place = frame.next
            frame.next += 1
            if self._try(frame, place):
                return place
        return None

    def _try(self, frame: _Devices, place: int) -> bool:
        """Place the device if all later requests remain possible, and return True; otherwise change nothing."""
        self._step()
        alternative = frame.alternative
        rule = self._refused_by(alternative, place)
        if rule is not None:
            self._note(alternative, place, rule)
            return False
        if self._is_blocked(alternative, place, frame.position.number):
            self.tentative.take_back(alternative.claim)
            return False
        return True

    def _refused_by(self, alternative: Alternative, place: int) -> DeviceRule | None:
        if self._forbidden_for(alternative) >> place & 1:
            return DeviceRule.NOT_OFFERED
        rule = self.tentative.refused_at_once(alternative, place)
        if rule is None and alternative.everything is None:
            rule = self.problem.unselected_by(alternative, place)
        return rule if rule is not None else self.tentative.place(alternative, place)

    def _forbidden_for(self, alternative: Alternative) -> int:
        """Return the devices that the restrictions keep from a request, as a bit at each place."""
        mask = 0
        for requests, forbidden in self.forbidden:
            if requests is None or alternative.key in requests:
                mask |= forbidden
        return mask

    def _step(self) -> None:
        self.effort.charge(SEARCH_STEPS, Work.SEARCH)
        self.steps += 1
        if self.steps > self.max_steps:
            raise _CutOffError

    def _plan(self) -> Plan:
        claims = tuple(
            ClaimPlan(claim, requests_of(self.problem, self.taken, index), self.tentative.picks(index))
            for index, claim in enumerate(self.problem.claims)
        )
        return Plan(self.problem.node, claims, self.steps)

    def _does_not_fit(self, *, cut_off: bool) -> DoesNotFit:
        order = {rule: place for place, rule in enumerate(DeviceRule)}
        keys = sorted(self.refusals, key=lambda key: (*key[:3], order[key[3]]))
        return DoesNotFit(
            reasons=tuple(self._reason(key) for key in keys),
            pools=self.problem.pool_problems(),
            note="; ".join(self.notes),
            cut_off=cut_off,
            steps=min(self.steps, self.max_steps),
        )

    def _reason(self, key: tuple[int, int, int, DeviceRule]) -> RefusedDevices:
        claim, index, nth, rule = key
        alternative = self.problem.requests[claim][index][nth]
        return RefusedDevices(self.problem.claims[claim].key, alternative.request.name, rule, len(self.refusals[key]))
