"""The rules that a CDI spec must keep (CDI specification, versions up to 1.1.0), and the version that it needs.

A runtime that finds a bad spec ignores the file and only logs that, and the pod fails with "unresolvable device". So
our specs are checked before they are written, with the rules that runtimes apply; the published JSON schema misses most
of these mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""All CDI versions, oldest first."""

LEAST_VERSION = "0.5.0"
"""Our device names start with a claim UID, hence often with a digit, which CDI allows from 0.5.0 on. Claims whose UID
starts with a letter get the same version: one form of file is easier to reason about than two."""

MAX_CLASS_LENGTH = 63
MAX_VENDOR_LENGTH = 253
MAX_ANNOTATION_BYTES = 256 * 1024
"""Limit for all keys and values of one place together."""
MAX_CLOS_ID_LENGTH = 4095
"""A folder below /sys/fs/resctrl (PATH_MAX less its NUL)."""

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_ANNOTATION_KEY = re.compile(
    r"(?:(?=.{1,253}/)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_NODE_TYPES = ("", "b", "c", "u", "p")
_HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")

_KEYS: Mapping[str, Mapping[str, type]] = {
    "spec": {"cdiVersion": str, "kind": str, "annotations": dict, "containerEdits": dict, "devices": list},
    "device": {"name": str, "annotations": dict, "containerEdits": dict},
    "containerEdits": {
        "env": list,
        "deviceNodes": list,
        "netDevices": list,
        "mounts": list,
        "hooks": list,
        "intelRdt": dict,
        "additionalGids": list,
    },
    "device node": {
        "path": str,
        "hostPath": str,
        "type": str,
        "major": int,
        "minor": int,
        "fileMode": int,
        "permissions": str,
        "uid": int,
        "gid": int,
    },
    "network device": {"hostInterfaceName": str, "name": str},
    "mount": {"hostPath": str, "containerPath": str, "options": list, "type": str},
    "hook": {"hookName": str, "path": str, "args": list, "env": list, "timeout": int},
    "intelRdt": {
        "closID": str,
        "l3CacheSchema": str,
        "memBwSchema": str,
        "enableCMT": bool,
        "enableMBM": bool,
        "schemata": list,
        "enableMonitoring": bool,
    },
}
"""What each kind of object may hold. Runtimes decode strictly: one unknown key, and they ignore the file."""

_TEXTS = frozenset({"env", "args", "options", "schemata"})
"""Lists of texts, wherever they stand."""
_NUMBERS = frozenset({"additionalGids"})
_UNSIGNED_32 = frozenset({"uid", "gid", "fileMode", *_NUMBERS})
"""Unsigned 32-bit numbers; all others are signed 64-bit."""


def least_version(document: Mapping[str, Any]) -> str:
    """Return the oldest CDI version that has everything a spec uses."""
    devices = document.get("devices", ())
    edits = [document.get("containerEdits", {}), *(device.get("containerEdits", {}) for device in devices)]
    rdt = [e["intelRdt"] for e in edits if "intelRdt" in e]
    if any(e.get("netDevices") for e in edits) or any("schemata" in r or "enableMonitoring" in r for r in rdt):
        return "1.1.0"
    if rdt or any(e.get("additionalGids") for e in edits):
        return "0.7.0"
    annotated = document.get("annotations") or any(device.get("annotations") for device in devices)
    if annotated or "." in document.get("kind", "").rpartition("/")[2]:
        return "0.6.0"
    nodes = [node for e in edits for node in e.get("deviceNodes", ())]
    if any(device.get("name", "")[:1].isdigit() for device in devices) or any("hostPath" in node for node in nodes):
        return "0.5.0"
    if any("type" in mount for e in edits for mount in e.get("mounts", ())):
        return "0.4.0"
    return "0.3.0"


def check_spec(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which rules a spec breaks, in a fixed order; nothing for a good one.

    Keys and types come first: if one is wrong, the other rules are not checked.
    """
    return tuple(_form_problems(document)) or tuple(_rule_problems(document))


def _form_problems(document: Mapping[str, Any]) -> Iterator[str]:
    yield from _object_problems("spec", "spec", document)
    places = [("containerEdits", document.get("containerEdits"))]
    for number, device in enumerate(_items(document.get("devices"))):
        yield from _object_problems(f"device {number}", "device", device)
        places.append((f"device {number}", device.get("containerEdits") if isinstance(device, Mapping) else None))
    for place, edits in places:
        if isinstance(edits, Mapping):
            yield from _edits_form_problems(place, edits)


def _edits_form_problems(place: str, edits: Mapping[str, Any]) -> Iterator[str]:
    yield from _object_problems(place, "containerEdits", edits)
    kinds = {"deviceNodes": "device node", "netDevices": "network device", "mounts": "mount", "hooks": "hook"}
    for key, kind in kinds.items():
        for item in _items(edits.get(key)):
            yield from _object_problems(place, kind, item)
    if isinstance(edits.get("intelRdt"), Mapping):
        yield from _object_problems(place, "intelRdt", edits["intelRdt"])


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _object_problems(place: str, kind: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{place}: a {kind} is {value!r}, expected an object"
        return
    known = _KEYS[kind]
    for key in sorted(value, key=str):
        if key not in known:
            yield f"{place}: a {kind} has no key {key}"
        elif type(value[key]) is not known[key]:  # bool is an int for isinstance
            yield f"{place}: {key} of a {kind} is {value[key]!r}, expected {known[key].__name__}"
        else:
            yield from _value_problems(place, key, value[key])


def _value_problems(place: str, key: str, value: Any) -> Iterator[str]:
    items = value if isinstance(value, list) else (value,)
    if key in _TEXTS:
        yield from (f"{place}: {item!r} in {key} is not text" for item in items if not isinstance(item, str))
    elif key in _NUMBERS or type(value) is int:
        allowed = range(1 << 32) if key in _UNSIGNED_32 else range(-1 << 63, 1 << 63)
        for item in items:
            if type(item) is not int or item not in allowed:
                yield f"{place}: {key} {item!r} is not a number from {allowed.start} to {allowed.stop - 1}"


def _rule_problems(document: Mapping[str, Any]) -> Iterator[str]:
    yield from _version_problems(document)
    yield from _kind_problems(document.get("kind", ""))
    yield from _annotation_problems("spec", document.get("annotations", {}))
    yield from _edits_problems("containerEdits", document.get("containerEdits", {}))
    devices = document.get("devices", ())
    if not devices:
        yield "devices: there is none, expected at least one"
    for name in _twice(device.get("name", "") for device in devices):
        yield f"device {name}: the name appears twice"
    for device in devices:
        yield from _device_problems(device)


def _twice(names: Iterable[str]) -> list[str]:
    every = list(names)
    return sorted({name for name in every if every.count(name) > 1})


def _version_problems(document: Mapping[str, Any]) -> Iterator[str]:
    version = document.get("cdiVersion", "")
    if version not in VERSIONS:
        yield f"cdiVersion: {version!r} is unknown, expected one of {', '.join(VERSIONS)}"
        return
    least = least_version(document)
    if VERSIONS.index(version) < VERSIONS.index(least):
        yield f"cdiVersion: {version} is too old for what the spec uses, expected {least} or later"


def _kind_problems(kind: str) -> Iterator[str]:
    vendor, _, device_class = kind.partition("/")
    if len(vendor) > MAX_VENDOR_LENGTH or not _NAME.fullmatch(vendor):
        yield f"kind: vendor {vendor!r} must be a name of at most {MAX_VENDOR_LENGTH} characters"
    if len(device_class) > MAX_CLASS_LENGTH or not _NAME.fullmatch(device_class):
        yield f"kind: class {device_class!r} must be a name of at most {MAX_CLASS_LENGTH} characters"


def _annotation_problems(place: str, annotations: Mapping[str, Any]) -> Iterator[str]:
    for key, value in annotations.items():
        if not _ANNOTATION_KEY.fullmatch(str(key).lower()):
            yield f"{place}: annotation {key!r} is not a qualified name"
        if not isinstance(value, str):
            yield f"{place}: annotation {key!r} is {value!r}, expected a text"
    size_bytes = sum(len(f"{key}{value}".encode()) for key, value in annotations.items())
    if size_bytes > MAX_ANNOTATION_BYTES:
        yield f"{place}: annotations of {size_bytes} bytes, expected at most {MAX_ANNOTATION_BYTES}"


def _device_problems(device: Mapping[str, Any]) -> Iterator[str]:
    name = device.get("name", "")
    if not _DEVICE_NAME.fullmatch(name):
        yield f"device {name!r}: the name must begin and end with a letter or digit, with _.:- inside"
    yield from _annotation_problems(f"device {name}", device.get("annotations", {}))
    edits = device.get("containerEdits", {})
    if not any(edits.values()):
        yield f"device {name}: containerEdits are empty, expected at least one edit"
    yield from _edits_problems(f"device {name}", edits)


def _edits_problems(place: str, edits: Mapping[str, Any]) -> Iterator[str]:
    yield from _env_problems(place, edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        yield from _node_problems(place, node)
    yield from _net_device_problems(place, edits.get("netDevices", ()))
    for mount in edits.get("mounts", ()):
        yield from (f"{place}: a mount has no {key}" for key in ("hostPath", "containerPath") if not mount.get(key))
    for hook in edits.get("hooks", ()):
        yield from _hook_problems(place, hook)
    yield from _rdt_problems(place, edits.get("intelRdt", {}).get("closID", ""))


def _env_problems(place: str, env: Sequence[str]) -> Iterator[str]:
    yield from (f"{place}: env {entry!r} is not NAME=VALUE" for entry in env if entry.find("=") < 1)


def _node_problems(place: str, node: Mapping[str, Any]) -> Iterator[str]:
    if not node.get("path"):
        yield f"{place}: a device node has no path"
    if node.get("type", "") not in _NODE_TYPES:
        yield f"{place}: device node type {node['type']!r}, expected one of b, c, u, p or none"
    permissions = node.get("permissions", "")
    if not set(permissions) <= set("rwm"):
        yield f"{place}: device node permissions {permissions!r}, expected letters of rwm"


def _net_device_problems(place: str, devices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for key in ("hostInterfaceName", "name"):
        if not all(device.get(key) for device in devices):
            yield f"{place}: a network device has no {key}"
        for name in _twice(device.get(key, "") for device in devices):
            yield f"{place}: {key} {name!r} of network devices appears twice"


def _hook_problems(place: str, hook: Mapping[str, Any]) -> Iterator[str]:
    if hook.get("hookName") not in _HOOK_NAMES:
        yield f"{place}: hook name {hook.get('hookName')!r}, expected one of {', '.join(_HOOK_NAMES)}"
    if not hook.get("path"):
        yield f"{place}: a hook has no path"
    yield from _env_problems(place, hook.get("env", ()))


def _rdt_problems(place: str, clos_id: str) -> Iterator[str]:
    """`/` alone is the root group; anything else is one folder below it."""
    if clos_id != "/" and (clos_id in (".", "..") or set(clos_id) & set("/\n") or len(clos_id) > MAX_CLOS_ID_LENGTH):
        yield f"{place}: closID {clos_id[:20]!r} of intelRdt is not the name of a folder"
