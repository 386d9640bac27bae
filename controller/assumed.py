"""Allocations that were decided and that the watch has not shown yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dracaena.api.objects import ResourceClaim
from dracaena.controller.allocation.holdings import assumed_holder
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.pool import DeviceId, held_devices
from dracaena.controller.allocation.structured.books import Holding


@dataclass(frozen=True, slots=True)
class AssumedAllocation:
    """One claim that is being written, or was."""

    claim_uid: str
    claim_key: str
    pod_key: str
    """The pod that it was decided for."""
    devices: frozenset[DeviceId]
    since_s: float
    """Clock.monotonic() of the decision."""
    allocation_timestamp: str | None = None
    """That of the allocation as the server stored it; None while it is being written, or when no answer came."""
    shown_timestamp: str | None = None
    """That of an allocation of these devices that the watch showed meanwhile: it may be faster than the answer."""
    others: frozenset[Holding] = frozenset()
    """Devices of other drivers, and shares."""

    @property
    def holder(self) -> str:
        """Its name in the inventory."""
        return assumed_holder(self.claim_key, self.claim_uid)


class AssumedAllocations:
    """Keeps devices from other decisions until the API tells the same: they are held in the inventory meanwhile.

    An entry goes when the watch shows just this allocation, or the claim gone (`observe`), or when its writer knows
    that nothing was written (`drop`). Time alone never drops it: a device given twice is worse than one that rests. Nor
    does another allocation of the claim: the watch may be behind, and show one that was taken back before.
    A part of its owner, under the owner's lock.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._by_uid: dict[str, AssumedAllocation] = {}

    def add(self, entries: Iterable[AssumedAllocation]) -> None:
        """Remember decisions."""
        for entry in entries:
            self.drop(entry.claim_uid)
            self._by_uid[entry.claim_uid] = entry
            self._inventory.hold(entry.holder, entry.devices, entry.others)

    def drop(self, claim_uid: str) -> None:
        """Forget a decision that was not written, or was undone."""
        entry = self._by_uid.pop(claim_uid, None)
        if entry is not None:
            self._inventory.release(entry.holder)

    def stored(self, claim: ResourceClaim) -> None:
        """A write was answered with this claim. Let observe() follow with the cache's: it may have it already."""
        entry = self._by_uid.get(claim.metadata.uid)
        if entry is None or claim.status.allocation is None:
            return
        timestamp = claim.status.allocation.allocation_timestamp
        if timestamp is not None and entry.shown_timestamp == timestamp:
            self.drop(entry.claim_uid)  # the watch has shown it, and may show already that it was cleared again
        else:
            self._by_uid[claim.metadata.uid] = replace(entry, allocation_timestamp=timestamp)

    def observe(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take note of what the watch showed; call it after the inventory has it."""
        if new is not None:
            self._take_note(new)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.drop(old.metadata.uid)

    def of_claim(self, claim_uid: str) -> AssumedAllocation | None:
        """Return the entry of a claim."""
        return self._by_uid.get(claim_uid)

    def of_pod(self, pod_key: str) -> tuple[AssumedAllocation, ...]:
        """Return the entries that were decided for a pod, in the order of their claims' keys."""
        mine = [entry for entry in self._by_uid.values() if entry.pod_key == pod_key]
        return tuple(sorted(mine, key=lambda entry: entry.claim_key))

    def older_than(self, monotonic_s: float) -> frozenset[str]:
        """Return the pods with an entry from before a time: something about them wants a look."""
        return frozenset(entry.pod_key for entry in self._by_uid.values() if entry.since_s < monotonic_s)

    def _take_note(self, claim: ResourceClaim) -> None:
        entry = self.of_claim(claim.metadata.uid)
        allocation = claim.status.allocation
        if entry is None or allocation is None or held_devices(claim, self._inventory.driver) != entry.devices:
            return
        if entry.allocation_timestamp == allocation.allocation_timestamp:
            self.drop(entry.claim_uid)
        elif entry.allocation_timestamp is None:
            self._by_uid[entry.claim_uid] = replace(entry, shown_timestamp=allocation.allocation_timestamp)
