from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import DeviceAttribute, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.pool import read_pool
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    OUR_TAINT,
    allocated,
    blocks,
    claim,
    device_class,
    device_name,
    give_back,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.clusters import CLASSES, MACHINES, random_cluster, random_node, random_slice
from support.inventories import free_mask
from support.machines import divided_machine
from support.seeds import sampled

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
SLICE = pool_slice("node-a", FOUR)


def with_pool(item: ResourceSlice, slice_name: str, **pool: Any) -> ResourceSlice:
    spec = msgspec.structs.replace(item.spec, pool=msgspec.structs.replace(item.spec.pool, **pool))
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, name=slice_name), spec=spec)


def with_devices(item: ResourceSlice, name: str, *places: int, **pool: Any) -> ResourceSlice:
    spec = msgspec.structs.replace(item.spec, devices=[item.spec.devices[place] for place in places])
    return with_pool(msgspec.structs.replace(item, spec=spec), name, **pool)


def names(made: Any, *ordinals: int) -> frozenset[DeviceId]:
    return frozenset(DeviceId(DRIVER, "node-a", device_name(made, ordinal)) for ordinal in ordinals)


def test_all_devices_of_a_complete_pool_are_free_by_ordinal() -> None:
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[SLICE])
    pool = inventory.pool("node-a")
    assert pool is not None
    assert pool.devices == tuple(device_name(FOUR, ordinal) for ordinal in range(4))
    assert free_mask(inventory, "node-a") == 0b1111
    assert inventory.problems() == ()


def test_mig_devices_are_no_problem_and_never_free_as_gpus() -> None:
    """The plugin publishes a divided GPU as its parts only; the links of the others still count it."""
    published = pool_slice("node-a", divided_machine())
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[with_devices(published, "s", 0, 2, 3, 4)])
    pool = inventory.pool("node-a")
    assert inventory.problems() == ()
    assert pool is not None
    assert pool.devices == (published.spec.devices[0].name, None)
    assert free_mask(inventory, "node-a") == 0b01


def test_a_device_is_free_when_nobody_holds_it_any_more() -> None:
    taken = holding(claim("c"), "node-a", device_name(FOUR, 1))
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[SLICE], claims=[taken])
    inventory.hold("another", names(FOUR, 1, 3))
    assert free_mask(inventory, "node-a") == 0b0101
    assert inventory.hold("another", names(FOUR, 3)) == names(FOUR, 1)
    assert free_mask(inventory, "node-a") == 0b0101
    assert inventory.release(taken.key) == names(FOUR, 1)
    assert free_mask(inventory, "node-a") == 0b0111
    inventory.check()


def test_what_is_held_before_its_pool_is_known_is_not_free_later() -> None:
    inventory = Inventory(DRIVER)
    inventory.hold("early", names(FOUR, 2) | {DeviceId(DRIVER, "elsewhere", "gpu-x")})
    inventory.set_node(node("node-a"))
    inventory.change_slice(None, SLICE)
    assert free_mask(inventory, "node-a") == 0b1011
    inventory.check()


def test_what_another_driver_holds_and_admin_access_take_nothing() -> None:
    other = holding(claim("c"), "node-a", device_name(FOUR, 0), driver="other.example.com")
    result = {
        "request": "r", "driver": DRIVER, "pool": "node-a", "device": device_name(FOUR, 1), "adminAccess": True,
    }  # fmt: skip
    admin = allocated(claim("d"), {"devices": {"results": [result]}})
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[SLICE], claims=[other, admin])
    assert free_mask(inventory, "node-a") == 0b1111


def test_devices_without_our_taint_are_never_offered() -> None:
    opted_out = pool_slice("node-a", FOUR, taints=())
    wrong_effect = pool_slice("node-b", FOUR, taints=(Taint(OUR_TAINT.key, "true", "None"),))
    inventory = make_inventory(DRIVER, nodes=[node("node-a"), node("node-b")], slices=[opted_out, wrong_effect])
    assert [free_mask(inventory, name) for name in ("node-a", "node-b")] == [0, 0]
    assert dict(inventory.buckets) == {}
    assert dict(inventory.outside) == {"whose GPUs kube-scheduler allocates (no taint of ours)": 2}


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
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=slices)
    assert inventory.pool("node-a") is None
    assert dict(inventory.outside) == {f"without usable GPUs of {DRIVER}": 1}
    assert [text in problem.text for problem in inventory.problems()] == [True]


def test_a_device_that_does_not_decode_is_left_out_and_named() -> None:
    devices = list(SLICE.spec.devices)
    attributes = {**devices[2].attributes, "ordinal": DeviceAttribute(string="two")}
    devices[2] = msgspec.structs.replace(devices[2], attributes=attributes)
    broken = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, devices=devices))
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[broken])
    assert free_mask(inventory, "node-a") == 0b1011
    assert {problem.device for problem in inventory.problems()} == {device_name(FOUR, 2)}
    assert inventory.problem_counts() == (1, 0)


def test_a_node_with_two_pools_is_left_out_and_named_until_one_goes() -> None:
    second = with_pool(SLICE, "second", name="node-a-second")
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[SLICE, second])
    assert inventory.pool("node-a") is None
    assert [problem.pool for problem in inventory.problems()] == ["node-a", "node-a-second"]
    inventory.change_slice(second, None)
    assert free_mask(inventory, "node-a") == 0b1111
    assert inventory.problems() == ()
    inventory.check()


