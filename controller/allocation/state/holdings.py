"""Who holds which devices, by holder and by pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.objects import ResourceClaim
from dracaena.controller.allocation.legal.books import Holding


@dataclass(frozen=True, slots=True)
class HoldingChange:
    """What changed when a holder came to hold something else."""

    let_go: frozenset[DeviceId | Holding]
    pools: Sequence[str]
    """Our pools of which it holds something else now, sorted."""


class Holdings:
    """Holders are named by their owner's words; a device is free when nobody holds it. A part of its owner.

    Whole devices of ours are one table, shares of them and devices of other drivers another one.
    """

    def __init__(self, driver: str, others: Collection[str]) -> None:
        """`others`: further drivers whose devices count; those of all else are passed over."""
        self._driver = driver
        self._drivers = frozenset((driver, *others))
        self._held_by: dict[str, frozenset[DeviceId]] = {}
        self._holders: dict[str, dict[str, int]] = {}  # pool → device → number of holders
        self._others_by: dict[str, frozenset[Holding]] = {}
        self._others_of: dict[PoolId, dict[Holding, int]] = {}

    def taken(self, pool: str) -> Collection[str]:
        """Return the names of the devices of one of our pools that somebody holds, whole or a share."""
        return self._holders.get(pool, ())

    def in_pool(self, pool: PoolId) -> list[Holding]:
        """Return all that is held of a pool, whoever holds it: shares and their amounts, and whole devices."""
        beside = self._others_of.get(pool, {})
        found = list(beside)
        if pool.driver == self._driver:
            shared = {holding.device.device for holding in beside}
            whole = (name for name in self._holders.get(pool.pool, ()) if name not in shared)
            found += (Holding("", DeviceId(*pool, name)) for name in whole)
        return found

    def holders(self, device: DeviceId, *, but: Collection[str]) -> tuple[str, ...]:
        """Return who holds a device besides `but`, sorted: whole or a share of it.

        Cost: a look-up when nobody else does, else O(holders).
        """
        if device.driver == self._driver:
            count = self._holders.get(device.pool, {}).get(device.device, 0)
            if count <= sum(device in self._held_by.get(name, ()) for name in but):
                return ()
            return tuple(sorted(name for name, held in self._held_by.items() if device in held and name not in but))
        beside = self._others_of.get(device.pool_id, {})
        mine = [self._others_by.get(name, frozenset()) for name in but]
        if not any(held.device == device and not any(held in one for one in mine) for held in beside):
            return ()
        found = (name for name, held in self._others_by.items() if any(one.device == device for one in held))
        return tuple(sorted(name for name in found if name not in but))

    def held_by(self, holder: str) -> tuple[frozenset[DeviceId], frozenset[Holding]]:
        """Return what a holder holds: devices of ours, and shares and devices of other drivers."""
        return self._held_by.get(holder, frozenset()), self._others_by.get(holder, frozenset())

    def by_pool(self) -> Mapping[str, Sequence[str]]:
        """Return who holds something of each of our pools, sorted. Cost: O(all that is held)."""
        found: dict[str, set[str]] = {}
        for holder, devices in self._held_by.items():
            for device in devices:
                found.setdefault(device.pool, set()).add(holder)
        for holder, others in self._others_by.items():
            for holding in others:
                if holding.device.driver == self._driver:
                    found.setdefault(holding.device.pool, set()).add(holder)
        return {pool: sorted(holders) for pool, holders in found.items()}

    def hold(self, holder: str, devices: frozenset[DeviceId], others: frozenset[Holding]) -> HoldingChange:
        """Let `holder` hold just these devices from now on. Cost: O(devices)."""
        let_go, changed = self._hold_others(holder, others)
        before = self._held_by.pop(holder, frozenset())
        if devices:
            self._held_by[holder] = devices
        for device in before - devices:
            self._count(device, -1)
        for device in devices - before:
            self._count(device, 1)
        pools = {device.pool for device in before ^ devices}
        pools |= {one.device.pool for one in changed if one.device.driver == self._driver}
        return HoldingChange((before - devices) | let_go, sorted(pools))

    def check(self) -> None:
        """State what must always hold. For tests: slow."""
        counts: Counter[DeviceId] = Counter(device for devices in self._held_by.values() for device in devices)
        known = {
            DeviceId(self._driver, p, d): count for p, devices in self._holders.items() for d, count in devices.items()
        }
        assert known == dict(counts), "holders are counted"

    def _hold_others(self, holder: str, others: frozenset[Holding]) -> tuple[frozenset[Holding], frozenset[Holding]]:
        """Return what was let go, and all that changed."""
        others = frozenset(holding for holding in others if holding.device.driver in self._drivers)
        before = self._others_by.pop(holder, frozenset())
        if others:
            self._others_by[holder] = others
        for holding, change in (*((old, -1) for old in before - others), *((new, 1) for new in others - before)):
            counts = self._others_of.setdefault(holding.device.pool_id, {})
            counts[holding] = counts.get(holding, 0) + change
            if not counts[holding]:
                del counts[holding]
                if not counts:
                    del self._others_of[holding.device.pool_id]
        return before - others, before ^ others

    def _count(self, device: DeviceId, change: int) -> None:
        counts = self._holders.setdefault(device.pool, {})
        counts[device.device] = counts.get(device.device, 0) + change
        if not counts[device.device]:
            del counts[device.device]
            if not counts:
                del self._holders[device.pool]


def claim_holder(claim: ResourceClaim) -> str:
    """Return the name under which a claim holds what nobody else may get: what the API shows, what is decided and being
    written, and what rests."""
    return claim.key
