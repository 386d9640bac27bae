"""What kube-scheduler answers: the reference mode of the cases.

It uses the product's rules about devices (`Problem`, `Tentative`) and nothing of its search: plain recursion in
Kubernetes' order, never looking ahead. So it meets the mistakes that kube-scheduler meets, and no others, and a fault
in the control flow of the product's search shows as a difference. docs/design/allocator.md lists where the product
differs from kube-scheduler on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from itertools import repeat
from typing import Any

import msgspec
from msgspec.structs import replace

from dracaena.api.resource_objects import AllocationConfig, AllocationResult
from dracaena.controller.allocation.legal.outcome import ClaimPlan, DeviceRule, DoesNotFit, NeedsPerson, Plan
from dracaena.controller.allocation.legal.problem import Alternative, MistakeError, Problem
from dracaena.controller.allocation.legal.read.claims import MAX_DEVICES
from dracaena.controller.allocation.legal.read.slices import PoolState
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.tentative import Tentative, requests_of

SHARE_ID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
"""Of every share in the cases."""


class SchedulerError(Exception):
    """kube-scheduler reports an error and gives the pod up, whatever other nodes have."""


def answer_of(posed: Problem | DoesNotFit | NeedsPerson) -> dict[str, Any]:
    """Answer what `pose` returned in the form of a case: `results` (None: nothing fits) or `error`."""
    try:
        plan = plan_of(posed)
    except SchedulerError as error:
        return {"error": str(error)}
    if plan is None:
        return {"results": None}
    assert isinstance(posed, Problem)
    return written(posed, plan)


def written(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The plan as kube-scheduler writes it."""
    allocations = allocation_results(problem, plan, repeat(SHARE_ID))
    if isinstance(allocations, NeedsPerson):
        return {"error": str(allocations)}
    if not problem.features.unnamed_means_all:  # 1.37 has each config once
        allocations = tuple(map(_with_repeated_configs, plan.claims, allocations))
    return {"results": [msgspec.json.decode(msgspec.json.encode(allocation)) for allocation in allocations]}


def plan_of(posed: Problem | DoesNotFit | NeedsPerson) -> Plan | None:
    """Return the first legal allocation, None when there is none. Raises SchedulerError. Cost: exponential."""
    if not isinstance(posed, Problem):
        # More devices than a claim can hold are an error to Kubernetes, also where another node has fewer.
        raise SchedulerError(str(posed))
    for alternative in _alternatives(posed):
        if alternative.blocked:
            raise _error(posed, alternative, alternative.blocked)
    search = _Search(posed)
    try:
        found = search.run()
    except MistakeError as error:
        raise SchedulerError(str(error)) from None
    if not found and any(pool.state is PoolState.INVALID for pool in posed.pools):
        raise SchedulerError("invalid resource pools were encountered")
    return search.plan() if found else None


def _alternatives(problem: Problem) -> Iterator[Alternative]:
    for requests in problem.requests:
        for alternatives in requests:
            yield from alternatives


def _error(problem: Problem, alternative: Alternative, text: str) -> SchedulerError:
    return SchedulerError(f"claim {problem.claims[alternative.claim].key}, request {alternative.request.name}: {text}")


class _Ending(Enum):
    FOUND = auto()
    FAILED = auto()
    TOO_MANY = auto()
    """The claim would get more devices than it can hold: other devices do not help, another alternative may."""