def test_slices_of_other_drivers_are_not_looked_at() -> None:
    foreign = msgspec.structs.replace(SLICE, spec=msgspec.structs.replace(SLICE.spec, driver="other.example.com"))
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[foreign])
    assert inventory.pool("node-a") is None


def test_equal_nodes_stand_in_one_bucket_whatever_their_devices_are_called() -> None:
    other = pool_slice("node-b", machine("other", FOUR.topology))
    late = Taint(key="sick", effect="NoExecute", time_added="2026-01-01T00:00:00Z")
    later = Taint(key="sick", effect="NoExecute", time_added="2026-01-02T00:00:00Z")
    sick = [pool_slice("node-c", FOUR, foreign={1: [late]}), pool_slice("node-d", FOUR, foreign={1: [later]})]
    inventory = make_inventory(
        DRIVER, nodes=[node(f"node-{letter}") for letter in "dcba"], slices=[SLICE, other, *sick]
    )
    buckets = sorted(list(nodes) for by_free in inventory.buckets.values() for nodes in by_free.values())
    assert buckets == [["node-a", "node-b"], ["node-c", "node-d"]]


def test_a_kind_that_no_node_has_any_more_is_forgotten() -> None:
    inventory = make_inventory(DRIVER, nodes=[node("node-a")], slices=[SLICE])
    assert len(inventory._kinds) == 1
    inventory.change_slice(SLICE, None)
    assert len(inventory._kinds) == 0


def state(inventory: Inventory) -> tuple[object, ...]:
    """Everything that a decision can see."""
    buckets = {
        kind: {free: list(nodes) for free, nodes in by_free.items()} for kind, by_free in inventory.buckets.items()
    }
    return buckets, dict(inventory.outside), dict(inventory.classes), list(inventory.nodes.names), inventory.problems()


@pytest.mark.parametrize("seed", sampled(range(200), 5, 40))
def test_whatever_changes_in_whatever_order_the_books_are_those_of_a_fresh_start(seed: int) -> None:
    rng = random.Random(seed)
    inventory = Inventory(DRIVER)
    nodes: dict[str, Any] = {}
    slices: dict[str, ResourceSlice] = {}
    held: dict[str, frozenset[DeviceId]] = {}
    for step in range(120):
        name = f"node-{rng.randrange(6):02}"
        match rng.randrange(6):
            case 0:
                nodes[name] = random_node(rng, name)
                inventory.set_node(nodes[name])
            case 1 if rng.random() < 0.3:
                nodes.pop(name, None)
                inventory.remove_node(name)
            case 2 if rng.random() < 0.3:
                inventory.change_slice(slices.pop(name, None), None)
            case 2 | 3:
                new = random_slice(rng, name, rng.choice(MACHINES))
                if rng.random() < 0.1:  # a pool of another name for a node that may have one already
                    new = with_pool(new, new.metadata.name, name=f"{name}-second")
                inventory.change_slice(slices.get(name), new)
                slices[name] = new
            case _:
                made = rng.choice(MACHINES)
                devices = {
                    DeviceId(DRIVER, name, device_name(made, o)) for o in range(len(made.gpus)) if rng.random() < 0.3
                }
                holder = f"holder-{rng.randrange(8)}"
                before = held.get(holder, frozenset())
                held[holder] = frozenset(devices)
                assert inventory.hold(holder, frozenset(devices)) == before - devices
        if rng.random() < 0.2:
            inventory.nodes.with_label(rng.choice(["zone", "rank", "none"]), ["x", "1"])
        if step % 10 == 0:
            inventory.check()
    inventory.check()
    fresh = make_inventory(DRIVER, nodes=nodes.values(), slices=slices.values())
    for holder, devices_held in held.items():
        fresh.hold(holder, devices_held)
    assert state(inventory) == state(fresh)


@pytest.mark.parametrize("seed", sampled(range(100), 3, 20))
def test_asking_changes_nothing_and_a_decision_that_is_undone_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    inventory = make_inventory(DRIVER, nodes=cluster.nodes, slices=cluster.slices.values(), classes=CLASSES)
    inventory.hold("others", cluster.held)
    allocator = Allocator()
    states, decisions = [state(inventory)], []
    for number in range(30):
        asked = [claim(f"c{number}", request(count=rng.choice([1, 2, 4])))]
        decision = allocator.allocate(inventory, pod("p"), asked)
        assert state(inventory) == states[-1]
        if isinstance(decision, Allocation):
            commit(inventory, decision)
            inventory.check()
            states.append(state(inventory))
            decisions.append(decision)
    assert len({device for made in decisions for device in made.devices(made.claims[0])}) == sum(
        len(made.claims[0].results) for made in decisions
    )
    for decision in reversed(decisions):
        assert state(inventory) == states.pop()
        give_back(inventory, decision)
    assert state(inventory) == states.pop()


def test_classes_are_kept_by_name() -> None:
    inventory = make_inventory(DRIVER, nodes=[], slices=[], classes=[device_class(), device_class("other")])
    inventory.remove_class("other")
    inventory.remove_class("other")
    assert set(inventory.classes) == {DRIVER}
