"""A DeviceTaintRule has the pools read again of which it taints a device, and no others."""

from __future__ import annotations

import random

import msgspec
import pytest

from dracaena.api.objects import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector, ObjectMeta, Taint
from dracaena.controller.allocation.state import inventory as module
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.pool import NodeState
from support.allocation import DRIVER, blocks, machine, node, pool_slice
from support.inventories import filled

NAMES = "abcd"
MACHINES = {name: machine(f"of-{name}", blocks(2, inside="PIX", outside="PIX")) for name in NAMES}
DEVICES = [device.name for name in NAMES for device in pool_slice(name, MACHINES[name]).spec.devices]
SEEDS = 40


def world(*rules: DeviceTaintRule) -> Inventory:
    return filled(
        Inventory(DRIVER),
        nodes=[node(name) for name in NAMES],
        slices=[pool_slice(name, made) for name, made in MACHINES.items()],
        taint_rules=rules,
    )


def rule(name: str, selector: DeviceTaintSelector | None, key: str = "sick") -> DeviceTaintRule:
    return DeviceTaintRule(ObjectMeta(name=name), spec=DeviceTaintRuleSpec(Taint(key, effect="NoSchedule"), selector))


def some_rule(rng: random.Random, name: str) -> DeviceTaintRule:
    selector = DeviceTaintSelector(
        driver=rng.choice([None, DRIVER, "other.example.com"]),
        pool=rng.choice([None, None, *NAMES, "none"]),
        device=rng.choice([None, None, rng.choice(DEVICES)]),
    )
    return rule(name, rng.choice([selector, selector, None]), rng.choice(["sick", "worse"]))


def told(inventory: Inventory) -> list[NodeState | str]:
    return [inventory.state(name) for name in NAMES]


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


@pytest.mark.parametrize("seed", range(SEEDS))
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
        assert change.nodes is not None
        changed = {name for name, old, new in zip(NAMES, before, told(inventory), strict=True) if old != new}
        assert changed <= change.nodes, "who waits for these nodes is told"
        assert change.offer_changed or not changed


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
    assert read[4:] == list(NAMES)


def test_a_write_to_the_status_of_a_rule_reads_nothing(read: list[str]) -> None:
    inventory = world()
    known = rule("one", DeviceTaintSelector(driver=DRIVER))
    inventory.set_taint_rule(known)
    read.clear()
    newer = msgspec.structs.replace(known, metadata=ObjectMeta(name="one", resource_version="7"))
    assert inventory.set_taint_rule(newer).nodes == frozenset()
    assert read == []
