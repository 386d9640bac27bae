"""Which kinds of nodes have a device that selectors match: what is remembered beside a look at each device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.resource_objects import ResourceSlice
from dracaena.controller.allocation.legal.cel_selectors import CelSelectors
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices
from dracaena.controller.allocation.walk.matches import MatchedKinds
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, holding, node, pool_slice
from support.seeds import sampled

BASE: Final = read_machine("dgx-1v")
NAMES: Final = "abcdefgh"
OURS: Final = f'device.driver == "{DRIVER}"'
OF_NOBODY: Final = 'device.driver == "nic.example.com"'
MIG: Final = f'device.attributes["{DRIVER}"].type == "mig"'
SMALL: Final = f'device.attributes["{DRIVER}"].profile == "1g.10gb"'
FAILS: Final = 'device.attributes["nobody.example.com"].size > 3'
OF_ODD_NODES: Final = f'{MIG} && device.attributes["{DRIVER}"].parentUUID.endsWith("1")'
"""Reads what tells equal nodes apart."""

SETS: Final = ((OURS,), (OURS, MIG), (MIG, SMALL), (OF_NOBODY,), (OF_NOBODY, FAILS), (FAILS,), (OF_ODD_NODES,))
STEPS: Final = 40


def divided(number: int, profile: str) -> Machine:
    """A machine with one GPU in two parts, whose UUIDs end with a number of one figure."""
    gpus = tuple(
        replace(gpu, mig_enabled=gpu.index == 4, uuid=f"GPU-0000000{gpu.index}-1111-4000-8000-00000000000{number}")
        for gpu in BASE.gpus
    )
    parts = tuple(
        MigDevice(gpus[4].uuid, f"MIG-0000000{part}-1111-4000-8000-00000000000{number}", part + 1, 0, profile, part, 1)
        for part in range(2)
    )
    return replace(BASE, gpus=gpus, mig_devices=parts)


def machine_of(rng: random.Random) -> Machine:
    return rng.choice((BASE, divided(rng.randrange(2), "1g.10gb"), divided(rng.randrange(2), "2g.20gb")))


def matches(matched: MatchedKinds, inventory: Inventory, expressions: tuple[str, ...]) -> bool:
    devices = inventory.devices_of
    return any(matched.matches(DRIVER, expressions, devices, kind) for kind in inventory.buckets)


def looked_at(selectors: CelSelectors, inventory: Inventory, expressions: tuple[str, ...]) -> bool:
    """The slow obvious version."""
    return any(
        all(selectors.evaluate(expression, device) is not False for expression in expressions)
        for device in inventory.kinds_of_devices()
    )


@pytest.mark.parametrize("seed", sampled(range(100), 4))
def test_the_answer_is_that_of_a_look_at_each_device_while_nodes_come_and_go(seed: int) -> None:
    rng, inventory, slices = random.Random(seed), Inventory(DRIVER), dict[str, ResourceSlice]()
    warm, slow = MatchedKinds(CelSelectors(Features())), CelSelectors(Features())
    for generation in range(STEPS):
        name = rng.choice(NAMES)
        new = pool_slice(name, machine_of(rng), generation=generation) if rng.random() < 0.6 else None
        inventory.set_node(node(name))
        inventory.change_slice(slices.pop(name, None), None)
        if new is not None:
            slices[name] = new
            inventory.change_slice(None, new)
            held = holding(claim(f"c{name}"), name, rng.choice(new.spec.devices).name)
            inventory.hold(claim_holder(held), held_devices(held, DRIVER))
        for expressions in rng.sample(SETS, 4):
            assert matches(warm, inventory, expressions) == looked_at(slow, inventory, expressions), expressions


def test_a_device_is_asked_once_for_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, genuine = list[str](), CelSelectors.evaluate

    def counted(selectors: CelSelectors, expression: str, device: Any) -> Any:
        asked.append(expression)
        return genuine(selectors, expression, device)

    monkeypatch.setattr(CelSelectors, "evaluate", counted)
    inventory, matched = Inventory(DRIVER), MatchedKinds(CelSelectors(Features()))

    def come(*names: str) -> Iterator[int]:
        for name in names:
            inventory.set_node(node(name))
            inventory.change_slice(None, pool_slice(name, divided(NAMES.index(name) % 2, "1g.10gb")))
            asked.clear()
            assert matches(matched, inventory, (MIG, SMALL))
            assert not matches(matched, inventory, (OF_NOBODY,))
            yield len(asked)

    first, *others = come(*NAMES)
    assert first
    assert others == [0] * 7
    assert not matches(matched, inventory, (OF_NOBODY, OF_ODD_NODES))
    asked.clear()
    assert not matches(matched, inventory, (OF_NOBODY, OF_ODD_NODES))
    assert asked, "what reads identities is asked each time"


def test_kinds_that_no_node_has_any_more_are_forgotten() -> None:
    inventory, matched = Inventory(DRIVER), MatchedKinds(CelSelectors(Features()))
    inventory.set_node(node("a"))
    published = pool_slice("a", divided(0, "1g.10gb"))
    inventory.change_slice(None, published)
    matches(matched, inventory, (MIG,))
    (answers,) = matched._known.values()
    assert len(answers.by_kind) == 1
    inventory.change_slice(published, None)
    assert len(answers.by_kind) == 0
