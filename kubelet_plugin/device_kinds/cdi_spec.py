"""A prepared claim → its CDI spec: the file that tells the container runtime what a container with its GPUs gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dracaena.api.names import ClaimUid, DeviceName, cdi_device_name, cdi_kind
from dracaena.kubelet_plugin.device_kinds.device_kind import NO_EDITS, ContainerEdits, KindOf, edits_of
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import IOMMU_NODE, VFIO_NODE, ClaimNodes, DeviceNode, DrmNode
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.hooks import SymbolicLink, device_hooks
from dracaena.kubelet_plugin.prepare.cdi.rules import LEAST_VERSION, VERSIONS, check_spec, least_version
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice

BY_PATH = "/dev/dri/by-path"


def spec_file_name(driver: str, uid: ClaimUid) -> str:
    """Return the file name of a claim's spec, in the form CDI gives to specs that do not outlive a boot."""
    return f"{cdi_kind(driver)}_{uid}.json".replace("/", "-", 1)


def qualified_name(driver: str, uid: ClaimUid, device: DeviceName, share_id: str | None = None) -> str:
    """Return the id by which the container runtime finds a device or a share of one: `vendor/class=name`."""
    return f"{cdi_kind(driver)}={cdi_device_name(uid, device, share_id)}"


def claim_spec(
    prepared: PreparedClaim,
    driver: str,
    nodes: ClaimNodes,
    gpu_driver_edits: GpuDriverEdits | None = None,
    kind_of: KindOf = kind_of,
) -> bytes:
    """Return the CDI spec of a claim as JSON. `nodes` has an entry for each of its devices.

    `gpu_driver_edits` bring the driver's libraries and programs. NVIDIA_VISIBLE_DEVICES=void stops the older NVIDIA
    runtime from injecting GPUs of its own choice. A pod in a virtual machine gets only the nodes of its GPUs, which its
    runtime turns into devices of that machine: variables would reach the containers inside, where PCI addresses differ
    and `void` would keep the guest's own NVIDIA runtime from its GPUs. Raises ValueError if the result breaks a rule of
    CDI, which is a bug of ours.
    """
    edits = gpu_driver_edits if gpu_driver_edits is not None else GpuDriverEdits()
    # A device may answer two requests; each share of one has edits of its own.
    devices = {(device.device, device.share_id): device for device in prepared.devices}
    document: dict[str, Any] = {
        "cdiVersion": LEAST_VERSION,
        "kind": cdi_kind(driver),
        "containerEdits": {
            **({} if prepared.in_guest else {"env": ["NVIDIA_VISIBLE_DEVICES=void", *edits.environment]}),
            **({"deviceNodes": [_node(node) for node in nodes.control]} if nodes.control else {}),
            **edits.document(),
        },
        "devices": [
            {
                "name": cdi_device_name(prepared.claim.uid, name, share_id),
                "containerEdits": {
                    **_device_edits(device, _given(prepared, nodes.devices[name]), nodes.drm.get(name, ()), edits),
                    **_edits_of_kind(NO_EDITS if prepared.in_guest else _joined(device, prepared, kind_of)),
                },
            }
            for (name, share_id), device in devices.items()
        ],
    }
    document["cdiVersion"] = max(LEAST_VERSION, least_version(document), key=VERSIONS.index)
    problems = check_spec(document)
    if problems:
        raise ValueError(f"CDI spec of claim {prepared.claim}: {'; '.join(problems)}")
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _given(prepared: PreparedClaim, nodes: Sequence[DeviceNode]) -> Sequence[DeviceNode]:
    """Return the nodes that a device's containers get. In a virtual machine these exclude what opens VFIO itself, which
    its runtime has.
    """
    if not prepared.in_guest:
        return nodes
    return [node for node in nodes if node.path not in (VFIO_NODE.path, IOMMU_NODE.path)]


def _joined(device: PreparedDevice, prepared: PreparedClaim, kind_of: KindOf) -> ContainerEdits:
    """Return the edits of one device, its lists merged with those of its request: a container with one device of a
    request has all of them.
    """
    own = edits_of(device, prepared.effects, kind_of)
    if not own.lists:
        return own
    values: dict[str, list[str]] = {name: [] for name, _ in own.lists}
    for other in prepared.devices:
        if other.request_name == device.request_name:
            for name, value in edits_of(other, prepared.effects, kind_of).lists:
                if name in values:
                    values[name].append(value)
    lists = (f"{name}={','.join(dict.fromkeys(found))}" for name, found in values.items())
    return ContainerEdits((*own.environment, *lists), own.mounts)


def _device_edits(
    device: PreparedDevice, nodes: Sequence[DeviceNode], drm: Sequence[DrmNode], edits: GpuDriverEdits
) -> dict[str, Any]:
    """Return the edits of one device. Without the hook tool, links to a node are replaced by further nodes."""
    linked = [(f"{BY_PATH}/{each.by_path}", each.node) for each in drm if each.by_path is not None]
    made = [DeviceNode(path, node.host_path or node.path) for path, node in linked] if edits.tool is None else []
    links = [SymbolicLink(path, f"../{node.path.rpartition('/')[2]}") for path, node in linked]
    limited = device.is_whole_gpu and not device.is_passthrough
    hooks = device_hooks(edits.tool, links, device.uuid if limited else None, edits.gpu_driver_root)
    return {
        "deviceNodes": [_node(node) for node in (*nodes, *(each.node for each in drm), *made)],
        **({"hooks": [hook.document() for hook in hooks]} if hooks else {}),
    }


def _edits_of_kind(edits: ContainerEdits) -> dict[str, Any]:
    mounts = [
        {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(mount.options)}
        for mount in edits.mounts
    ]
    return {
        **({"env": list(edits.environment)} if edits.environment else {}),
        **({"mounts": mounts} if mounts else {}),
    }


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, **({"hostPath": node.host_path} if node.host_path is not None else {})}
