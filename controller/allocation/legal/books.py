"""Who holds which device: exclusively, or as one of several shares with an amount of each capacity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dracaena.api.device_id import DeviceId
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import DeviceResult
from dracaena.api.sharing import NO_MODE, GpuConfigs, mode_of


@dataclass(frozen=True, slots=True)
class Holding:
    """One device that one claim holds. Access by adminAccess is no holding: it takes nothing from others."""

    holder: str
    """UID of the claim."""
    device: DeviceId
    share_id: str | None = None
    """None: the whole device."""
    consumed: tuple[tuple[str, int], ...] = ()
    """Amount of each capacity that a share takes, in billionths, by name; never below 0."""
    mode: str = ""
    """How a share wants its GPU to be shared (api.sharing); "" for a whole device."""


def holdings_of(holder: str, results: Iterable[DeviceResult], configs: GpuConfigs = ()) -> Iterator[Holding]:
    """Return what the results in a claim's status hold, with the driver's own configs in it. An amount below 0 counts
    as 0: no holding makes room. Raises ValueError for an amount that does not parse."""
    known = tuple(configs)
    for result in results:
        if not result.admin_access:
            consumed = tuple(
                sorted((name, max(0, parse_quantity(text).nano)) for name, text in result.consumed_capacity.items())
            )
            device = DeviceId(result.driver, result.pool, result.device)
            if result.share_id is None:
                yield Holding(holder, device)
            else:
                mode = mode_of(result.request, known) if known else NO_MODE
                yield Holding(holder, device, result.share_id, consumed, mode)


class Books:
    """All holdings of a cluster at one moment. Nothing is refused: what the API says is held is held, even if two
    claims hold one device.
    """

    __slots__ = ("_consumed", "_exclusive", "_modes", "_shared")

    def __init__(self, holdings: Iterable[Holding]) -> None:
        self._exclusive: set[DeviceId] = set()
        self._shared: set[DeviceId] = set()
        self._consumed: dict[DeviceId, dict[str, int]] = {}
        self._modes: dict[DeviceId, set[str]] = {}
        for holding in holdings:
            (self._exclusive if holding.share_id is None else self._shared).add(holding.device)
            if holding.share_id is not None:
                self._modes.setdefault(holding.device, set()).add(holding.mode)
            for name, amount in holding.consumed:
                taken = self._consumed.setdefault(holding.device, {})
                taken[name] = taken.get(name, 0) + amount

    def is_held(self, device: DeviceId) -> bool:
        """Return whether a claim has the whole device."""
        return device in self._exclusive

    def is_shared(self, device: DeviceId) -> bool:
        """Return whether a claim has a share of the device."""
        return device in self._shared

    def modes(self, device: DeviceId) -> Collection[str]:
        """Return how the shares of the device want it to be shared; empty when it has none."""
        return self._modes.get(device, ())

    def consumed(self, device: DeviceId) -> Mapping[str, int]:
        """Return what all shares of the device take together, in billionths by capacity; empty when it has none."""
        return self._consumed.get(device, {})
