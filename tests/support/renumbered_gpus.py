"""A node whose driver numbers its GPUs by their order, so that one which is missing renumbers those behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dracaena.api.machine import Gpu
from dracaena.api.names import PoolName
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.plugin import (
    DRIVER,
    GPU_MEMORY_BYTES,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    device_name,
    gpu_uuid,
    make_claim,
    make_pod,
)

A = make_claim("a", (5,), reserved_for={"pod-a": "pod-a-uid"})
B = make_claim("b", (6,), reserved_for={"pod-b": "pod-b-uid"})


def pool_of(*gpus: int) -> PublishedPool:
    """The node's GPUs as the driver numbers them: by their order, whatever is missing."""
    found = {
        device_name(k): Gpu(
            uuid=gpu_uuid(k), index=i, minor=i, pci_bus_id=f"0000:{k:02x}:00.0", memory_bytes=GPU_MEMORY_BYTES
        )
        for i, k in enumerate(gpus)
    }
    return PublishedPool(DRIVER, PoolName(NODE), found)


ALL = pool_of(*range(8))
WITHOUT_3 = pool_of(0, 1, 2, 4, 5, 6, 7)


def pods_of(*names: str) -> FakePods:
    return FakePods(*(make_pod(f"pod-{name}", claims={"claim": name}) for name in names))


def node_in(folder: Path, *claims: ResourceClaim, pool: PublishedPool = ALL, **parts: Any) -> PluginNode:
    return PluginNode(folder, FakeClaims(*claims), pods_of(*(c.metadata.name for c in claims)), pool=pool, **parts)


def nodes(node: PluginNode, uid: str) -> list[str] | None:
    """The device nodes in a claim's CDI spec, None without one."""
    data = node.files().get(f"cdi/gpu.dracaena.dev-claim_{uid}.json")
    if data is None:
        return None
    devices = json.loads(data)["devices"]
    return [n["path"] for device in devices for n in device["containerEdits"]["deviceNodes"]]


def moved(node: PluginNode, pool: PublishedPool) -> None:
    node.pool = pool
    node.recovery.follow_devices()
