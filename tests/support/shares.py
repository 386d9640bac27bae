"""GPUs that are given in shares: slices, requests and claims, as nodes and users write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.resource_objects import DeviceCapacity, ResourceClaim, ResourceSlice
from dracaena.kubelet_plugin.device_kinds.shared_device import shared_device
from support.allocation import allocated, claim, own_config, request


def in_shares(
    item: ResourceSlice,
    gib: int = 80,
    only: Collection[int] | None = None,
    *,
    more_bytes: int = 0,
    others_have_memory: bool = False,
) -> ResourceSlice:
    """The slice as the plugin publishes it, with these of its GPUs (None: all) given in shares. `more_bytes`: memory
    beyond whole MiB. `others_have_memory`: whether GPUs that are not given in shares have the capacity too."""
    plain = {MEMORY_CAPACITY: DeviceCapacity(value=f"{gib}Gi")} if others_have_memory else {}
    devices = [
        shared_device(device, (gib << 30) + more_bytes)
        if only is None or place in only
        else msgspec.structs.replace(device, capacity={**device.capacity, **plain})
        for place, device in enumerate(item.spec.devices)
    ]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def share(name: str, memory: str | None, cores: int | None = None, *, count: int = 1, **fields: Any) -> dict[str, Any]:
    """A request for shares of so many GPUs."""
    wanted = {**({} if memory is None else {"memory": memory}), **({} if cores is None else {"cores": str(cores)})}
    return request(name, count, capacity={"requests": wanted}, **fields)


def sharing(strategy: str | None) -> dict[str, Any]:
    """The parameters of a GpuConfig with this strategy; None: it says nothing of sharing."""
    said = {} if strategy is None else {"sharing": {"strategy": strategy}}
    return {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", **said}


def holding_share(
    name: str, node: str, device: str, consumed: Mapping[str, str], *, mode: str | None = None
) -> ResourceClaim:
    """A claim that has a share of a device of a node."""
    result = {
        "request": "gpus",
        "driver": "gpu.dracaena.dev",
        "pool": node,
        "device": device,
        "shareID": f"00000000-0000-4000-8000-{sum(name.encode()) * 7919 % 16**12:012x}",
        "consumedCapacity": dict(consumed),
    }
    config = [] if mode is None else [{"source": "FromClaim", **own_config(sharing(mode))}]
    return allocated(claim(name), {"devices": {"results": [result], "config": config}})
