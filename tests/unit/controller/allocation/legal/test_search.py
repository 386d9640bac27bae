"""The search itself: bounded, deterministic, restricted by its caller, and deep enough for any pod."""

from __future__ import annotations

import pytest

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.search import Restriction, solve
from support.structured import (
    Document,
    World,
    claim,
    device,
    everything,
    exactly,
    first_available,
    published,
    subrequest,
)

POOL = PoolId("driver-a", "pool-1")


def ids(*names: str, pool: PoolId = POOL) -> frozenset[DeviceId]:
    return frozenset(DeviceId(*pool, name) for name in names)


def gpus(count: int) -> list[Document]:
    return [published("slice-1", *(device(f"gpu-{n}", attributes={"half": n % 2, "own": n}) for n in range(count)))]


HALF = "driver-a/half"


def test_contradicting_constraints_over_64_devices_and_32_requests_end_within_the_budget() -> None:
    requests = [exactly(f"req-{n}") for n in range(32)]
    constraints: list[Document] = [
        {"matchAttribute": HALF},
        {"distinctAttribute": "driver-a/own", "requests": ["req-0", "req-31"]},
        {"distinctAttribute": HALF, "requests": ["req-1", "req-31"]},
    ]
    outcome = World(gpus(64)).ask(claim(*requests, constraints=constraints), max_steps=20_000)
    assert isinstance(outcome, DoesNotFit)
    assert (outcome.cut_off, outcome.steps) == (True, 20_000)


def test_more_distinct_devices_than_there_are_values_are_refused_at_once() -> None:
    requests = [exactly(f"req-{n}") for n in range(32)]
    outcome = World(gpus(64)).ask(claim(*requests, constraints=[{"distinctAttribute": HALF}]))
    assert isinstance(outcome, DoesNotFit)
    assert outcome.steps == 0
    few = "of which those that it could get have 2 values"
    assert str(outcome) == f"claim default/claim-0: 32 devices are to differ in driver-a/half, {few}"
    two = [{"distinctAttribute": HALF, "requests": ["req-0", "req-31"]}]
    assert len(World(gpus(64)).devices(claim(*requests, constraints=two))) == 32


def test_a_demanding_request_at_the_end_does_not_cost_all_combinations_before_it() -> None:
    # Kubernetes tries every way to serve the 31 requests before it turns to the first of them.
    requests = [exactly(f"req-{n}") for n in range(31)]
    last = exactly("last", selectors=['device.attributes["driver-a"].own == 5'])
    apart = World(gpus(64)).devices(claim(*requests, last))
    assert apart[-1] == "last: gpu-5"
    assert apart[5] == "req-5: gpu-6"
    together = claim(*requests, last, constraints=[{"matchAttribute": HALF, "requests": ["req-0", "last"]}])
    assert World(gpus(64)).devices(together)[:2] == ["req-0: gpu-1", "req-1: gpu-0"]


def test_a_search_that_was_cut_off_says_so_and_is_no_proof() -> None:
    # There are four values of each, but 0 and 1 of `a` have only 0 of `b`.
    pairs = 3 * [(0, 0), (1, 0), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]
    devices = [device(f"gpu-{n}", attributes={"a": a, "b": b}) for n, (a, b) in enumerate(pairs)]
    wish = claim(exactly(count=4), constraints=[{"distinctAttribute": f"driver-a/{name}"} for name in "ab"])
    world = World([published("slice-1", *devices)])
    cut = world.ask(wish, max_steps=100)
    assert isinstance(cut, DoesNotFit)
    assert (cut.cut_off, cut.steps) == (True, 100)
    assert str(cut).endswith("the search was cut off after 100 steps")
    whole = world.ask(wish)
    assert isinstance(whole, DoesNotFit)
    assert not whole.cut_off
    assert 100 < whole.steps < 100_000


def test_the_steps_that_are_needed_are_enough() -> None:
    world, wish = World(gpus(9)), claim(exactly(count=3), constraints=[{"matchAttribute": HALF}])
    plan = world.ask(wish)
    assert isinstance(plan, Plan)
    assert world.ask(wish, max_steps=plan.steps) == plan
    assert isinstance(world.ask(wish, max_steps=plan.steps - 1), DoesNotFit)


def test_the_same_question_has_the_same_answer() -> None:
    wish = claim(first_available("a", subrequest("x", count=5), subrequest("y", count=3)), exactly("b", count=4))
    problem = World(gpus(8)).problem(wish)
    assert isinstance(problem, Problem)
    assert solve(problem) == solve(problem) == World(gpus(8)).ask(wish)


