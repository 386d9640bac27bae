"""Shared counters: partitions of one device draw on one account."""

from __future__ import annotations

from typing import Any

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit
from dracaena.controller.allocation.legal.read.features import Features
from support.structured import Document, World, claim, consumes, device, exactly, published


def part(name: str, **counters: str) -> Document:
    return device(name, consumes_counters=consumes("gpu-0", **counters))


def pool(*devices: Document, counters: dict[str, dict[str, str]], **fields: Any) -> list[Document]:
    return [
        published("slice-1", *devices, count=2, **fields),
        published("slice-2", counters=counters, count=2, **fields),
    ]


def held(name: str, pool_name: str = "pool-1") -> Holding:
    return Holding("somebody", DeviceId("driver-a", pool_name, name))


HALVES = pool(
    part("whole", memory="40Gi", engines="7"),
    part("half-0", memory="20Gi", engines="3"),
    part("half-1", memory="20Gi", engines="3"),
    part("slim", memory="5Gi", engines="1"),
    counters={"gpu-0": {"memory": "40Gi", "engines": "7"}},
)


def test_partitions_are_given_while_every_counter_suffices() -> None:
    assert World(HALVES).devices(claim(exactly())) == ["req-0: whole"]
    assert World(HALVES).devices(claim(exactly(count=2))) == ["req-0: half-0", "req-0: half-1"]
    assert World(HALVES).devices(claim(exactly(count=3))) == []


def test_what_others_hold_is_subtracted() -> None:
    assert World(HALVES, holdings=[held("half-0")]).devices(claim(exactly())) == ["req-0: half-1"]
    outcome = World(HALVES, holdings=[held("whole")]).ask(claim(exactly()))
    assert isinstance(outcome, DoesNotFit)
    assert {reason.rule: reason.devices for reason in outcome.reasons} == {DeviceRule.IN_USE: 1, DeviceRule.COUNTERS: 3}


def test_devices_of_other_nodes_draw_on_the_same_counters() -> None:
    slices = [
        published("slice-1", part("here", memory="20Gi"), count=3),
        published("slice-2", part("there", memory="30Gi"), count=3, nodeName="node-2"),
        published("slice-3", counters={"gpu-0": {"memory": "40Gi"}}, count=3, nodeName="node-2"),
    ]
    assert World(slices).devices(claim(exactly())) == ["req-0: here"]
    assert World(slices, holdings=[held("there")]).devices(claim(exactly())) == []


def test_an_overdrawn_pool_gives_nothing_that_counts() -> None:
    slices = pool(
        part("taken", memory="9"),
        device("other", consumes_counters=consumes("gpu-1", memory="1")),
        device("free"),
        counters={"gpu-0": {"memory": "8"}, "gpu-1": {"memory": "8"}},
    )
    assert World(slices, holdings=[held("taken")]).devices(claim(exactly())) == ["req-0: free"]


def test_pools_of_one_name_have_counters_of_their_own() -> None:
    # Kubernetes 1.36 keeps the accounts of both drivers under "pool-1".
    ours = pool(part("ours", memory="2"), counters={"gpu-0": {"memory": "2"}})
    theirs = [
        published("slice-3", part("theirs", memory="8"), driver="driver-b", count=2),
        published("slice-4", counters={"gpu-0": {"memory": "8"}}, driver="driver-b", count=2),
    ]
    assert World([*ours, *theirs]).devices(claim(exactly(count=2, device_class="any"))) == [
        "req-0: ours",
        "req-0: theirs",
    ]


def test_counters_are_given_back_when_a_later_rule_refuses_the_device() -> None:
    tainted = device(
        "tainted", consumes_counters=consumes("gpu-0", memory="8"), taints=[{"key": "t", "effect": "NoSchedule"}]
    )
    slices = pool(tainted, part("good", memory="8"), counters={"gpu-0": {"memory": "8"}})
    assert World(slices).devices(claim(exactly())) == ["req-0: good"]


def test_admin_access_needs_counters_too_and_what_admins_hold_costs_nothing() -> None:
    slices = pool(part("a", memory="8"), part("b", memory="8"), counters={"gpu-0": {"memory": "8"}})
    admin = exactly(count=2, admin_access=True)
    assert World(slices).devices(claim(admin)) == []
    assert World(slices).devices(claim(exactly(admin_access=True))) == ["req-0: a"]


def test_with_the_feature_off_devices_that_consume_counters_are_refused() -> None:
    slices = pool(part("part", memory="1"), device("whole"), counters={"gpu-0": {"memory": "8"}})
    world = World(slices, features=Features(partitionable_devices=False))
    assert world.devices(claim(exactly())) == ["req-0: whole"]
    assert "1 that consume counters, which the cluster has switched off" in str(world.ask(claim(exactly(count=2))))
