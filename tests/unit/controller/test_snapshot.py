from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.objects import DeviceAttribute, ResourceSlice, Taint
from dracaena.controller.allocation.snapshot import DeviceId, make_snapshot, read_pool
from support.allocation import (
    DRIVER,
    OUR_TAINT,
    allocated,
    blocks,
    claim,
    device_name,
    holding,
    machine,
    node,
    pool_slice,
)
from support.machines import divided_machine

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
SLICE = pool_slice("node-a", FOUR)


def with_pool(item: ResourceSlice, slice_name: str, **pool: Any) -> ResourceSlice:
    spec = msgspec.structs.replace(item.spec, pool=msgspec.structs.replace(item.spec.pool, **pool))
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name=slice_name), spec=spec)


def with_devices(item: ResourceSlice, name: str, *places: int, **pool: Any) -> ResourceSlice:
    spec = msgspec.structs.replace(item.spec, devices=[item.spec.devices[place] for place in places])
    return with_pool(msgspec.structs.replace(item, spec=spec), name, **pool)


def test_all_devices_of_a_complete_pool_are_free_by_ordinal() -> None:
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[SLICE])
    pool = snapshot.pools["node-a"]
    assert pool.devices == tuple(device_name(FOUR, ordinal) for ordinal in range(4))
    assert snapshot.free(pool) == 0b1111
    assert snapshot.problems == ()


def test_mig_devices_are_no_problem_and_never_free_as_gpus() -> None:
    """The plugin publishes a divided GPU as its parts only; the links of the others still count it."""
    published = pool_slice("node-a", divided_machine())
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[with_devices(published, "s", 0, 2, 3, 4)])
    pool = snapshot.pools["node-a"]
    assert snapshot.problems == ()
    assert pool.devices == (published.spec.devices[0].name, None)
    assert snapshot.free(pool) == 0b01


def test_devices_that_are_allocated_or_assumed_are_not_free() -> None:
    taken = holding(claim("c"), "node-a", device_name(FOUR, 1))
    assumed = DeviceId("node-a", device_name(FOUR, 3))
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[SLICE], claims=[taken], assumed=[assumed])
    assert snapshot.free(snapshot.pools["node-a"]) == 0b0101


def test_what_another_driver_holds_and_admin_access_take_nothing() -> None:
    other = holding(claim("c"), "node-a", device_name(FOUR, 0), driver="other.example.com")
    result = {
        "request": "r", "driver": DRIVER, "pool": "node-a", "device": device_name(FOUR, 1), "adminAccess": True,
    }  # fmt: skip
    admin = allocated(claim("d"), {"devices": {"results": [result]}})
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[SLICE], claims=[other, admin])
    assert snapshot.free(snapshot.pools["node-a"]) == 0b1111


def test_devices_without_our_taint_are_never_offered() -> None:
    opted_out = pool_slice("node-a", FOUR, taints=())
    wrong_effect = pool_slice("node-b", FOUR, taints=(Taint(OUR_TAINT.key, "true", "None"),))
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a"), node("node-b")], slices=[opted_out, wrong_effect])
    assert [snapshot.free(snapshot.pools[name]) for name in ("node-a", "node-b")] == [0, 0]


def test_only_the_newest_generation_counts() -> None:
    old = pool_slice("node-a", machine("old", blocks(2, inside="SYS", outside="SYS")), generation=1)
    new = pool_slice("node-a", FOUR, generation=2)
    reading = read_pool(DRIVER, [new, old])
    assert reading.pool is not None
    assert len(reading.pool.devices) == 4


def test_several_slices_make_one_pool() -> None:
    pages = [
        with_devices(SLICE, "a", 2, 3, resource_slice_count=2),
        with_devices(SLICE, "b", 0, 1, resource_slice_count=2),
    ]
    assert read_pool(DRIVER, pages).pool == read_pool(DRIVER, [SLICE]).pool


@pytest.mark.parametrize(
    ("slices", "text"),
    [
        ([with_pool(SLICE, "a", resource_slice_count=2)], "generation 1 has 1 of 2 slices: being updated"),
        ([SLICE, with_pool(SLICE, "a", generation=2, resource_slice_count=2)], "generation 2 has 1 of 2 slices"),
        (
            [with_pool(SLICE, "a", resource_slice_count=2), with_pool(SLICE, "b", resource_slice_count=2)],
            f"device {device_name(FOUR, 0)} is published twice",
        ),
    ],
)
def test_nothing_is_taken_from_a_pool_that_is_incomplete_or_invalid(slices: list[ResourceSlice], text: str) -> None:
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=slices)
    assert dict(snapshot.pools) == {}
    assert [text in problem.text for problem in snapshot.problems] == [True]


def test_a_device_that_does_not_decode_is_left_out_and_named() -> None:
    devices = list(SLICE.spec.devices)
    attributes = {**devices[2].attributes, "ordinal": DeviceAttribute(string="two")}
    devices[2] = msgspec.structs.replace(devices[2], attributes=attributes)
    broken = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, devices=devices))
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[broken])
    assert snapshot.free(snapshot.pools["node-a"]) == 0b1011
    assert {problem.device for problem in snapshot.problems} == {device_name(FOUR, 2)}


def test_a_node_with_two_pools_is_left_out_and_named() -> None:
    second = with_pool(SLICE, "second", name="node-a-second")
    snapshot = make_snapshot(DRIVER, nodes=[node("node-a")], slices=[SLICE, second])
    assert dict(snapshot.pools) == {}
    assert [problem.pool for problem in snapshot.problems] == ["node-a", "node-a-second"]


def test_slices_of_other_drivers_are_not_looked_at() -> None:
    foreign = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, driver="other.example.com"))
    assert dict(make_snapshot(DRIVER, nodes=[], slices=[foreign]).pools) == {}


def test_equal_machines_on_two_nodes_make_equal_boxes() -> None:
    other = pool_slice("node-b", machine("other", FOUR.topology))
    snapshot = make_snapshot(DRIVER, nodes=[], slices=[SLICE, other])
    boxes = {pool.box for pool in snapshot.pools.values()}
    assert len(boxes) == 1
