"""The rules' answers as kube-scheduler gives them, errors included.

kube-scheduler ends a pod with an error in situations in which we say that the claims do not fit on this node, because
another node, an alternative or time may serve them (docs/design/0007-allocator.md). Its order of looking decides which
errors it meets, so nothing is looked at ahead of it here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from dracaena.api.objects import AllocationConfig, AllocationResult
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.legal.outcome import (
    ClaimPlan,
    DeviceRule,
    DoesNotFit,
    Mistake,
    NeedsPerson,
    Outcome,
    Plan,
)
from dracaena.controller.allocation.legal.problem import Alternative, MistakeError, Problem
from dracaena.controller.allocation.legal.read.pools import PoolState
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import MAX_STEPS, Search
from dracaena.controller.allocation.legal.tentative import Tentative


@dataclass(slots=True)
class KubernetesSearch(Search):
    """Tries devices in the same order, without looking ahead, and meets every error on its way."""

    def __post_init__(self) -> None:
        self.tentative = Tentative(self.problem)

    def _is_hopeless(self) -> bool:
        return False

    def _is_blocked(self, alternative: Alternative | None = None, place: int = -1, number: int = -1) -> bool:
        return False

    def _note(self, alternative: Alternative, place: int, rule: DeviceRule) -> None:
        # Explicitly: a dataclass with slots is another class than the one that super() finds.
        Search._note(self, alternative, place, rule)
        if rule is DeviceRule.CONSTRAINT and alternative.everything is not None:
            device = self.problem.candidates[place].id
            text = f"asks for all devices, but a constraint forbids {device} beside the others"
            raise MistakeError(needs_person(self.problem, alternative, text))


def needs_person(problem: Problem, alternative: Alternative, text: str) -> NeedsPerson:
    claim = problem.claims[alternative.claim].key
    return NeedsPerson(Mistake.UNSUPPORTED, f"claim {claim}, request {alternative.request.name}", text)


def as_posed(posed: Problem | DoesNotFit | NeedsPerson) -> Problem | NeedsPerson:
    """Return what pose() returned, with the errors that kube-scheduler has: mode All over a pool that is just being
    published or broken, and more devices on this node than a claim can hold."""
    if isinstance(posed, DoesNotFit):
        return NeedsPerson(Mistake.LIMIT, "claim", posed.note)
    if isinstance(posed, Problem):
        for alternative in (one for claim in posed.requests for request in claim for one in request):
            if alternative.blocked:
                return needs_person(posed, alternative, alternative.blocked)
    return posed


def kubernetes_outcome(posed: Problem | DoesNotFit | NeedsPerson, *, max_steps: int = MAX_STEPS) -> Outcome:
    """Return what kube-scheduler finds for a question."""
    problem = as_posed(posed)
    if isinstance(problem, NeedsPerson):
        return problem
    try:
        return KubernetesSearch(problem, (), {}, max_steps, Effort()).run()
    except MistakeError as error:
        return error.found


def kubernetes_error(outcome: DoesNotFit) -> str:
    """Return what kube-scheduler reports as an error of this node where nothing fits; empty when it reports none."""
    if outcome.cut_off:
        return "the search was cut off"
    invalid = any(pool.state is PoolState.INVALID for pool in outcome.pools)
    return "invalid resource pools were encountered" if invalid else ""


def kubernetes_results(
    problem: Problem, plan: Plan, share_ids: Iterator[str]
) -> tuple[AllocationResult, ...] | NeedsPerson:
    """Return the allocations as kube-scheduler writes them: a config of the claim for each request that it names."""
    written = allocation_results(problem, plan, share_ids)
    if isinstance(written, NeedsPerson):
        return written
    return tuple(_with_repeated(claim, allocation) for claim, allocation in zip(plan.claims, written, strict=True))


def _with_repeated(claim: ClaimPlan, allocation: AllocationResult) -> AllocationResult:
    config = [copy for entry in allocation.devices.config for copy in [entry] * _times(claim, entry)]
    devices = msgspec.structs.replace(allocation.devices, config=config)
    return msgspec.structs.replace(allocation, devices=devices)


def _times(claim: ClaimPlan, entry: AllocationConfig) -> int:
    if entry.source != "FromClaim" or not entry.requests:
        return 1
    return sum(bool({request.main, request.name} & set(entry.requests)) for request in claim.chosen)