@dataclass
class _Search:
    problem: Problem
    taken: dict[tuple[int, int], int] = field(default_factory=dict)
    """The alternative that was taken, by places of claim and request."""
    tentative: Tentative = field(init=False)

    def __post_init__(self) -> None:
        self.tentative = Tentative(self.problem)

    def run(self) -> bool:
        return self._claim(0) is _Ending.FOUND

    def plan(self) -> Plan:
        claims = tuple(
            ClaimPlan(claim, requests_of(self.problem, self.taken, index), self.tentative.picks(index))
            for index, claim in enumerate(self.problem.claims)
        )
        return Plan(self.problem.node, claims)

    def _claim(self, claim: int) -> _Ending:
        return _Ending.FOUND if claim == len(self.problem.claims) else self._request(claim, 0)

    def _request(self, claim: int, index: int) -> _Ending:
        if index == len(self.problem.requests[claim]):
            return self._claim(claim + 1)
        endings = set()
        for alternative in self.problem.requests[claim][index]:
            self.taken[claim, index] = alternative.nth
            ending = self._devices(alternative, number=0, start=0)
            if ending is _Ending.FOUND:
                return ending
            endings.add(ending)
        return _Ending.TOO_MANY if endings == {_Ending.TOO_MANY} else _Ending.FAILED

    def _devices(self, alternative: Alternative, *, number: int, start: int) -> _Ending:
        if alternative.everything == ():
            return _Ending.FAILED
        if number == alternative.wanted:
            return self._request(alternative.claim, alternative.index + 1)
        if self.tentative.count(alternative.claim) + alternative.wanted - number > MAX_DEVICES:
            return _Ending.TOO_MANY
        for place in self._places(alternative, number, start):
            if not self._place(alternative, place):
                continue
            ending = self._devices(alternative, number=number + 1, start=place + 1)
            if ending is _Ending.FOUND:
                return ending
            self.tentative.take_back(alternative.claim)
            if ending is _Ending.TOO_MANY:
                return ending
        return _Ending.FAILED

    def _places(self, alternative: Alternative, number: int, start: int) -> Iterable[int]:
        if alternative.everything is not None:
            return alternative.everything[number : number + 1]
        return range(start, len(self.problem.candidates))

    def _place(self, alternative: Alternative, place: int) -> bool:
        """Place the device where the rules allow it. A selector is asked only where nobody has the device."""
        if self.tentative.refused_at_once(alternative, place) is not None:
            return False
        if self.problem.unselected_by(alternative, place) is not None:
            return False
        self._refuse_beyond_int64(alternative, place)
        rule = self.tentative.place(alternative, place)
        if rule is DeviceRule.CONSTRAINT and alternative.everything is not None:
            device = self.problem.candidates[place].id
            raise _error(self.problem, alternative, f"asks for all devices, but a constraint forbids {device}")
        return rule is None

    def _refuse_beyond_int64(self, alternative: Alternative, place: int) -> None:
        """Raise where int64 does not hold a request rounded to a step: 1.37 gives the pod up, 1.36 calculates on."""
        if not self.problem.features.consumable_capacity:
            return
        for capacity in self.problem.candidates[place].reachable.device.capacities:
            wanted = (alternative.request.capacity or {}).get(capacity.name)
            policy = capacity.policy
            if wanted is None or policy is None or policy.minimum is None or not (policy.step and policy.step.nano):
                continue
            per_unit = 10**9
            bounds = [bound for bound in (policy.minimum, policy.maximum, policy.step) if bound is not None]
            if self.problem.features.fractional_capacity_range and not any(bound.nano % 10**6 for bound in bounds):
                per_unit = 10**6
            rounded = policy.minimum.nano
            if wanted.nano > rounded:
                rounded += math.ceil(Fraction(wanted.nano - rounded, policy.step.nano)) * policy.step.nano
            if max(rounded, wanted.nano) > (2**63 - 1) * per_unit:
                raise _error(self.problem, alternative, f"int64 does not hold {wanted} of capacity {capacity.name}")


def _with_repeated_configs(claim: ClaimPlan, allocation: AllocationResult) -> AllocationResult:
    """Repeat each config of the claim for each request that it names and that was taken, as Kubernetes 1.36 does."""
    configs: list[AllocationConfig] = []
    for config in allocation.devices.config:
        named = [request for request in claim.chosen if {request.main, request.name} & set(config.requests)]
        configs += [config] * (max(1, len(named)) if config.source == "FromClaim" else 1)
    return replace(allocation, devices=replace(allocation.devices, config=configs))
