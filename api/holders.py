"""Who has which device of a cluster, from the allocations of its claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.sharing import UNREADABLE_MODE, is_all_memory, mode_of

HIDDEN: Final = "somebody of a namespace that you may not see"

Held = Mapping[tuple[str, str], Sequence["Holder"]]
"""Pool and device → who has it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has a device."""

    claim: str
    """`namespace/name`."""
    pods: tuple[str, ...]
    """Names of the pods that it is reserved for, in its namespace."""
    consumed: Mapping[str, str] | None = None
    """What a share takes of each capacity; None: the device is given whole or not at all."""
    mode: str | None = None
    """How a share's GPU is shared (api.sharing)."""
    hidden: bool = False
    """Whether its names are left out, because the reader may not see them."""

    def __str__(self) -> str:
        if self.hidden:
            return HIDDEN
        return f"{self.claim} for {', '.join(self.pods)}" if self.pods else f"{self.claim}, no pod"


def shares_of(holders: Sequence[Holder], capacity: Mapping[str, str]) -> tuple[Holder, ...]:
    """Return the holders of a device that have a part of it and leave some to others. `capacity`: its total."""
    shares = tuple(holder for holder in holders if holder.consumed is not None)
    takes_all = len(shares) == 1 and is_all_memory(shares[0].consumed or {}, capacity)
    return () if takes_all else shares


def holders_of(driver: str, claims: Iterable[ResourceClaim]) -> dict[tuple[str, str], list[Holder]]:
    """Return who has which device, by pool and device, by claim. Admin access takes nothing from others."""
    *_, held = holders_in_turns(driver, claims)
    assert held is not None
    return held


def holders_in_turns(
    driver: str, claims: Iterable[ResourceClaim], *, claims_a_turn: int = 1 << 30
) -> Iterator[dict[tuple[str, str], list[Holder]] | None]:
    """Yield None after each turn, and finally what holders_of() returns."""
    held: dict[tuple[str, str], list[Holder]] = {}
    shared = set()
    for count, claim in enumerate(claims, start=1):
        for device, holder in _devices_of(driver, claim):
            holders = held.setdefault(device, [])
            holders.append(holder)
            if len(holders) > 1:
                shared.add(device)
        if count % claims_a_turn == 0:
            yield None
    for device in shared:
        held[device].sort(key=lambda holder: holder.claim)
    yield held


def _devices_of(driver: str, claim: ResourceClaim) -> Iterator[tuple[tuple[str, str], Holder]]:
    allocation = claim.status.allocation
    if allocation is None:
        return
    pods = tuple(sorted(user.name for user in claim.status.reserved_for if user.resource == "pods"))
    for result in allocation.devices.results:
        if result.driver == driver and not result.admin_access:
            holder = Holder(claim.key, pods)
            if result.share_id is not None:
                holder = replace(holder, consumed=result.consumed_capacity, mode=_mode(driver, claim, result.request))
            yield (result.pool, result.device), holder


def _mode(driver: str, claim: ResourceClaim, request: str) -> str:
    allocation = claim.status.allocation
    if allocation is None or claim.problem:
        return UNREADABLE_MODE
    configs = [(one.requests, one.opaque) for one in allocation.devices.config]
    return mode_of(
        request,
        [(names, opaque.parameters) for names, opaque in configs if opaque is not None and opaque.driver == driver],
    )
