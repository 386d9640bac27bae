"""Who holds which device: exclusively, or as one of several shares with an amount of each capacity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import DeviceResult
from dracaena.api.quantity import parse_quantity
from dracaena.controller.allocation.legal.read.pools import Pool, PoolState
from dracaena.controller.allocation.legal.read.slices import CounterId


@dataclass(frozen=True, slots=True)
class Holding:
    """One device in the hands of one claim. What adminAccess gives is no holding: it takes nothing from others."""

    holder: str
    """UID of the claim."""
    device: DeviceId
    share_id: str | None = None
    """None: the whole device."""
    consumed: tuple[tuple[str, int], ...] = ()
    """Amount of each capacity that a share takes, in billionths, by name."""


def holdings_of(holder: str, results: Iterable[DeviceResult]) -> Iterator[Holding]:
    """Return what the results in a claim's status hold. Raises ValueError for an amount that does not parse."""
    for result in results:
        if not result.admin_access:
            consumed = tuple(
                sorted((name, parse_quantity(text).nano) for name, text in result.consumed_capacity.items())
            )
            device = DeviceId(result.driver, result.pool, result.device)
            yield Holding(holder, device, result.share_id, consumed if result.share_id is not None else ())


class Books:
    """All holdings of a cluster. Asking reads them, `commit` and `undo` are the only ways to change them.

    It has one owner and no lock of its own. Nothing is refused: what the API says is held is held, also when two claims
    hold one device; `check` names such things.
    """

    __slots__ = ("_consumed", "_exclusive", "_shares")

    def __init__(self, holdings: Iterable[Holding] = ()) -> None:
        self._exclusive: dict[DeviceId, list[Holding]] = {}
        self._shares: dict[DeviceId, list[Holding]] = {}
        self._consumed: dict[DeviceId, dict[str, int]] = {}
        self.commit(holdings)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Books):
            return NotImplemented
        return _sorted(self) == _sorted(other) and self._consumed == other._consumed

    __hash__ = None  # type: ignore[assignment]  # changes

    def __iter__(self) -> Iterator[Holding]:
        for held in (self._exclusive, self._shares):
            for holdings in held.values():
                yield from holdings

    def is_held(self, device: DeviceId) -> bool:
        """Return whether somebody has the whole device."""
        return device in self._exclusive

    def is_shared(self, device: DeviceId) -> bool:
        """Return whether somebody has a share of the device."""
        return device in self._shares

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        """Return what all shares of the device take together, in billionths by capacity; empty for no shares."""
        return self._consumed.get(device, {})

    def commit(self, holdings: Iterable[Holding]) -> None:
        """Write the holdings in."""
        for holding in holdings:
            held = self._exclusive if holding.share_id is None else self._shares
            held.setdefault(holding.device, []).append(holding)
            for name, amount in holding.consumed:
                taken = self._consumed.setdefault(holding.device, {})
                taken[name] = taken.get(name, 0) + amount

    def undo(self, holdings: Iterable[Holding]) -> None:
        """Take holdings out again, in any order: the exact inverse of `commit`. Raises KeyError for one not there."""
        for holding in holdings:
            held = self._exclusive if holding.share_id is None else self._shares
            entries = held.get(holding.device, [])
            if holding not in entries:
                raise KeyError(f"{holding.device} is not held by claim {holding.holder}")
            entries.remove(holding)
            if not entries:
                del held[holding.device]
            self._give_back(holding)

    def check(self, pools: Iterable[Pool] = ()) -> tuple[str, ...]:
        """Return what must never be the case and is, one line each, sorted; empty when the books are sound.

        Always: no device has two holders or is held whole beside shares, no share id occurs twice on a device. Of each
        usable pool given: shares take no more than there is of a capacity, and held devices no more than there is of a
        counter.
        """
        return tuple(sorted([*self._double_holdings(), *(line for pool in pools for line in self._excesses(pool))]))

    def _give_back(self, holding: Holding) -> None:
        taken = self._consumed.get(holding.device, {})
        for name, amount in holding.consumed:
            taken[name] -= amount
        # An amount of nothing is only kept while a share says it.
        said = {name for share in self._shares.get(holding.device, ()) for name, _ in share.consumed}
        for name in [name for name in taken if name not in said]:
            del taken[name]
        if not taken:
            self._consumed.pop(holding.device, None)

    def _double_holdings(self) -> Iterator[str]:
        for device, holdings in self._exclusive.items():
            holders = sorted(holding.holder for holding in holdings)
            if len(holders) > 1:
                yield f"device {device} is held by claims {', '.join(holders)}"
            if device in self._shares:
                yield f"device {device} is held whole by claim {holders[0]} and has shares too"
        for device, shares in self._shares.items():
            ids = [share.share_id for share in shares]
            if len(set(ids)) < len(ids):
                yield f"device {device} has two shares of one share id"

    def _excesses(self, pool: Pool) -> Iterator[str]:
        if pool.state is not PoolState.USABLE:
            return
        used: dict[CounterId, int] = {}
        for device in (*(reachable.device for reachable in pool.devices), *pool.elsewhere):
            if self.is_held(device.id) or self.is_shared(device.id):
                for counter, amount in device.consumes:
                    used[counter] = used.get(counter, 0) + amount
            consumed = self.consumed(device.id)
            for capacity in device.capacities:
                if consumed.get(capacity.name, 0) > capacity.value.nano:
                    yield f"device {device.id}: shares take more than there is of capacity {capacity.name}"
        for counter, available in pool.counters:
            if used.get(counter, 0) > available:
                yield f"pool {pool.id}: held devices take more than there is of counter {counter}"


def _sorted(books: Books) -> list[tuple[str, ...]]:
    return sorted((*holding.device, holding.holder, str(holding.share_id), str(holding.consumed)) for holding in books)
