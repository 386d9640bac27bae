"""Taints of slices and of DeviceTaintRules, and what tolerates them."""

from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector
from dracaena.controller.allocation.legal.read.features import Features
from support.structured import Document, World, claim, device, exactly, published


def tainted(*taints: Document) -> list[Document]:
    return [published("slice-1", device("gpu", taints=list(taints)))]


def taint(key: str = "broken", effect: str = "NoSchedule", value: str = "") -> Document:
    return {"key": key, "effect": effect, "value": value}


def fits(slices: list[Document], *tolerations: Document, **world: Any) -> bool:
    return bool(World(slices, **world).devices(claim(exactly(tolerations=list(tolerations)))))


@pytest.mark.parametrize(
    ("effect", "blocks"), [("NoSchedule", True), ("NoExecute", True), ("None", False), ("FromTheFuture", False)]
)
def test_only_two_effects_keep_a_device_from_being_allocated(effect: str, blocks: bool) -> None:
    assert fits(tainted(taint(effect=effect))) is not blocks


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "key": "broken"}, True),
        ({"operator": "Exists", "key": "other"}, False),
        ({"operator": "Exists", "key": "broken", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "key": "broken", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "key": "broken", "value": "fan"}, True),
        ({"operator": "Equal", "key": "broken", "value": "heat"}, False),
        ({"operator": "Equal", "key": "broken"}, False),
        ({"key": "broken", "value": "fan"}, True),
        ({"operator": "", "key": "broken", "value": "fan"}, True),
        ({"operator": "Like", "key": "broken", "value": "fan"}, False),
        # The API refuses an empty key with Equal; Kubernetes' allocator takes it for any key, and so do we.
        ({"operator": "Equal", "value": "fan"}, True),
    ],
)
def test_a_toleration_covers_a_taint_by_key_value_and_effect(toleration: Document, tolerated: bool) -> None:
    assert fits(tainted(taint(value="fan")), toleration) is tolerated


def test_every_taint_must_be_tolerated_by_some_toleration() -> None:
    slices = tainted(taint("a"), taint("b", "NoExecute"), taint("c", "None"))
    a, b = {"operator": "Exists", "key": "a"}, {"operator": "Exists", "key": "b"}
    assert not fits(slices, a)
    assert not fits(slices, b)
    assert fits(slices, a, b)


def test_with_the_feature_off_taints_mean_nothing() -> None:
    assert fits(tainted(taint()), features=Features(device_taints=False))


def rule(name: str, selector: DeviceTaintSelector | None, effect: str = "NoSchedule") -> DeviceTaintRule:
    spec = DeviceTaintRuleSpec(taint=Taint(key=name, effect=effect), device_selector=selector)
    return DeviceTaintRule(metadata=ObjectMeta(name=name), spec=spec)


SLICES = [
    published("slice-1", device("a"), device("b")),
    published("slice-2", device("a"), pool="pool-2"),
    published("slice-3", device("a"), driver="driver-b"),
]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        (None, 4),
        (DeviceTaintSelector(), 0),
        (DeviceTaintSelector(driver="driver-a"), 1),
        (DeviceTaintSelector(pool="pool-1"), 1),
        (DeviceTaintSelector(driver="driver-a", pool="pool-1", device="a"), 3),
        (DeviceTaintSelector(device="a"), 1),
        (DeviceTaintSelector(driver="driver-c"), 4),
    ],
)
def test_a_rule_taints_the_devices_that_it_selects(selector: DeviceTaintSelector | None, left: int) -> None:
    world = World(SLICES, taint_rules=[rule("maintenance", selector)])
    found = [count for count in range(5) if world.devices(claim(exactly(count=count, device_class="any"))) or not count]
    assert max(found) == left


def test_the_taint_of_a_rule_is_tolerated_like_any_other_and_stands_next_to_the_driver_s_own() -> None:
    slices = tainted(taint("own"))
    rules = [rule("maintenance", DeviceTaintSelector(), "NoExecute")]
    own, maintenance = {"operator": "Exists", "key": "own"}, {"operator": "Exists", "key": "maintenance"}
    assert not fits(slices, own, taint_rules=rules)
    assert not fits(slices, maintenance, taint_rules=rules)
    assert fits(slices, own, maintenance, taint_rules=rules)
