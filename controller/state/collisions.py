"""Devices that two claims hold: nothing in the API prevents it, so we look for it.

kube-scheduler may allocate a claim that tolerates our taint, or that also asks for another driver's devices, at the
same moment as we do: 13 of 40 times in a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dracaena.api.device_id import DeviceId
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import claim_holder


@dataclass(frozen=True, slots=True)
class Collision:
    """One device that two claims hold."""

    is_ours: bool
    """Whether it is a device of our driver."""
    device: DeviceId
    rival: ResourceClaim
    """The other claim."""

    @property
    def kind(self) -> str:
        """Label of the metric."""
        return "own" if self.is_ours else "other"

    @property
    def name(self) -> str:
        """The device as a user reads it."""
        return f"{self.device.driver}/{self.device.pool}/{self.device.device}"


def find_collisions(
    claim: ResourceClaim, inventory: Inventory, rival: Callable[[str], ResourceClaim | None]
) -> Iterator[Collision]:
    """Yield the devices of a claim that the server shows in another claim too. Admin access does not count, and two
    shares count only where they take more of their device than it has. `rival` returns the other claim by its key.
    """
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        device = DeviceId(result.driver, result.pool, result.device)
        is_whole = result.share_id is None
        any_part = is_whole or _is_overdrawn(inventory, device)
        if result.admin_access or not (any_part or _is_held_whole(inventory, device)):
            continue
        for name in inventory.holdings.holders(device, but=(claim_holder(claim),)):
            other = rival(name)
            if other is not None and _shows(other, device, whole=not any_part):
                yield Collision(result.driver == inventory.driver, device, other)


def _is_held_whole(inventory: Inventory, device: DeviceId) -> bool:
    """Whether a claim has the whole device: the server shows it, or it is decided, or it rests."""
    held = inventory.holdings.in_pool(device.pool_id)
    return any(one.device == device and one.share_id is None for one in held)


def _is_overdrawn(inventory: Inventory, device: DeviceId) -> bool:
    """Whether the shares of a device of ours take more of it than it has."""
    pool = inventory.pool_named(device.pool) if device.driver == inventory.driver else None
    if pool is None or device.device not in pool.devices:
        return False
    kind = pool.kind.devices[pool.devices.index(device.device)]
    held = [one for one in inventory.holdings.in_pool(device.pool_id) if one.device == device]
    if kind is None or len(held) < 2:
        return False
    taken: Counter[str] = Counter()
    for one in held:
        taken.update(dict(one.consumed))
    return any(taken[one.name] > one.value.nano for one in kind.device.capacities)


def _shows(claim: ResourceClaim, device: DeviceId, *, whole: bool) -> bool:
    """Whether the server shows a device in a claim; with `whole`, not a share of it. What is only decided for a claim,
    or rests, is no collision."""
    results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
    return any(
        DeviceId(result.driver, result.pool, result.device) == device
        for result in results
        if not whole or (result.share_id is None and not result.admin_access)
    )
