"""Reference mode answers as kube-scheduler where the product differs from it on purpose, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.kube_scheduler import SchedulerError, answer_of, plan_of

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
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

FAILING = 'device.attributes["driver-a"].nothing == 1'
"""No device has the attribute, so the selector has no answer about any."""


def gpus(count: int, **fields: Any) -> list[Document]:
    return [published("slice-1", *(device(f"gpu-{number}", **fields) for number in range(count)))]


def picks(world: World, *claims: Document) -> list[str] | None:
    """`request: device` for each device, claim by claim."""
    plan = plan_of(world.problem(*claims))
    if plan is None:
        return None
    return [f"{pick.request.name}: {pick.device.id.device}" for one in plan.claims for pick in one.picks]


def test_requests_get_the_first_devices_in_order() -> None:
    assert picks(World(gpus(3)), claim(exactly("a", count=2), exactly("b"))) == ["a: gpu-0", "a: gpu-1", "b: gpu-2"]
    assert picks(World(gpus(2)), claim(exactly(count=3))) is None


def test_earlier_choices_are_taken_back() -> None:
    slices = [published("slice-1", *(device(f"gpu-{n}", attributes={"numa": n % 2}) for n in range(4)))]
    together = claim(exactly(count=2), constraints=[{"matchAttribute": "driver-a/numa"}])
    assert picks(World(slices), claim(exactly("one")), together) == ["one: gpu-0", "req-0: gpu-1", "req-0: gpu-3"]


def test_an_alternative_that_is_too_many_is_passed_over() -> None:
    wish = first_available("req-0", subrequest("many", count=30), subrequest("few"))
    found = picks(World(gpus(64)), claim(wish, exactly("req-1", count=20)))
    assert found is not None
    assert found[:2] == ["req-0/few: gpu-0", "req-1: gpu-1"]
    later = claim(first_available("req", subrequest("many", count=31), subrequest("few")), exactly("b", count=2))
    # Each claim has a limit of its own.
    assert picks(World(gpus(64)), claim(exactly()), later) == ["req-0: gpu-0", "req/few: gpu-1", "b: gpu-2", "b: gpu-3"]


def test_a_failing_selector_is_an_error_only_where_it_is_met() -> None:
    failing = exactly("failing", selectors=[FAILING])
    held = [Holding("somebody", DeviceId("driver-a", "pool-1", "gpu-0"))]
    with pytest.raises(SchedulerError, match="selector 0 cannot be evaluated"):
        picks(World(gpus(1)), claim(failing))
    # Who holds a device is asked before selectors, and nothing is asked ahead.
    assert picks(World(gpus(1), holdings=held), claim(failing)) is None
    assert picks(World(gpus(1)), claim(exactly("few", count=2), failing)) is None


def test_mode_all_over_an_unfinished_pool_is_an_error() -> None:
    unfinished = published("slice-2", device("x"), pool="pool-2", driver="driver-b", count=2)
    wish = first_available("req", subrequest("one"), subrequest("all", count=0, allocation_mode="All"))
    with pytest.raises(SchedulerError, match="request req/all: asks for all devices, but pool driver-b/pool-2 is inco"):
        picks(World([*gpus(2), unfinished]), claim(wish))


def test_mode_all_against_a_constraint_is_an_error() -> None:
    slices = [published("slice-1", device("a", attributes={"numa": 0}), device("b", attributes={"numa": 1}))]
    with pytest.raises(SchedulerError, match="a constraint forbids driver-a/pool-1/b"):
        picks(World(slices), claim(everything(), constraints=[{"matchAttribute": "driver-a/numa"}]))


def test_mode_all_over_more_devices_than_a_claim_can_hold_is_an_error() -> None:
    with pytest.raises(SchedulerError, match="33 devices are requested, a claim can hold 32"):
        picks(World(gpus(33)), claim(everything()))


def test_mode_all_over_a_device_in_use_does_not_fit() -> None:
    held = [Holding("somebody", DeviceId("driver-a", "pool-1", "gpu-1"))]
    assert answer_of(World(gpus(3), holdings=held).problem(claim(everything()))) == {"results": None}


def test_an_invalid_pool_is_an_error_only_where_nothing_fits() -> None:
    invalid = published("slice-2", device("x"), device("x"), pool="pool-2")
    assert picks(World([*gpus(1), invalid]), claim(exactly())) == ["req-0: gpu-0"]
    with pytest.raises(SchedulerError, match="invalid resource pools were encountered"):
        picks(World([*gpus(1), invalid]), claim(exactly(count=2)))
    unfinished = published("slice-2", device("x"), pool="pool-2", count=2)
    assert picks(World([*gpus(1), unfinished]), claim(exactly(count=2))) is None


def test_a_config_stands_once_for_each_request_that_it_names() -> None:
    def config(number: int, *requests: str) -> Document:
        return {"requests": list(requests), "opaque": {"driver": "driver-a", "parameters": {"number": number}}}

    configs = [config(1, "a", "b"), config(2, "b"), config(3), config(4, "a/one"), config(5, "a/many")]
    wish = claim(first_available("a", subrequest("many", count=5), subrequest("one")), exactly("b"), config=configs)
    answered = answer_of(World(gpus(2)).problem(wish))["results"]
    written = [entry["opaque"]["parameters"]["number"] for entry in answered[0]["devices"]["config"]]
    assert written == [1, 1, 2, 3, 4]
