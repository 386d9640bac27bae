"""Topology and semantics together, on one node: against the obvious allocator over random snapshots, and by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.outcome import DoesNotFit, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.search import RequestKey
from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.walk.node_choice import Chosen, NodeGpus
from support.allocator_cases import features_of, problem_of
from support.random_snapshots import random_snapshot
from support.slow_allocator import Choice as SlowChoice
from support.slow_allocator import SlowAllocator
from support.slow_node_choice import best_of, drawn_gpus
from support.structured import World, claim, device, exactly, first_available, published, subrequest

SNAPSHOTS = 500
MANY_SNAPSHOTS = 10_000


def check(seed: int, selectors: dict[Features, CelSelectors]) -> str:
    """Compare one snapshot and return what became of it."""
    case = random_snapshot(seed)
    features = features_of(case["features"])
    asked = selectors.setdefault(features, CelSelectors(features))
    problem = problem_of(case, asked)
    slow = SlowAllocator(case)
    expected = slow.allocate()
    if not isinstance(problem, Problem):
        assert isinstance(problem, DoesNotFit), (seed, problem)
        assert expected is None, seed
        return "none"
    gpus = drawn_gpus(problem, seed)
    engine = Engine()
    answered = best_of(problem, gpus, engine)
    if not isinstance(answered, tuple):
        assert isinstance(answered, DoesNotFit), (seed, answered)
        assert not answered.cut_off, seed
        assert expected is None, (seed, expected, str(answered))
        return "none"
    chosen, answer = answered
    assert not answer.cut_off, seed
    found = results_of(answer.plan)
    assert slow.allows(found), (seed, found)
    picked = [pick for entry in answer.plan.claims for pick in entry.picks]
    if gpus is None or answer.choice is None or not all(pick.device.id in gpus.devices for pick in picked):
        return "fits"
    if any(pick.request.admin_access for pick in picked):
        return "fits"
    best = best_by_brute_force(slow, problem, gpus, engine, chosen)
    assert best is not None, seed
    every = gpus.mask([pick.device.id for pick in picked])
    demands = tuple(Demand(len(entry.picks)) for entry in answer.plan.claims)
    assert engine.score(gpus.box, gpus.free, every, demands).rank() == best, seed
    return "best"


def results_of(plan: Plan) -> list[list[tuple[str, tuple[str, str, str]]]]:
    return [[(pick.request.name, tuple(pick.device.id)) for pick in entry.picks] for entry in plan.claims]  # type: ignore[misc]


def best_by_brute_force(
    slow: SlowAllocator, problem: Problem, gpus: NodeGpus, engine: Engine, chosen: dict[RequestKey, int]
) -> tuple[int, ...] | None:
    """The best rank over all legal assignments of the way that was taken, as far as GPUs alone are given."""
    ordinal_of = {tuple(found): ordinal for ordinal, found in enumerate(gpus.devices) if found is not None}
    names = [problem.claims[c].requests[i].alternatives[chosen[c, i]].name for c, i in chosen]
    ranks = []
    for assignment in slow.every_legal():
        flat: list[SlowChoice] = [one for entry in assignment for one in entry]
        ids = [slow.devices[place]["id"] for _, _, places in flat for place in places]
        if [name for name, _, _ in flat] != names or not all(one in ordinal_of for one in ids):
            continue
        mask = sum(1 << ordinal_of[one] for one in ids)
        demands = tuple(Demand(sum(len(places) for _, _, places in entry)) for entry in assignment)
        ranks.append(engine.score(gpus.box, gpus.free, mask, demands).rank())
    return min(ranks, default=None)


def compare(seeds: range) -> Counter[str]:
    selectors: dict[Features, CelSelectors] = {}
    return Counter(check(seed, selectors) for seed in seeds)


def test_the_choice_is_legal_there_when_the_obvious_one_is_and_the_best_by_brute_force() -> None:
    became = compare(range(SNAPSHOTS))
    # The snapshots are worth something only if all answers are common.
    assert min(became["best"], became["none"]) > SNAPSHOTS // 8
    assert became["fits"] > SNAPSHOTS // 50


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_it_is_so_in_many_more_snapshots() -> None:
    became = compare(range(SNAPSHOTS, SNAPSHOTS + MANY_SNAPSHOTS))
    assert became.total() == MANY_SNAPSHOTS


GPUS = [device(f"gpu-{number}", attributes={"numa": number // 4}) for number in range(8)]


def ask(*requests: Any, **beside: Any) -> tuple[Problem, NodeGpus, Any]:
    options = {name: beside.pop(name) for name in ("max_steps", "first_fit") if name in beside}
    problem = World([published("slice-1", *GPUS)]).problem(claim(*requests, **beside))
    assert isinstance(problem, Problem)
    gpus = drawn_gpus(problem, 7)
    assert gpus is not None
    return problem, gpus, best_of(problem, gpus, Engine(), **options)


def taken(answered: Any) -> Choice:
    assert isinstance(answered, tuple), answered
    answer = answered[1]
    assert isinstance(answer, Chosen)
    assert answer.choice is not None
    return answer.choice


def test_a_search_that_is_cut_off_says_so_and_is_no_worse_than_the_first_fit() -> None:
    constraints = [{"distinctAttribute": "driver-a/numa", "requests": ["a", "b"]}]
    requests = (exactly("a"), exactly("b"), exactly("c", 2))
    _, _, first = ask(*requests, constraints=constraints, first_fit=True)
    _, _, whole = ask(*requests, constraints=constraints)
    assert not whole[1].cut_off
    for max_steps in range(5, 200, 5):
        _, _, cut = ask(*requests, constraints=constraints, max_steps=max_steps)
        if isinstance(cut, DoesNotFit):
            assert cut.cut_off
            continue
        assert not cut[1].cut_off or cut[1].plan.claims == first[1].plan.claims
        assert taken(cut).score.rank() <= taken(first).score.rank()


def test_alternatives_are_taken_in_order_of_preference_however_well_the_others_are_linked() -> None:
    _, _, answered = ask(first_available("r", subrequest("nine", 9), subrequest("five", 5), subrequest("two", 2)))
    chosen, answer = answered
    assert chosen == {(0, 0): 1}
    assert {pick.request.name for pick in answer.plan.claims[0].picks} == {"r/five"}


def test_the_best_set_of_one_value_is_proposed_without_a_look_at_sets_of_several() -> None:
    constraints = [{"matchAttribute": "driver-a/numa"}]
    _, gpus, answered = ask(exactly("r", 3), constraints=constraints, max_steps=100)
    choice = taken(answered)
    engine = Engine()
    halves = [engine.best_two(gpus.box, gpus.free, (Demand(3, eligible=half),)).best for half in (0x0F, 0xF0)]
    best = min(
        (half for half in halves if half is not None), key=lambda half: (half.score.rank(), ordinals_of(half.mask))
    )
    assert choice.mask == best.mask
    assert not answered[1].cut_off
