"""A prepared claim → its entries in status.devices: which GPU each allocated device is (KEP-4817).

The list has an entry a device, of all drivers; the key is driver, pool, device and share. Ours hold `data`, a free JSON
object of the driver: `uuid`, and where they are known `pciBusID` and, of a MIG device, `parentUUID`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dracaena.kubelet_plugin.prepare.plan import PreparedClaim, PreparedDevice


def with_our_devices(
    entries: Sequence[Mapping[str, Any]], prepared: PreparedClaim, driver: str
) -> list[Mapping[str, Any]] | None:
    """Return status.devices with the entries of a claim's devices as they should be; None: they are so already.

    Entries of other drivers, and of ours for devices of other nodes, stay as they are and where they are. Of our own
    only `data` is set: conditions and network data may be somebody else's.
    """
    wanted = {_key(entry): entry for entry in (_entry(device, driver) for device in prepared.devices)}
    merged: list[Mapping[str, Any]] = []
    for entry in entries:
        ours = wanted.pop(_key(entry), None)
        merged.append(entry if ours is None else {**entry, "data": ours["data"]})
    merged.extend(wanted.values())
    return None if merged == list(entries) else merged


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(field) for field in ("driver", "pool", "device", "shareID"))


def _entry(device: PreparedDevice, driver: str) -> Mapping[str, Any]:
    known = {"uuid": device.uuid, "pciBusID": device.pci_bus_id, "parentUUID": device.parent_uuid}
    return {
        "driver": driver,
        "pool": device.pool,
        "device": device.device,
        **({"shareID": device.share_id} if device.share_id is not None else {}),
        "data": {name: value for name, value in known.items() if value is not None},
    }
