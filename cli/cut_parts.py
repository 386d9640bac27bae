"""Draws the GPUs that are cut on demand for users who ask about a claim with parts of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dracaena.api.availability import shown_pages
from dracaena.api.devicepool import decode_pool
from dracaena.api.slice_drawing import cut_gpus

if TYPE_CHECKING:
    from dracaena.api.devicepool import DecodedMig
    from dracaena.api.resource_objects import ResourceClaim, ResourceSlice

DeviceKey = tuple[str, str]
"""Pool and device."""


class CutParts:
    """What claims have of the GPUs of some pools."""

    def __init__(self, driver: str, slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> None:
        """`slices` of other drivers, and claims without devices, do not count."""
        self._pages: dict[str, list[ResourceSlice]] = {}
        for item in slices:
            if item.spec.driver == driver:
                self._pages.setdefault(item.spec.pool.name, []).append(item)
        self._migs: dict[str, tuple[DecodedMig, ...]] = {}
        self._taken: dict[str, set[str]] = {}
        for claim in claims:
            self.take(devices_of(driver, claim))

    def take(self, devices: Iterable[DeviceKey]) -> None:
        """Let a claim have devices, of whatever kind."""
        for pool, device in devices:
            self._taken.setdefault(pool, set()).add(device)

    def lines(self, devices: Iterable[DeviceKey]) -> Iterator[str]:
        """Yield a line for each GPU of which a claim has parts: all that is taken of it, and the claim's parts."""
        own: dict[str, set[str]] = {}
        for pool, device in devices:
            own.setdefault(pool, set()).add(device)
        for pool, names in own.items():
            for gpu in cut_gpus(self._of_pool(pool), self._taken.get(pool, set()) | names):
                parts = [f"{part.profile} at {part.start}" for part in gpu.parts if part.name in names]
                if parts:
                    yield f"{gpu}  {', '.join(parts)}"

    def _of_pool(self, pool: str) -> tuple[DecodedMig, ...]:
        if pool not in self._migs:
            pages = self._pages.get(pool, [])
            current = shown_pages(pages) if pages else []
            self._migs[pool] = decode_pool(device for page in current for device in page.spec.devices).mig_devices
        return self._migs[pool]


def devices_of(driver: str, claim: ResourceClaim) -> Iterator[DeviceKey]:
    """Yield what a claim has of a driver; admin access takes nothing."""
    allocation = claim.status.allocation
    for result in allocation.devices.results if allocation is not None else ():
        if result.driver == driver and not result.admin_access:
            yield result.pool, result.device
