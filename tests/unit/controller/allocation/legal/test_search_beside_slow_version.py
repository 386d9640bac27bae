"""The allocator against the obvious one, over random snapshots: the same first solution, and never an illegal one."""

from __future__ import annotations

from collections import Counter

import pytest
from conformance.kube_scheduler import SchedulerError, plan_of

from dracaena.controller.allocation.legal.books import holdings_of
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, NeedsPerson, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.results import allocation_results
from dracaena.controller.allocation.legal.search import solve
from support.allocator_cases import features_of, holdings_of_case, problem_of
from support.overdrawn import overdrawn
from support.random_snapshots import Document, random_snapshot
from support.slow_allocator import SlowAllocator

SNAPSHOTS = 500
MANY_SNAPSHOTS = 10_000


def check(seed: int, selectors: dict[Features, CelSelectors]) -> str:
    """Compare one snapshot and return what became of it."""
    case = random_snapshot(seed)
    features = features_of(case["features"])
    asked = selectors.setdefault(features, CelSelectors(features))
    problem = problem_of(case, asked)
    outcome = solve(problem) if isinstance(problem, Problem) else problem
    expected = SlowAllocator(case).allocate()
    if not isinstance(outcome, Plan):
        assert isinstance(outcome, DoesNotFit), (seed, outcome)
        assert not outcome.cut_off, seed
        assert expected is None, (seed, expected, str(outcome))
        return "none"
    found = [[(pick.request.name, tuple(pick.device.id)) for pick in claim.picks] for claim in outcome.claims]
    assert found == expected, seed
    assert isinstance(problem, Problem)
    check_what_is_held_then(case, problem, outcome, seed)
    return "fits"


def check_what_is_held_then(case: Document, problem: Problem, plan: Plan, seed: int) -> None:
    """What was wrong before stays; nothing new may be."""
    allocations = allocation_results(problem, plan, (f"new-{number}" for number in range(1000)))
    assert not isinstance(allocations, NeedsPerson), (seed, allocations)
    before = holdings_of_case(case)
    given = [
        holding
        for claim, allocation in zip(plan.claims, allocations, strict=True)
        for holding in holdings_of(claim.claim.key, allocation.devices.results)
    ]
    assert set(overdrawn([*before, *given], problem.pools)) <= set(overdrawn(before, problem.pools)), seed


def compare(seeds: range) -> Counter[str]:
    selectors: dict[Features, CelSelectors] = {}
    return Counter(check(seed, selectors) for seed in seeds)


def test_looking_ahead_changes_no_answer() -> None:
    # Beside a plain search without it. kube-scheduler's errors where there is no mistake are another test's.
    compared = 0
    for seed in range(SNAPSHOTS):
        case = random_snapshot(seed)
        asked = CelSelectors(features_of(case["features"]))
        problem = problem_of(case, asked)
        try:
            expected = plan_of(problem)
        except SchedulerError:
            continue
        assert isinstance(problem, Problem)
        found = solve(problem)
        assert isinstance(found, Plan if expected is not None else DoesNotFit), seed
        if isinstance(found, Plan) and expected is not None:
            assert found.claims == expected.claims, seed
        compared += 1
    assert compared > SNAPSHOTS // 2


def test_the_allocator_finds_the_first_solution_that_the_obvious_one_finds() -> None:
    became = compare(range(SNAPSHOTS))
    # The snapshots are worth something only if both answers are common.
    assert min(became["fits"], became["none"]) > SNAPSHOTS // 4


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_allocator_finds_it_in_many_more_snapshots() -> None:
    became = compare(range(SNAPSHOTS, SNAPSHOTS + MANY_SNAPSHOTS))
    assert became.total() == MANY_SNAPSHOTS
