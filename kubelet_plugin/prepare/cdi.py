"""A prepared claim → its CDI spec, and the rules that a spec must keep (CDI specification, versions up to 1.1.0).

A runtime that finds a bad spec drops the file and only logs it, and the pod fails with "unresolvable device". So a
spec is validated here before it is written, with the rules that runtimes apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dracaena.api.names import ClaimUid, DeviceName, cdi_device_name, cdi_kind
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""All CDI versions, oldest first."""

LEAST_VERSION = "0.5.0"
"""Our device names start with a claim UID, so often with a digit, which CDI allows from 0.5.0 on. Claims whose UID
starts with a letter get the same version: one form of file is easier to reason about than two."""

MAX_CLASS_LENGTH = 63
MAX_VENDOR_LENGTH = 253

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node as the container sees it, and where the host has it when that is elsewhere."""

    path: str
    host_path: str | None = None


def spec_file_name(driver: str, uid: ClaimUid) -> str:
    """Return the file name of a claim's spec, in the form CDI gives to specs that do not outlive a boot."""
    return f"{cdi_kind(driver)}_{uid}.json".replace("/", "-", 1)


def qualified_name(driver: str, uid: ClaimUid, device: DeviceName) -> str:
    """Return the id by which the container runtime finds a device: `vendor/class=name`."""
    return f"{cdi_kind(driver)}={cdi_device_name(uid, device)}"


def device_names(spec: bytes, uid: ClaimUid) -> tuple[DeviceName, ...]:
    """Return which of our devices a claim's spec on disk hands out; none when it is no spec of that claim.

    The last witness of what a claim holds when its checkpoint is broken.
    """
    try:
        names = [device["name"] for device in msgspec.json.decode(spec)["devices"]]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return ()
    prefix = cdi_device_name(uid, DeviceName(""))
    return tuple(DeviceName(n.removeprefix(prefix)) for n in names if isinstance(n, str) and n.startswith(prefix))


def claim_spec(prepared: PreparedClaim, driver: str, control_nodes: Sequence[DeviceNode], dev_root: str) -> bytes:
    """Return the CDI spec of a claim as JSON. `control_nodes` are those that the host has (nvidiactl, nvidia-uvm, …).

    `dev_root` is where the host keeps its /dev tree; containers see the nodes under /dev in any case.
    NVIDIA_VISIBLE_DEVICES=void stops the older NVIDIA runtime from injecting GPUs of its own choice.
    Raises ValueError when the result breaks a rule of CDI, which is an error of ours.
    """
    minors = {device.device: device.minor for device in prepared.devices}  # a device may answer two requests
    document = {
        "cdiVersion": LEAST_VERSION,
        "kind": cdi_kind(driver),
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            **({"deviceNodes": [_node(node) for node in control_nodes]} if control_nodes else {}),
        },
        "devices": [
            {
                "name": cdi_device_name(prepared.claim.uid, device),
                "containerEdits": {"deviceNodes": [_node(device_node(f"/dev/nvidia{minor}", dev_root))]},
            }
            for device, minor in minors.items()
        ],
    }
    document["cdiVersion"] = max(LEAST_VERSION, least_version(document), key=VERSIONS.index)
    problems = check_spec(document)
    if problems:
        raise ValueError(f"CDI spec of claim {prepared.claim}: {'; '.join(problems)}")
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def device_node(path: str, dev_root: str) -> DeviceNode:
    """Return the node of a container path; only a dev_root other than `/` makes the host's path differ."""
    root = dev_root.rstrip("/")
    return DeviceNode(path, f"{root}{path}" if root else None)


def least_version(document: Mapping[str, Any]) -> str:
    """Return the oldest CDI version that has everything this spec uses."""
    edits = [document.get("containerEdits", {}), *(d.get("containerEdits", {}) for d in document["devices"])]
    rdt = [e["intelRdt"] for e in edits if "intelRdt" in e]
    if any(e.get("netDevices") for e in edits) or any("schemata" in r or "enableMonitoring" in r for r in rdt):
        return "1.1.0"
    if rdt or any(e.get("additionalGids") for e in edits):
        return "0.7.0"
    annotated = document.get("annotations") or any(d.get("annotations") for d in document["devices"])
    if annotated or "." in document["kind"].rpartition("/")[2]:
        return "0.6.0"
    nodes = [node for e in edits for node in e.get("deviceNodes", ())]
    if any(d.get("name", "")[:1].isdigit() for d in document["devices"]) or any("hostPath" in node for node in nodes):
        return "0.5.0"
    if any("type" in mount for e in edits for mount in e.get("mounts", ())):
        return "0.4.0"
    return "0.3.0"


