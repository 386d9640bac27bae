"""A prepared claim → its entries in status.devices: which GPU each allocated device is (KEP-4817).

The list has one entry per device, of all drivers; the key is driver, pool, device and share. Ours hold `data`, a free
JSON object of the driver: `uuid`; if known, `pciBusID` and, for a MIG device, `parentUUID`; for a share, `memory` (a
Quantity) and `cores` (percent). A GPU for virtual machines has no `uuid`: it is not known here. A vGPU has `mDevUUID`,
or the `pciBusID` of its virtual function, and `parentPCIBusID`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dracaena.api.json_text import deeper_than, set_apart
from dracaena.api.quantity import format_bytes
from dracaena.api.vgpu import is_mdev_uuid
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice


def with_our_devices(
    entries: Sequence[msgspec.Raw], prepared: PreparedClaim, driver: str
) -> list[msgspec.Raw | Mapping[str, Any]] | None:
    """Return status.devices with the entries of a claim's devices as they should be; None if they are already.

    Entries of other drivers, and ours for devices of other nodes, stay unchanged and in place. In our own entries only
    `data` is set: conditions and network data may be somebody else's.
    """
    wanted = {_key(entry): entry for entry in (_entry(device, driver) for device in prepared.devices)}
    merged: list[msgspec.Raw | Mapping[str, Any]] = []
    for entry in entries:
        # `data` belongs to its driver, may be nested deeply, and no other field of an entry has that name.
        left, data = set_apart(bytes(entry), ["data"])
        fields = msgspec.json.decode(left, type=dict[str, Any])
        ours = wanted.pop(_key(fields), None)
        merged.append(entry if ours is None or _is(data, ours["data"]) else {**fields, "data": ours["data"]})
    changed = bool(wanted) or any(not isinstance(entry, msgspec.Raw) for entry in merged)
    return [*merged, *wanted.values()] if changed else None


def _is(texts: Sequence[bytes], wanted: Mapping[str, Any]) -> bool:
    if len(texts) != 1 or deeper_than(texts[0], 1):
        return False
    try:
        return bool(msgspec.json.decode(texts[0]) == wanted)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(field) for field in ("driver", "pool", "device", "shareID"))


def _entry(device: PreparedDevice, driver: str) -> Mapping[str, Any]:
    known: dict[str, Any] = {
        "uuid": None if device.is_passthrough else device.uuid or None,
        "pciBusID": device.pci_bus_id,
        "parentUUID": device.parent_uuid,
    }
    if device.is_vgpu:
        name = "mDevUUID" if is_mdev_uuid(device.uuid) else "pciBusID"
        known = {name: device.uuid, "parentPCIBusID": device.pci_bus_id}
    if device.share_id is not None:
        known["memory"] = None if device.memory_bytes is None else format_bytes(device.memory_bytes)
        known["cores"] = device.cores
    return {
        "driver": driver,
        "pool": device.pool,
        "device": device.device,
        **({"shareID": device.share_id} if device.share_id is not None else {}),
        "data": {name: value for name, value in known.items() if value is not None},
    }
