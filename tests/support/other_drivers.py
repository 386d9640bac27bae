"""Network cards: devices of another driver, which kube-scheduler allocates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceSlice
from support.allocation import claim, device_class, holding, request

NIC_DRIVER = "nic.example.com"
FAST, SLOW = "fast", "slow"
TAINT = {"key": "cable", "effect": "NoSchedule"}


def cel(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def nic_class(name: str = "nic", *more: str) -> DeviceClass:
    return device_class(name, selectors=cel(f'device.driver == "{NIC_DRIVER}"', *more))


def nic(name: str, speed: str = FAST, *, tainted: bool = False, **fields: Any) -> dict[str, Any]:
    taints = [TAINT] if tainted else []
    return {"name": name, "attributes": {"speed": {"string": speed}}, "taints": taints, **fields}


def nic_slice(pool: str, devices: Iterable[dict[str, Any]], *, count: int = 1, **where: Any) -> ResourceSlice:
    """A slice of a pool of network cards; for the node of the pool's name unless `where` says more."""
    spec = {
        "driver": NIC_DRIVER,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": count},
        "devices": list(devices),
        **(where or {"nodeName": pool}),
    }
    document = {"metadata": {"name": f"nics-{pool}", "uid": f"nics-{pool}", "resourceVersion": "1"}, "spec": spec}
    return ResourceSlice.from_json(msgspec.json.encode(document))


def nic_request(name: str = "nic", count: int = 1, *speeds: str, **fields: Any) -> dict[str, Any]:
    chosen = cel(*(f'device.attributes["{NIC_DRIVER}"].speed == "{speed}"' for speed in speeds))
    return request(name, count, "nic", **({"selectors": chosen} if chosen else {}), **fields)


def held_nic(name: str, pool: str, *devices: str) -> ResourceClaim:
    return holding(claim(name, nic_request()), pool, *devices, driver=NIC_DRIVER)
