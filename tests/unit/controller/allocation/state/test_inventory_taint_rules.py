"""A DeviceTaintRule costs the pools of which it taints a device, and one that taints all of ours costs none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import pytest

from dracaena.api.device_taints import with_taint_rules
from dracaena.api.names import taint_key
from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import (
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state import inventory as module
from dracaena.controller.allocation.state.inventory import Inventory, PoolChange
from dracaena.controller.allocation.state.node_state import NodeState
from support.allocation import DRIVER, blocks, claim, device_class, machine, node, pod, pool_slice, request
from support.inventories import filled
from support.seeds import in_tiers, sampled

NAMES = "abcd"
MACHINES = {name: machine(f"of-{name}", blocks(2, inside="PIX", outside="PIX")) for name in NAMES}
DEVICES = [device.name for name in NAMES for device in pool_slice(name, MACHINES[name]).spec.devices]
KEYS = ("sick", "worse")


def published(*mixed: str) -> list[ResourceSlice]:
    """The slices of all nodes; of the `mixed` ones the first device can be shared."""
    return [
        _shared(pool_slice(name, made)) if name in mixed else pool_slice(name, made) for name, made in MACHINES.items()
    ]


def _shared(item: ResourceSlice) -> ResourceSlice:
    first, *others = item.spec.devices
    first = msgspec.structs.replace(first, allow_multiple_allocations=True)
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=[first, *others]))


def inventory_of(slices: Sequence[ResourceSlice], rules: Iterable[DeviceTaintRule] = ()) -> Inventory:
    nodes = [node(name) for name in NAMES]
    return filled(Inventory(DRIVER), nodes=nodes, slices=slices, classes=[device_class()], taint_rules=rules)


def world(*rules: DeviceTaintRule) -> Inventory:
    return inventory_of(published(), rules)


def rule(name: str, selector: DeviceTaintSelector | None, key: str = "sick") -> DeviceTaintRule:
    return DeviceTaintRule(ObjectMeta(name=name), spec=DeviceTaintRuleSpec(Taint(key, effect="NoSchedule"), selector))


def some_rule(rng: random.Random, name: str) -> DeviceTaintRule:
    selector = DeviceTaintSelector(
        driver=rng.choice([None, DRIVER, "other.example.com"]),
        pool=rng.choice([None, None, *NAMES, "none"]),
        device=rng.choice([None, None, rng.choice(DEVICES)]),
    )
    return rule(name, rng.choice([selector, selector, None]), rng.choice(KEYS))


def some_claim(rng: random.Random, number: int) -> ResourceClaim:
    tolerated = [{"key": key, "operator": "Exists"} for key in KEYS if rng.random() < 0.4]
    return claim(f"c{number}", request(count=rng.choice([1, 1, 2]), tolerations=tolerated))


def served(inventory: Inventory, allocator: Allocator, wanted: ResourceClaim) -> tuple[object, ...]:
    """What a pod with one claim gets: the type of the answer, the node and the devices."""
    found = allocator.allocate(inventory, pod("p", wanted.metadata.name), [wanted])
    if not isinstance(found, Allocation):
        return (type(found),)
    return Allocation, found.node, [result.device for entry in found.claims for result in entry.results]


def told(inventory: Inventory) -> list[tuple[NodeState | str, tuple[Taint, ...]]]:
    return [(inventory.state(name), inventory.taints_of_all) for name in NAMES]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pools that were read."""
    pools: list[str] = []
    genuine = Inventory._read_again

    def noted(inventory: Inventory, name: str) -> module.PoolChange:
        pools.append(name)
        return genuine(inventory, name)

    monkeypatch.setattr(Inventory, "_read_again", noted)
    return pools


@pytest.mark.parametrize("seed", sampled(range(400), 10, 60))
def test_after_any_changes_all_is_as_if_it_had_been_read_now(seed: int) -> None:
    rng = random.Random(seed)
    inventory = world()
    rules: dict[str, DeviceTaintRule] = {}
    for _ in range(12):
        name = rng.choice("xyz")
        before = told(inventory)
        if rng.random() < 0.3:
            rules.pop(name, None)
            change = inventory.remove_taint_rule(name)
        else:
            rules[name] = some_rule(rng, name)
            change = inventory.set_taint_rule(rules[name])
        inventory.check()
        assert told(inventory) == told(world(*rules.values()))
        changed = {
            name
            for name, (old, taints_before), (new, taints) in zip(NAMES, before, told(inventory), strict=True)
            if old != new or not set(taints_before) <= set(taints)
        }
        assert change.nodes is None or changed <= change.nodes, "who waits for these nodes is told"
        assert change.offer_changed or not changed


