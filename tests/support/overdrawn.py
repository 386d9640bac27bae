"""What must never be the case of devices that claims hold, whoever allocated them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.read.slices import CounterId, Pool, PoolState


def overdrawn(holdings: Iterable[Holding], pools: Iterable[Pool] = ()) -> tuple[str, ...]:
    """Return what must never be the case and is, one line each, sorted; empty when the holdings are sound.

    Always: no device has two holders or is held whole beside shares, no share id occurs twice on a device. Of each
    usable pool given: shares take no more than there is of a capacity, and held devices no more than there is of a
    counter; those of one counter set that name compatibility groups have one in common.
    """
    every = tuple(holdings)
    books = Books(every)
    return tuple(sorted([*_held_twice(every), *(line for pool in pools for line in _excesses(books, pool))]))


def _held_twice(holdings: Iterable[Holding]) -> Iterator[str]:
    by_device: dict[DeviceId, list[Holding]] = {}
    for holding in holdings:
        by_device.setdefault(holding.device, []).append(holding)
    for device, held in by_device.items():
        holders = sorted(holding.holder for holding in held if holding.share_id is None)
        shares = [holding.share_id for holding in held if holding.share_id is not None]
        if len(holders) > 1:
            yield f"device {device} is held by claims {', '.join(holders)}"
        if holders and shares:
            yield f"device {device} is held whole by claim {holders[0]} and has shares too"
        if len(set(shares)) < len(shares):
            yield f"device {device} has two shares of one share id"


def _excesses(books: Books, pool: Pool) -> Iterator[str]:
    if pool.state is not PoolState.USABLE:
        return
    used: dict[CounterId, int] = {}
    groups: dict[str, list[frozenset[str]]] = {}
    for device in (*(reachable.device for reachable in pool.devices), *pool.elsewhere):
        if books.is_held(device.id) or books.is_shared(device.id):
            for counter, amount in device.consumes:
                used[counter] = used.get(counter, 0) + amount
            for name in device.counter_sets:
                groups.setdefault(name, []).append(device.compatibility_groups.get(name, frozenset()))
        consumed = books.consumed(device.id)
        for capacity in device.capacities:
            if consumed.get(capacity.name, 0) > capacity.value.nano:
                yield f"device {device.id}: shares take more than there is of capacity {capacity.name}"
    for counter, available in pool.counters:
        if used.get(counter, 0) > available:
            yield f"pool {pool.id}: held devices take more than there is of counter {counter}"
    for name, every in groups.items():
        if any(every) and not frozenset.intersection(*every):
            yield f"pool {pool.id}: held devices of counter set {name} have no compatibility group in common"
