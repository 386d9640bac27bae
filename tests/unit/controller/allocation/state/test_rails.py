"""The rails of published GPUs are those of the machine; what is published wrongly has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.api.attributes import NIC_LEVELS
from dracaena.api.links import LinkLevel
from dracaena.api.node_status import node_document, node_status
from dracaena.api.rails import rails_of
from dracaena.api.resource_objects import DeviceAttribute, ResourceSlice
from dracaena.api.topology import Nic
from dracaena.controller.allocation.state.node_state import NodeState
from dracaena.controller.allocation.state.rails import rails_of_kind
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, machine, node, pool_slice

NEAR, FAR = LinkLevel.PIX, LinkLevel.SYS
FOUR = machine("four", blocks(4, inside="NV18", outside="NV18"))
NICS = tuple(
    Nic(f"nic{nic}", tuple(NEAR if gpu == own else FAR for gpu in range(4)))
    for nic, own in enumerate((2, None, 3, 0, 1))  # the second is for storage
)
RAILED = replace(FOUR, topology=replace(FOUR.topology, nics=NICS))
RAILS = (3, 4, 0, 2)


def kind_rails(page: ResourceSlice) -> tuple[int | None, ...]:
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[page])
    state = inventory.state("n")
    assert isinstance(state, NodeState)
    return rails_of_kind(state.kind)


def test_the_controller_finds_the_rails_of_the_machine() -> None:
    assert rails_of(RAILED.topology) == RAILS
    assert kind_rails(pool_slice("n", RAILED)) == RAILS
    assert kind_rails(pool_slice("n", FOUR)) == (None,) * 4


def test_status_shows_them() -> None:
    status = node_status(DRIVER, "n", [pool_slice("n", RAILED)], node("n"), {})
    assert [gpu["rail"] for gpu in node_document(status)["gpus"]] == list(RAILS)
    without = node_status(DRIVER, "n", [pool_slice("n", FOUR)], node("n"), {})
    assert not any("rail" in gpu for gpu in node_document(without)["gpus"])


@pytest.mark.parametrize("text", ["", "9", "1€", "1zzzzz", "1-----", "x"])
def test_what_cannot_be_read_has_no_rail(text: str) -> None:
    inventory = make_inventory(DRIVER, nodes=[node("n")], slices=[pool_slice("n", RAILED)])
    state = inventory.state("n")
    assert isinstance(state, NodeState)
    first, *others = state.kind.devices
    assert first is not None
    attributes = {**first.device.attributes, NIC_LEVELS.name: DeviceAttribute(string=text)}
    wrong = replace(first, device=replace(first.device, attributes=attributes))
    assert rails_of_kind(replace(state.kind, devices=(wrong, *others))) == (None, *RAILS[1:])
    assert rails_of_kind(replace(state.kind, devices=(None, *others))) == (None, *RAILS[1:])