@pytest.mark.parametrize("seeds", in_tiers(range(10), range(10, 60), range(60, 400)))
def test_pods_get_what_they_would_get_if_the_slices_themselves_had_the_taints(seeds: range) -> None:
    answers: Counter[object] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        slices = published(*rng.choice(["", "b", "bd", NAMES]))
        inventory, allocator = inventory_of(slices), Allocator()
        rules: dict[str, DeviceTaintRule] = {}
        for number in range(15):
            name = rng.choice("xyz")
            rules.pop(name, None)
            inventory.remove_taint_rule(name)
            if rng.random() < 0.6:
                everything = rule(name, DeviceTaintSelector(driver=rng.choice([None, DRIVER])), rng.choice(KEYS))
                rules[name] = rng.choice([everything, some_rule(rng, name)])
                inventory.set_taint_rule(rules[name])
            wanted = some_claim(rng, number)
            tainted = inventory_of([with_taint_rules(item, rules.values()) for item in slices])
            found = served(inventory, allocator, wanted)
            assert found == served(tainted, Allocator(), wanted), rules
            answers[found[0]] += 1
        inventory.check()
    assert min(answers.values()) > 3 * len(seeds), "many are served and many are not"
    assert len(answers) == 2


@pytest.mark.parametrize("mixed", ["", "b", NAMES])
def test_a_rule_for_all_devices_keeps_off_who_does_not_tolerate_it_and_nobody_after_it_went(mixed: str) -> None:
    inventory, allocator = inventory_of(published(*mixed)), Allocator()
    strict, tolerant = claim("c", request()), claim("c", request(tolerations=[{"key": "sick", "operator": "Exists"}]))
    for _ in range(2):
        assert served(inventory, allocator, strict)[0] is Allocation
        inventory.set_taint_rule(rule("all", DeviceTaintSelector(driver=DRIVER)))
        assert served(inventory, allocator, strict)[0] is not Allocation
        assert served(inventory, allocator, tolerant)[0] is Allocation
        inventory.remove_taint_rule("all")


@pytest.mark.parametrize(
    "selector", [DeviceTaintSelector(), DeviceTaintSelector(pool="a"), DeviceTaintSelector(device=DEVICES[0])]
)
def test_our_own_taint_in_a_rule_neither_keeps_anybody_off_nor_makes_a_device_ours(
    selector: DeviceTaintSelector,
) -> None:
    ours, wanted = rule("ours", selector, taint_key(DRIVER)), claim("c", request(count=2))
    assert served(world(ours), Allocator(), wanted) == served(world(), Allocator(), wanted)
    untainted = [pool_slice(name, made, taints=()) for name, made in MACHINES.items()]
    assert served(inventory_of(untainted, [ours]), Allocator(), wanted)[0] is not Allocation


def test_a_taint_on_all_devices_helps_nobody_when_it_comes_and_anybody_when_it_goes() -> None:
    inventory = world()
    assert inventory.set_taint_rule(rule("one", DeviceTaintSelector())) == PoolChange(False, (), frozenset())
    inventory.set_taint_rule(rule("two", DeviceTaintSelector(driver=DRIVER)))
    assert not inventory.remove_taint_rule("two").offer_changed, "the other rule says the same"
    assert inventory.set_taint_rule(rule("one", DeviceTaintSelector(), "worse")) == PoolChange(True, (), None)
    assert inventory.set_taint_rule(rule("one", DeviceTaintSelector(pool="b"))).nodes is None
    assert not inventory.remove_taint_rule("none").offer_changed


def test_a_rule_reads_the_pools_that_it_taints(read: list[str]) -> None:
    inventory = world()
    read.clear()
    inventory.set_taint_rule(rule("one", DeviceTaintSelector(driver=DRIVER, pool="b")))
    assert read == ["b"]
    inventory.set_taint_rule(rule("one", DeviceTaintSelector(driver=DRIVER, device=DEVICES[-1])))
    assert read == ["b", "b", "d"], "what it tainted, and what it taints"
    inventory.set_taint_rule(rule("two", DeviceTaintSelector(driver="other.example.com")))
    inventory.set_taint_rule(rule("three", None))
    inventory.remove_taint_rule("two")
    assert len(read) == 3
    inventory.remove_taint_rule("one")
    assert read[3:] == ["d"]
    inventory.set_taint_rule(rule("all", DeviceTaintSelector()))
    inventory.set_taint_rule(rule("all", DeviceTaintSelector(driver=DRIVER)))
    assert len(read) == 4, "that all devices are tainted is no matter of pools"
    inventory.set_taint_rule(rule("all", DeviceTaintSelector(driver=DRIVER, pool="c")))
    assert read[4:] == ["c"]


def test_a_write_to_the_status_of_a_rule_reads_nothing(read: list[str]) -> None:
    inventory = world()
    known = rule("one", DeviceTaintSelector(driver=DRIVER))
    inventory.set_taint_rule(known)
    read.clear()
    newer = msgspec.structs.replace(known, metadata=ObjectMeta(name="one", resource_version="7"))
    assert inventory.set_taint_rule(newer).nodes == frozenset()
    assert read == []
