"""Derived attributes: constraints compare what the claim computes of a device, instead of what is published."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from conformance.kube_scheduler import SchedulerError, plan_of

from dracaena.controller.allocation.legal.outcome import DoesNotFit, Mistake, NeedsPerson, Plan
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.search import solve
from support.seeds import sampled
from support.structured import Document, World, claim, device, exactly, first_available, published, subrequest

NAME = "derived/key"
INDEX = 'device.attributes["driver-a"].index'


def gpus(*indices: int, **attributes: Any) -> list[Document]:
    devices = (device(f"d{index}", attributes={"index": index, **attributes}) for index in indices)
    return [published("slice-1", *devices)]


def derive(expression: str, name: str = NAME) -> dict[str, Any]:
    return {"derived_attributes": [{"name": name, "expression": expression}]}


def match(name: str = NAME, kind: str = "matchAttribute") -> list[Document]:
    return [{kind: name}]


def test_devices_agree_in_what_is_derived() -> None:
    wish = claim(exactly(count=2, **derive(f"{INDEX} % 3")), constraints=match())
    assert World(gpus(1, 2, 3, 4)).devices(wish) == ["req-0: d1", "req-0: d4"]
    assert World(gpus(1, 2, 3)).devices(wish) == []


def test_devices_differ_in_what_is_derived() -> None:
    wish = claim(exactly(count=3, **derive(f"{INDEX} % 3")), constraints=match(kind="distinctAttribute"))
    assert World(gpus(1, 4, 2, 5, 3)).devices(wish) == ["req-0: d1", "req-0: d2", "req-0: d3"]
    assert World(gpus(1, 4, 2, 5)).devices(wish) == []


def test_it_stands_for_the_published_attribute_of_its_own_request_only() -> None:
    slices = [published("slice-1", *(device(name, attributes={"key": name}) for name in ("a", "b")))]
    derived = derive('"b"', "driver-a/key")
    wish = claim(exactly("one", **derived), exactly("two"), constraints=match("driver-a/key"))
    assert World(slices).devices(wish) == ["one: a", "two: b"]
    plain = claim(exactly("one"), exactly("two"), constraints=match("driver-a/key"))
    assert World(slices).devices(plain) == []


def test_each_alternative_derives_its_own() -> None:
    other = exactly("other", selectors=[f"{INDEX} == 9"], **derive('"x"'))
    choice = first_available("a", subrequest("p", **derive('"y"')), subrequest("q", **derive('"x"')))
    assert World(gpus(1, 9)).devices(claim(choice, other, constraints=match())) == ["a/q: d1", "other: d9"]


@pytest.mark.parametrize(
    ("expression", "pairs"),
    [
        (f"{INDEX} > 2", "d1 d2"),
        (f"string({INDEX} / 3)", "d1 d2"),
        (f'semver(string({INDEX} / 3) + ".0.0")', "d1 d2"),
        ('device.attributes["driver-a"].same', "d1 d2"),
    ],
)
def test_it_is_of_any_type_that_an_attribute_has(expression: str, pairs: str) -> None:
    slices = gpus(1, 2, 3, same="s")
    wish = claim(exactly(count=2, **derive(expression)), constraints=match())
    assert World(slices).devices(wish) == [f"req-0: {name}" for name in pairs.split()]


@pytest.mark.parametrize("wrap", ["{} + 0", "string({})", "{} > 5", 'semver(string({}) + ".0.0")'])
def test_lists_agree_in_one_element_where_lists_count(wrap: str) -> None:
    expression = f"[{wrap.format(INDEX)}, {wrap.format(f'{INDEX} + 2')}]"
    wish = claim(exactly(count=2, **derive(expression)), constraints=match())
    answered = World(gpus(1, 2, 3), features=Features(list_attributes=True)).devices(wish)
    assert answered == (["req-0: d1", "req-0: d2"] if ">" in wrap else ["req-0: d1", "req-0: d3"])
    assert World(gpus(1, 2, 3)).devices(wish) == []


@pytest.mark.parametrize("expression", ["[]", "device.attributes.map(x, x)"])
def test_an_empty_list_agrees_with_nothing(expression: str) -> None:
    wish = claim(exactly(count=2, **derive(expression)), constraints=match())
    slices = [published("slice-1", device("a"), device("b"))]
    assert World(slices, features=Features(list_attributes=True)).devices(wish) == []


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (f"{INDEX}.absent", "no such"),
        ('device.attributes["driver-a"].absent', "no such key"),
        ("dyn(1.5)", "CEL result of type double is not a value of an attribute"),
        ("dyn({'a': 1})", "CEL result of type map is not a value of an attribute"),
        ("[dyn(1), dyn('a')]", "the elements of a list must be of one type"),
        ("1.5", "must evaluate to a primitive scalar"),
        ("optional.of(1)", "must evaluate to a primitive scalar"),
        ("1 +", "Syntax error"),
    ],
)
def test_no_value_is_a_mistake_of_the_claim(expression: str, reason: str) -> None:
    outcome = World(gpus(1, 2)).ask(claim(exactly(**derive(expression)), constraints=match()))
    assert isinstance(outcome, NeedsPerson), outcome
    assert (outcome.mistake, outcome.subject) == (Mistake.SELECTOR, "claim default/claim-0, request req-0")
    assert outcome.problem.startswith("derived attribute derived/key has no value for device driver-a/pool-1/d1: ")
    assert reason in outcome.problem


def test_it_is_only_asked_of_devices_that_the_request_means() -> None:
    slices = [published("slice-1", device("bare"), device("d1", attributes={"index": 1}))]
    selectors = [f"has({INDEX})"]
    world = World(slices)
    assert world.devices(claim(exactly(selectors=selectors, **derive(INDEX)), constraints=match())) == ["req-0: d1"]
    assert world.devices(claim(exactly(**derive(INDEX)))) == ["req-0: bare"], "no constraint looks at it"


def test_without_the_feature_the_claim_is_refused() -> None:
    wish = claim(exactly(**derive(INDEX)), constraints=match())
    outcome = World(gpus(1), features=Features(derived_attributes=False)).ask(wish)
    assert isinstance(outcome, NeedsPerson)
    assert outcome.mistake is Mistake.FEATURE_OFF


@pytest.mark.parametrize("seed", sampled(range(600), 40, 150))
def test_looking_ahead_changes_no_answer(seed: int) -> None:
    random = Random(seed)

    def request(name: str) -> Document:
        derived = derive(f"{INDEX} % {random.randint(2, 3)}", "driver-a/index") if random.random() < 0.7 else {}
        return exactly(name, count=random.randint(1, 2), **derived)

    kinds = [random.choice(("matchAttribute", "distinctAttribute")) for _ in range(random.randint(1, 2))]
    constraints = [{kind: "driver-a/index", "requests": random.sample("abc", 2)} for kind in kinds]
    wish = claim(*map(request, "abc"), constraints=constraints)
    world = World(gpus(*random.sample(range(9), 6)), features=Features(list_attributes=random.random() < 0.3))
    problem, again = world.problem(wish), world.problem(wish)
    assert isinstance(problem, Problem)
    try:
        expected = plan_of(again)
    except SchedulerError:
        pytest.fail("there is no mistake in it")
    found = solve(problem)
    assert isinstance(found, Plan if expected is not None else DoesNotFit)
    if isinstance(found, Plan) and expected is not None:
        assert found.claims == expected.claims