def check_spec(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which rules a spec breaks, in a fixed order; nothing for a good one.

    Covers what runtimes refuse of the parts that we write: version, kind, names, env, device nodes, mounts, hooks.
    Any other kind of edit is refused by name, so that nobody adds one without its rules.
    """
    problems = [*_version_problems(document), *_kind_problems(document.get("kind", ""))]
    problems += _edits_problems("containerEdits", document.get("containerEdits", {}))
    devices = document.get("devices", ())
    if not devices:
        problems.append("devices: there is none, expected at least one")
    names = [device.get("name", "") for device in devices]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"device {name}: the name stands twice")
    for device in devices:
        problems += _device_problems(device)
    return tuple(problems)


def _version_problems(document: Mapping[str, Any]) -> list[str]:
    version = document.get("cdiVersion", "")
    if version not in VERSIONS:
        return [f"cdiVersion: {version!r} is unknown, expected one of {', '.join(VERSIONS)}"]
    least = least_version({"kind": "", "devices": [], **document})
    if VERSIONS.index(version) < VERSIONS.index(least):
        return [f"cdiVersion: {version} is too old for what the spec uses, expected {least} or later"]
    return []


def _kind_problems(kind: str) -> list[str]:
    vendor, _, device_class = kind.partition("/")
    problems = []
    if len(vendor) > MAX_VENDOR_LENGTH or not _NAME.fullmatch(vendor):
        problems.append(f"kind: vendor {vendor!r} must be a name of at most {MAX_VENDOR_LENGTH} characters")
    if len(device_class) > MAX_CLASS_LENGTH or not _NAME.fullmatch(device_class):
        problems.append(f"kind: class {device_class!r} must be a name of at most {MAX_CLASS_LENGTH} characters")
    return problems


def _device_problems(device: Mapping[str, Any]) -> list[str]:
    name = device.get("name", "")
    problems = []
    if not _DEVICE_NAME.fullmatch(name):
        problems.append(f"device {name!r}: the name must begin and end with a letter or digit, with _.:- inside")
    edits = device.get("containerEdits", {})
    if not any(edits.values()):
        problems.append(f"device {name}: containerEdits are empty, expected at least one edit")
    return problems + _edits_problems(f"device {name}", edits)


def _edits_problems(place: str, edits: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{place}: {key} is an edit that this check does not know"
        for key in sorted(edits.keys() - {"env", "deviceNodes", "mounts", "hooks"})
    ]
    problems += _env_problems(place, edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        problems += _node_problems(place, node)
    for mount in edits.get("mounts", ()):
        problems += [f"{place}: a mount has no {key}" for key in ("hostPath", "containerPath") if not mount.get(key)]
    for hook in edits.get("hooks", ()):
        if hook.get("hookName") not in _HOOK_NAMES:
            problems.append(f"{place}: hook name {hook.get('hookName')!r}, expected one of {', '.join(_HOOK_NAMES)}")
        if not hook.get("path"):
            problems.append(f"{place}: a hook has no path")
        problems += _env_problems(place, hook.get("env", ()))
    return problems


def _env_problems(place: str, env: Sequence[str]) -> list[str]:
    return [f"{place}: env {entry!r} is not NAME=VALUE" for entry in env if entry.find("=") < 1]


def _node_problems(place: str, node: Mapping[str, Any]) -> list[str]:
    problems = []
    if not node.get("path"):
        problems.append(f"{place}: a device node has no path")
    if node.get("type", "") not in _NODE_TYPES:
        problems.append(f"{place}: device node type {node['type']!r}, expected one of b, c, u, p or none")
    permissions = node.get("permissions", "")
    if permissions != "none" and not set(permissions) <= set("rwm"):
        problems.append(f"{place}: device node permissions {permissions!r}, expected letters of rwm")
    return problems


def _node(node: DeviceNode) -> dict[str, str]:
    return {"path": node.path, **({"hostPath": node.host_path} if node.host_path is not None else {})}