def test_a_pod_may_have_more_claims_than_python_has_frames() -> None:
    slices = [published(f"slice-{n:03d}", *(device(f"gpu-{n}-{m}") for m in range(100)), count=20) for n in range(20)]
    claims = [claim(exactly(count=32), name=f"claim-{n}") for n in range(60)]
    outcome = World(slices).ask(*claims)
    assert isinstance(outcome, Plan)
    assert sum(len(one.picks) for one in outcome.claims) == 60 * 32


def test_a_request_that_nobody_could_serve_ends_the_search_before_it_begins() -> None:
    wish = claim(*(exactly(f"req-{n}") for n in range(20)), exactly("last", selectors=["false"]))
    outcome = World(gpus(64)).ask(wish)
    assert isinstance(outcome, DoesNotFit)
    assert (outcome.steps, outcome.cut_off) == (0, False)
    assert str(outcome) == "claim default/claim-0, request last: 64 not matching the request's selectors"


# restrictions


def test_devices_of_a_restricted_pool_come_from_the_set_only() -> None:
    only = Restriction(frozenset({POOL}), ids("gpu-3", "gpu-1"))
    assert World(gpus(4)).devices(claim(exactly(count=2)), restrictions=[only]) == ["req-0: gpu-1", "req-0: gpu-3"]
    outcome = World(gpus(4)).ask(claim(exactly(count=3)), restrictions=[only])
    assert isinstance(outcome, DoesNotFit)
    assert [(reason.rule, reason.devices) for reason in outcome.reasons] == [(DeviceRule.NOT_OFFERED, 2)]


def test_other_pools_stay_open() -> None:
    slices = [*gpus(2), published("slice-2", device("nic"), pool="pool-2", driver="driver-n")]
    wish = claim(exactly("gpu"), exactly("nic", device_class="any", selectors=['device.driver == "driver-n"']))
    only = Restriction(frozenset({POOL}), ids("gpu-1"))
    assert World(slices).devices(wish, restrictions=[only]) == ["gpu: gpu-1", "nic: nic"]


def test_a_restriction_can_be_about_one_request() -> None:
    wish = claim(exactly("a"), exactly("b"))
    parts = [
        Restriction(frozenset({POOL}), ids("gpu-2"), frozenset({(0, 0)})),
        Restriction(frozenset({POOL}), ids("gpu-0"), frozenset({(0, 1)})),
    ]
    assert World(gpus(3)).devices(wish, restrictions=parts) == ["a: gpu-2", "b: gpu-0"]


def test_restrictions_never_make_an_illegal_set_legal() -> None:
    used = [Holding("somebody", DeviceId(*POOL, "gpu-1"))]
    only = Restriction(frozenset({POOL}), ids("gpu-1"))
    assert World(gpus(2), holdings=used).devices(claim(exactly()), restrictions=[only]) == []


def test_one_problem_answers_for_many_sets() -> None:
    problem = World(gpus(6)).problem(claim(exactly(count=2), constraints=[{"matchAttribute": "driver-a/half"}]))
    assert isinstance(problem, Problem)
    legal = [
        (one, other)
        for one in range(6)
        for other in range(one + 1, 6)
        if isinstance(
            solve(problem, restrictions=[Restriction(frozenset({POOL}), ids(f"gpu-{one}", f"gpu-{other}"))]), Plan
        )
    ]
    assert legal == [(0, 2), (0, 4), (1, 3), (1, 5), (2, 4), (3, 5)]


# eligibility


def test_eligible_devices_are_those_that_no_rule_about_one_device_refuses() -> None:
    slices = [
        published(
            "slice-1",
            device("used"),
            device("good", attributes={"a": 1}),
            device("other", attributes={"a": 2}),
            device("odd"),
            device("tainted", attributes={"a": 1}, taints=[{"key": "t", "effect": "NoSchedule"}]),
            device("fine", attributes={"a": 1}),
        )
    ]
    world = World(slices, holdings=[Holding("somebody", DeviceId(*POOL, "used"))])
    problem = world.problem(claim(exactly(selectors=['device.attributes["driver-a"].a == 1'])))
    assert isinstance(problem, Problem)
    assert [one.device for one in problem.eligible(problem.requests[0][0][0])] == ["good", "fine"]


@pytest.mark.parametrize("wish", [exactly(), everything(), first_available("a", subrequest("x"))])
def test_every_alternative_has_its_own_eligible_devices(wish: Document) -> None:
    problem = World(gpus(2)).problem(claim(wish))
    assert isinstance(problem, Problem)
    ((alternatives,),) = problem.requests
    assert [len(problem.eligible(one)) for one in alternatives] == [2] * len(alternatives)
