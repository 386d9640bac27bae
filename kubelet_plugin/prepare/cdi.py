"""A prepared claim → its CDI spec: the file that tells the container runtime what a container with its GPUs gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dracaena.api.names import ClaimUid, DeviceName, cdi_device_name, cdi_kind
from dracaena.kubelet_plugin.prepare.cdi_rules import VERSIONS, check_spec, least_version
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim, PreparedDevice

LEAST_VERSION = "0.5.0"
"""Our device names start with a claim UID, so often with a digit, which CDI allows from 0.5.0 on. Claims whose UID
starts with a letter get the same version: one form of file is easier to reason about than two."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node as the container sees it, and where the host has it when that is elsewhere."""

    path: str
    host_path: str | None = None


def spec_file_name(driver: str, uid: ClaimUid) -> str:
    """Return the file name of a claim's spec, in the form CDI gives to specs that do not outlive a boot."""
    return f"{cdi_kind(driver)}_{uid}.json".replace("/", "-", 1)


def claim_of_spec_file(driver: str, name: str) -> ClaimUid | None:
    """Return the claim whose spec has this file name, None when it is no spec of a claim of ours."""
    head, tail = spec_file_name(driver, ClaimUid("\0")).split("\0")
    uid = name.removeprefix(head).removesuffix(tail)
    return ClaimUid(uid) if uid and name == f"{head}{uid}{tail}" else None


def qualified_name(driver: str, uid: ClaimUid, device: DeviceName) -> str:
    """Return the id by which the container runtime finds a device: `vendor/class=name`."""
    return f"{cdi_kind(driver)}={cdi_device_name(uid, device)}"


def claim_spec(
    prepared: PreparedClaim,
    driver: str,
    control_nodes: Sequence[DeviceNode],
    dev_root: str,
    driver_edits: DriverEdits | None = None,
) -> bytes:
    """Return the CDI spec of a claim as JSON. `control_nodes` are those that the host has (nvidiactl, nvidia-uvm, …).

    `dev_root` is where the host keeps its /dev tree; containers see the nodes under /dev in any case. `driver_edits`
    bring the driver's libraries and programs. NVIDIA_VISIBLE_DEVICES=void stops the older NVIDIA runtime from
    injecting GPUs of its own choice. Raises ValueError when the result breaks a rule of CDI, which is an error of ours.
    """
    devices = {device.device: device for device in prepared.devices}  # a device may answer two requests
    document: dict[str, Any] = {
        "cdiVersion": LEAST_VERSION,
        "kind": cdi_kind(driver),
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            **({"deviceNodes": [_node(node) for node in control_nodes]} if control_nodes else {}),
            **(driver_edits.document() if driver_edits is not None else {}),
        },
        "devices": [
            {
                "name": cdi_device_name(prepared.claim.uid, name),
                "containerEdits": {"deviceNodes": [_node(node) for node in _nodes(device, dev_root)]},
            }
            for name, device in devices.items()
        ],
    }
    document["cdiVersion"] = max(LEAST_VERSION, least_version(document), key=VERSIONS.index)
    problems = check_spec(document)
    if problems:
        raise ValueError(f"CDI spec of claim {prepared.claim}: {'; '.join(problems)}")
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _nodes(device: PreparedDevice, dev_root: str) -> tuple[DeviceNode, ...]:
    """Return a GPU's own node; for a MIG device its parent's node, and the nodes that open its two instances."""
    access = (f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in device.access_minors)
    return tuple(device_node(path, dev_root) for path in (f"/dev/nvidia{device.minor}", *access))


def device_node(path: str, dev_root: str) -> DeviceNode:
    """Return the node of a container path; only a dev_root other than `/` makes the host's path differ."""
    root = dev_root.rstrip("/")
    return DeviceNode(path, f"{root}{path}" if root else None)


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, **({"hostPath": node.host_path} if node.host_path is not None else {})}
