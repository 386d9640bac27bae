"""A slice of a newer Kubernetes: what is not understood leaves the device or the pool alone, and says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.pools import SliceIndex, gather_pools
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import PoolState, read_slice
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, device_name, machine, node, pod, pool_slice, request

THREE = machine("three", blocks(3, inside="PIX", outside="PIX"))


def document() -> dict[str, Any]:
    item = msgspec.json.decode(msgspec.json.encode(pool_slice("n", THREE)))
    item["spec"]["devices"][0]["consumesCounters"] = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
    item["spec"]["devices"][0]["capacity"] = {"x": {"value": "1", "requestPolicy": {"validRange": {"min": "1"}}}}
    return item  # type: ignore[no-any-return]


def read(item: dict[str, Any]) -> ResourceSlice:
    return ResourceSlice.from_json(msgspec.json.encode(item))


def test_what_is_known_is_read_as_before() -> None:
    plain = pool_slice("n", THREE)
    typed = msgspec.json.decode(msgspec.json.encode(plain))
    typed["spec"]["partitionTypeAttribute"] = "gpu.example.com/profile"
    assert read(typed).spec.unknown == ""
    assert isinstance(decide(world(typed), 3), Allocation)
    assert read(msgspec.json.decode(msgspec.json.encode(plain))) == plain
    assert not any(device.unknown for device in read(document()).spec.devices)


DEVICE_PLACES = [
    ([], "nodeAllocatableResourceMappings"),
    (["attributes", "ordinal"], "attributes[ordinal].later"),
    (["capacity", "x"], "capacity[x].later"),
    (["capacity", "x", "requestPolicy"], "capacity[x].requestPolicy.later"),
    (["capacity", "x", "requestPolicy", "validRange"], "capacity[x].requestPolicy.validRange.later"),
    (["consumesCounters", 0], "consumesCounters[0].later"),
    (["consumesCounters", 0, "counters", "c"], "consumesCounters[0].counters[c].later"),
]


@pytest.mark.parametrize(("path", "name"), DEVICE_PLACES)
def test_an_unknown_field_in_a_device_is_noted(path: list[Any], name: str) -> None:
    item = document()
    where = item["spec"]["devices"][0]
    for step in path:
        where = where[step]
    where[name.rpartition(".")[2]] = ["a"]
    found = read(item).spec
    assert [device.unknown for device in found.devices] == [name, "", ""]
    assert found.unknown == ""
    where[name.rpartition(".")[2]] = None
    assert not any(device.unknown for device in read(item).spec.devices), "null is absent"


@pytest.mark.parametrize(
    ("path", "name"),
    [([], "later"), (["pool"], "pool.later"), (["sharedCounters", 0], "sharedCounters[0].later")],
)
def test_an_unknown_field_next_to_the_devices_is_about_the_pool(path: list[Any], name: str) -> None:
    item = document()
    item["spec"]["sharedCounters"] = [{"name": "s", "counters": {"c": {"value": "1"}}}]
    where = item["spec"]
    for step in path:
        where = where[step]
    where[name.rpartition(".")[2]] = "x"
    assert read(item).spec.unknown == name


def test_unknown_fields_in_metadata_are_nobody_s_matter() -> None:
    item = document()
    item["metadata"] |= {"later": 1, "selfLink": "x"}
    assert read(item).spec.unknown == ""


def world(item: dict[str, Any]) -> Inventory:
    return make_inventory(DRIVER, nodes=[node("n")], slices=[read(item)], classes=[device_class()])


def decide(inventory: Inventory, count: int) -> object:
    return Allocator().allocate(inventory, pod("p", "c"), [claim("c", request(count=count))])


def test_such_a_device_is_given_to_no_pod_and_the_others_are() -> None:
    item = msgspec.json.decode(msgspec.json.encode(pool_slice("n", THREE)))
    item["spec"]["devices"][0]["newField"] = ["*"]
    inventory = world(item)
    (problem,) = inventory.problems()
    assert (problem.device, problem.text) == (
        device_name(THREE, 0),
        "newField: unknown to this version: the device is left alone",
    )
    assert inventory.problem_counts() == (1, 0)
    allocation = decide(inventory, 2)
    assert isinstance(allocation, Allocation)
    given = {result.device for entry in allocation.claims for result in entry.results}
    assert given == {device_name(THREE, 1), device_name(THREE, 2)}
    assert isinstance(decide(inventory, 3), NoFit)


def test_nothing_is_given_of_a_pool_with_a_slice_that_is_not_understood() -> None:
    item = msgspec.json.decode(msgspec.json.encode(pool_slice("n", THREE)))
    item["spec"]["later"] = True
    inventory = world(item)
    (problem,) = inventory.problems()
    assert problem.text == "slice n-1: later: unknown to this version: the pool is left alone"
    assert isinstance(decide(inventory, 1), NoFit)


def test_gpus_that_the_plugin_would_not_be_asked_to_prepare_are_given_to_no_pod() -> None:
    item = msgspec.json.decode(msgspec.json.encode(pool_slice("n", THREE)))
    item["spec"]["skipNodeOperations"] = ["NodePrepareResources", "NodeUnprepareResources"]
    inventory = world(item)
    (problem,) = inventory.problems()
    assert problem.text.startswith("slice n-1: skipNodeOperations: GPUs are of no use unless the plugin prepares them")
    assert isinstance(decide(inventory, 1), NoFit)


def test_the_rules_of_other_drivers_and_of_shares_leave_it_alone_too() -> None:
    item = msgspec.json.decode(msgspec.json.encode(pool_slice("n", THREE)))
    item["spec"]["devices"][0]["newField"] = ["*"]
    pools = gather_pools(SliceIndex([read_slice(read(item))]), node("n"), Features())
    assert isinstance(pools, tuple)
    (pool,) = pools
    assert pool.state is PoolState.USABLE
    assert [one.device.id.device for one in pool.devices] == [device_name(THREE, 1), device_name(THREE, 2)]
    assert [one.id.device for one in pool.elsewhere] == [device_name(THREE, 0)]
    item["spec"]["later"] = True
    pools = gather_pools(SliceIndex([read_slice(read(item))]), node("n"), Features())
    assert isinstance(pools, tuple)
    assert pools[0].state is PoolState.INVALID
    assert pools[0].id.driver == DRIVER
