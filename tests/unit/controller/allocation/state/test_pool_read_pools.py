"""Pools are read once for each of their versions, and what is kept is bounded."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.legal.read.slices import Slice, read_slice
from dracaena.controller.allocation.state import inventory as inventory_module
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.pool import ReadPools
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, node, pool_slice

MACHINE = read_machine("dgx-1v")
SLICES = {name: (read_slice(pool_slice(name, MACHINE)),) for name in ("a", "b", "c")}


def test_the_pool_not_asked_for_longest_goes_first() -> None:
    pools = ReadPools(most_devices=16)
    read: list[str] = []

    def get(name: str) -> None:
        def slices() -> tuple[Slice, ...]:
            read.append(name)
            return SLICES[name]

        pools.get(name, slices)

    for name in ("a", "b", "a", "c", "a", "b"):
        get(name)
    assert read == ["a", "b", "c", "b"]
    pools.forget("a")
    get("a")
    assert read == ["a", "b", "c", "b", "a"]


def test_a_pool_is_read_again_when_its_slice_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(item: object) -> Slice:
        read.append("slice")
        return read_slice(item)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(inventory_module, "read_slice", counted)
    inventory = Inventory(DRIVER)
    inventory.set_node(node("a"))
    first, second = pool_slice("a", MACHINE), pool_slice("a", read_machine("hgx-h100"))
    inventory.change_slice(None, first)
    for _ in range(3):
        source, _ = inventory.reach("a")
    names = {device.id.device for one in source.on_node("a") for device in one.devices}
    assert read == ["slice"]
    inventory.change_slice(first, second)
    source, _ = inventory.reach("a")
    assert read == ["slice", "slice"]
    assert names.isdisjoint(device.id.device for one in source.on_node("a") for device in one.devices)


def test_a_slice_that_cannot_be_read_leaves_the_inventory_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = Inventory(DRIVER)
    inventory.set_node(node("a"))
    first, second = pool_slice("a", MACHINE), pool_slice("a", read_machine("hgx-h100"))
    inventory.change_slice(None, first)
    before = inventory.pool("a")

    def fail(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(inventory_module, "read_pool", fail)
        with pytest.raises(ValueError, match="a bug"):
            inventory.change_slice(first, second)
    assert inventory.pool("a") is before
    assert not inventory.set_node(node("a"))
    inventory.change_slice(first, second)
    assert inventory.pool("a") is not before
