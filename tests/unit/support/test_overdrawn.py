"""Devices that are given twice, and more than there is, are found."""

from __future__ import annotations

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.problem import Problem
from support.overdrawn import overdrawn
from support.structured import World, consumes, device, published

GPU = DeviceId("driver-a", "pool-1", "gpu")


def test_sound_holdings_have_nothing_to_say() -> None:
    other = DeviceId("driver-a", "pool-1", "other")
    assert overdrawn([Holding("x", GPU), Holding("y", other, "s"), Holding("z", other, "t")]) == ()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ([Holding("y", GPU), Holding("x", GPU)], "device driver-a/pool-1/gpu is held by claims x, y"),
        (
            [Holding("x", GPU), Holding("y", GPU, "s")],
            "device driver-a/pool-1/gpu is held whole by claim x and has shares too",
        ),
        ([Holding("x", GPU, "s"), Holding("y", GPU, "s")], "device driver-a/pool-1/gpu has two shares of one share id"),
    ],
)
def test_a_device_that_is_given_twice_is_named(written: list[Holding], line: str) -> None:
    assert overdrawn(written) == (line,)


def test_more_than_there_is_of_capacities_and_counters_is_named() -> None:
    gpu = device(
        "gpu", allow_multiple_allocations=True, capacity={"memory": "4"}, consumes_counters=consumes("set", slots="1")
    )
    slices = [
        published("slice-1", gpu, device("part", consumes_counters=consumes("set", slots="2")), count=3),
        published("slice-2", device("far", consumes_counters=consumes("set", slots="1")), count=3, nodeName="node-2"),
        published("slice-3", counters={"set": {"slots": "3"}}, count=3),
    ]
    problem = World(slices).problem()
    assert isinstance(problem, Problem)
    part, far = DeviceId("driver-a", "pool-1", "part"), DeviceId("driver-a", "pool-1", "far")
    shares_of_gpu = [Holding("x", GPU, "s", (("memory", 2 * 10**9),)), Holding("y", GPU, "t", (("memory", 2 * 10**9),))]
    sound = [*shares_of_gpu, Holding("z", part)]
    assert overdrawn(sound, problem.pools) == ()
    assert overdrawn([*sound, Holding("x", GPU, "u", (("memory", 1),)), Holding("w", far)], problem.pools) == (
        "device driver-a/pool-1/gpu: shares take more than there is of capacity memory",
        "pool driver-a/pool-1: held devices take more than there is of counter set/slots",
    )


def test_held_devices_of_one_counter_set_without_a_common_group_are_named() -> None:
    def grouped(name: str, *groups: str) -> dict[str, object]:
        return device(
            name, consumes_counters=[one | {"compatibilityGroups": [*groups]} for one in consumes("set", s="1")]
        )

    slices = [
        published("slice-1", grouped("a", "x"), grouped("b", "x", "y"), grouped("c", "y"), count=2),
        published("slice-2", counters={"set": {"s": "4"}}, count=2),
    ]
    problem = World(slices).problem()
    assert isinstance(problem, Problem)
    held = [Holding(name, DeviceId("driver-a", "pool-1", name)) for name in "abc"]
    assert overdrawn(held[:2], problem.pools) == ()
    line = "pool driver-a/pool-1: held devices of counter set set have no compatibility group in common"
    assert overdrawn(held, problem.pools) == (line,)
