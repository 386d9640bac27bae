"""An inventory as it would be if some holders released their devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dracaena.controller.allocation.state.inventory import Inventory


@contextmanager
def emptied(inventory: Inventory, pool: str, holders: Sequence[str], pods: Sequence[str] = ()) -> Iterator[None]:
    """Take a pool's devices from these holders for a while, and let these pods count on no node."""
    before = {holder: inventory.holdings.held_by(holder) for holder in holders}
    counted = {key: found for key in pods if (found := inventory.resources.counted(key)) is not None}
    try:
        for holder, (devices, others) in before.items():
            kept = frozenset(device for device in devices if device.pool != pool)
            elsewhere = frozenset(
                one for one in others if (one.device.driver, one.device.pool) != (inventory.driver, pool)
            )
            inventory.hold(holder, kept, elsewhere)
        for key, (_, taken) in counted.items():
            inventory.resources.place_pod(key, None, taken)
        yield
    finally:
        for holder, (devices, others) in before.items():
            inventory.hold(holder, devices, others)
        for key, (node, taken) in counted.items():
            inventory.resources.place_pod(key, node, taken)
