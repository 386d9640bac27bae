"""A GPU is free in `status`, on the page and in the metrics if the allocator gives it, and only then."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.api import availability, gpu_states
from dracaena.api.attributes import UUID
from dracaena.api.device_id import DeviceId
from dracaena.api.device_taints import with_taint_rules
from dracaena.api.gpu_states import FREE
from dracaena.api.holders import holders_of
from dracaena.api.names import taint_key
from dracaena.api.node_status import node_statuses
from dracaena.api.objects import Node, ObjectMeta, Taint
from dracaena.api.resource_objects import (
    Device,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceSlice,
)
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from dracaena.controller.views.node_line import node_line, pool_line
from support.allocation import DRIVER, blocks, claim, device_class, device_name, holding, machine, node, pod, request
from support.allocation import pool_slice as published
from support.seeds import sampled

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"))


def with_devices(page: ResourceSlice, devices: list[Device]) -> ResourceSlice:
    return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=devices))


def taint(rng: random.Random) -> Taint:
    return Taint(key=rng.choice(["xid", "sick"]), value="79", effect=rng.choice(["NoSchedule", "NoExecute", "None"]))


def random_device(rng: random.Random, device: Device) -> Device:
    kind = rng.random()
    if kind < 0.25:
        return msgspec.structs.replace(device, taints=[*device.taints, taint(rng)])
    if kind < 0.3:
        attributes = {name: value for name, value in device.attributes.items() if name != UUID.name}
        return msgspec.structs.replace(device, attributes=attributes)
    if kind < 0.4:
        return msgspec.structs.replace(device, taints=[taint(rng)] if kind < 0.37 else [])
    return msgspec.structs.replace(device, unknown="of tomorrow") if kind < 0.45 else device


def random_pages(rng: random.Random) -> list[ResourceSlice]:
    page = published("n", FOUR)
    page = with_devices(page, [random_device(rng, device) for device in page.spec.devices])
    if rng.random() < 0.1:
        pool = msgspec.structs.replace(page.spec.pool, resource_slice_count=2)
        return [msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, pool=pool))]
    if rng.random() < 0.1:
        pool = msgspec.structs.replace(page.spec.pool, name="second")
        spec = msgspec.structs.replace(page.spec, pool=pool)
        return [page, msgspec.structs.replace(page, metadata=ObjectMeta(name="second"), spec=spec)]
    return [page]


def random_node(rng: random.Random) -> Node:
    key, effect = rng.choice(["node.kubernetes.io/not-ready", "dedicated"]), rng.choice(["NoSchedule", "NoExecute"])
    spec: dict[str, Any] = {"unschedulable": True} if rng.random() < 0.1 else {}
    if rng.random() < 0.15:
        spec["taints"] = [Taint(key=key, value="", effect=effect)]
    return node("n", **spec)


def random_rules(rng: random.Random) -> list[DeviceTaintRule]:
    if rng.random() > 0.2:
        return []
    name = rng.choice([None, device_name(FOUR, 0), device_name(FOUR, 1)])
    selector = DeviceTaintSelector(driver=DRIVER, pool=rng.choice([None, "n", "m"]), device=name)
    spec = DeviceTaintRuleSpec(taint=taint(rng), device_selector=selector)
    return [DeviceTaintRule(metadata=ObjectMeta(name="rule"), spec=spec)]


@pytest.mark.parametrize("first", sampled(range(0, 1_000, 100), 1, 3))
def test_a_gpu_is_free_if_the_allocator_gives_it_and_only_then(first: int) -> None:
    seen = set()
    for seed in range(first, first + 100):
        rng = random.Random(seed)
        pages, on, rules = random_pages(rng), random_node(rng), random_rules(rng)
        held = [holding(claim("held"), "n", device_name(FOUR, rng.randrange(4)))] if rng.random() < 0.4 else []
        tolerating = tuple(one.key for one in on.spec.taints if one.key == "dedicated")
        inventory = make_inventory(
            DRIVER, nodes=[on], slices=pages, classes=[device_class()], claims=held, taint_rules=rules
        )
        (shown,) = node_statuses(DRIVER, [on], pages, held, rules)
        tainted = [with_taint_rules(page, rules) for page in pages]
        line = node_line("n", pool_line(DRIVER, tainted, on), holders_of(DRIVER, held))
        given = gpus_given(inventory, *tolerating)
        assert {gpu.device for gpu in shown.states if gpu.sign == FREE} == given, seed
        assert line.cells.count(FREE) == sum(line.open_gpus) == len(given), seed
        seen.add(len(given))
    assert seen == {0, 1, 2, 3, 4}


def gpus_given(inventory: Inventory, *tolerated: str) -> set[str]:
    """The GPUs that pods without tolerations for devices get, one after the other, until one gets none."""
    tolerations = [{"key": key, "operator": "Exists"} for key in tolerated]
    given: set[str] = set()
    allocator = Allocator()
    for number in range(len(FOUR.gpus) + 1):
        found = allocator.allocate(inventory, pod("p", tolerations=tolerations), [claim(f"c{number}")])
        if not isinstance(found, Allocation):
            break
        results = found.claims[0].results
        given |= {result.device for result in results}
        inventory.hold(f"c{number}", frozenset(DeviceId(DRIVER, one.pool, one.device) for one in results))
    return given


def test_a_device_for_which_claims_need_tolerations_is_not_free_although_they_get_it() -> None:
    sick = Taint(key="sick", value="", effect="NoSchedule")
    page = published("n", FOUR, foreign={0: [sick]})
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[page], classes=[device_class()])
    asked = claim("c", request(tolerations=[{"key": "sick", "operator": "Exists"}], count=4))
    assert isinstance(Allocator().allocate(inventory, pod("p"), [asked]), Allocation)
    (shown,) = node_statuses(DRIVER, [node("n")], [page], [])
    assert [gpu.sign for gpu in shown.states].count(FREE) == 3


@pytest.mark.parametrize("fault", ["effects", "conditions", "unread", "whole pool", "ours"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "effects":
        monkeypatch.setattr(gpu_states, "why_not_given", ignoring_taints(availability.why_not_given))
    elif fault == "conditions":
        monkeypatch.setattr(availability, "why_node_closed", lambda **_: "")
    elif fault == "unread":
        monkeypatch.setattr(availability, "device_problem", lambda _device: None)
    elif fault == "ours":
        monkeypatch.setattr(gpu_states, "why_not_given", with_our_taint(availability.why_not_given))
    else:
        monkeypatch.setattr(gpu_states, "why_nothing_given", lambda _pages, _node: iter(()))
    with pytest.raises(AssertionError):
        test_a_gpu_is_free_if_the_allocator_gives_it_and_only_then(0)


def ignoring_taints(right: Callable[[str, Device], str]) -> Callable[[str, Device], str]:
    def wrong(driver: str, device: Device) -> str:
        ours = [taint for taint in device.taints if taint.key == taint_key(driver)]
        return right(driver, msgspec.structs.replace(device, taints=ours))

    return wrong


def with_our_taint(right: Callable[[str, Device], str]) -> Callable[[str, Device], str]:
    ours = Taint(taint_key(DRIVER), "exclusive", "NoSchedule")
    return lambda driver, device: right(driver, msgspec.structs.replace(device, taints=[*device.taints, ours]))
