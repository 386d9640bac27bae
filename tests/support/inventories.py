"""Inventories filled as the watches of a cluster fill them, and what tests look at in them."""

from __future__ import annotations

from collections.abc import Iterable

from dracaena.api.objects import Node
from dracaena.api.resource_objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices, other_holdings


def filled(
    inventory: Inventory,
    *,
    nodes: Iterable[Node],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim] = (),
    classes: Iterable[DeviceClass] = (),
    taint_rules: Iterable[DeviceTaintRule] = (),
) -> Inventory:
    """Fill an empty inventory, taint rules first, and return it; `claims` that are allocated hold their devices."""
    for rule in taint_rules:
        inventory.set_taint_rule(rule)
    for node in nodes:
        inventory.set_node(node)
    for item in slices:
        inventory.change_slice(None, item)
    for device_class in classes:
        inventory.set_class(device_class)
    for claim in claims:
        held = held_devices(claim, inventory.driver)
        inventory.hold(claim_holder(claim), held, other_holdings(claim, inventory.driver))
    return inventory


def free_mask(inventory: Inventory, node: str) -> int:
    """The devices of a node's pool that are ours to allocate and not taken, whether the node itself is known or not."""
    pool = inventory.pool(node)
    if pool is None:
        return 0
    held = inventory.holdings.taken(pool.pool)
    return pool.offered & ~sum(1 << ordinal for ordinal, name in enumerate(pool.devices) if name in held)
