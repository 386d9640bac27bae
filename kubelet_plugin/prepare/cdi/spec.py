"""A CDI spec as it is written, and the rules that it must keep (CDI specification).

A runtime that finds a bad spec ignores the file and only logs that, and the pod fails with "unresolvable device". So
our specs are checked before they are written, with the rules that runtimes apply; the published JSON schema misses most
of these mistakes. Runtimes decode strictly: one unknown key, and they ignore the file. The types here leave no room for
that, and have only what we write; everything in them was there in the version that we state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

VERSION: Final = "0.5.0"
"""Our device names start with a claim UID, hence often with a digit, which CDI allows from 0.5.0 on."""

MAX_CLASS_LENGTH = 63
MAX_VENDOR_LENGTH = 253

CREATE_CONTAINER: Final = "createContainer"
CREATE_RUNTIME: Final = "createRuntime"
"""The stage after the container's cgroup exists and before its root is entered, in the runtime's own namespaces."""

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?", re.ASCII)
"""CDI allows dots in a class from 0.6.0 on."""
_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_HOOK_NAMES = ("prestart", CREATE_RUNTIME, CREATE_CONTAINER, "startContainer", "poststart", "poststop")


class DeviceNode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device node at its path in the container, and at its path on the host if that differs."""

    path: str
    host_path: str | None = None


class Mount(msgspec.Struct, frozen=True, rename="camel"):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...]


class Hook(msgspec.Struct, frozen=True, rename="camel"):
    """A program that the container runtime runs on the host."""

    hook_name: str
    """The stage at which it is run."""
    path: str
    args: tuple[str, ...]
    """The first one is the program's name."""
    env: tuple[str, ...] = ()


class Edits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What containers get."""

    env: tuple[str, ...] = ()
    """`NAME=value`."""
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


NO_EDITS: Final = Edits()


class Device(msgspec.Struct, frozen=True, rename="camel"):
    """What containers with one device get."""

    name: str
    container_edits: Edits


class Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="cdiVersion", tag=VERSION):
    """The content of one file."""

    kind: str
    """`vendor/class`."""
    devices: tuple[Device, ...]
    container_edits: Edits = NO_EDITS
    """What containers with any of the devices get."""


msgspec.json.Decoder(Spec)  # inspected by the thread that imports: see kube.client


def encode_spec(spec: Spec, of: str) -> bytes:
    """Return a spec as JSON. Raises ValueError, saying `of` what it is, if it breaks a rule: that is a bug of ours."""
    problems = list(broken_rules(spec))
    if problems:
        raise ValueError(f"CDI spec of {of}: {'; '.join(problems)}")
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def broken_rules(spec: Spec) -> Iterator[str]:
    """Yield which rules a spec breaks, in a fixed order; nothing for a good one."""
    vendor, _, device_class = spec.kind.partition("/")
    if len(vendor) > MAX_VENDOR_LENGTH or not _NAME.fullmatch(vendor):
        yield f"kind: vendor {vendor!r} must be a name of at most {MAX_VENDOR_LENGTH} characters"
    if len(device_class) > MAX_CLASS_LENGTH or not _CLASS.fullmatch(device_class):
        yield f"kind: class {device_class!r} must be a name of at most {MAX_CLASS_LENGTH} characters"
    names = [device.name for device in spec.devices]
    if not names:
        yield "devices: there is none, expected at least one"
    yield from (f"device {name}: the name appears twice" for name in sorted(set(names)) if names.count(name) > 1)
    yield from _broken_edits("containerEdits", spec.container_edits)
    for device in spec.devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            yield f"device {device.name!r}: the name must begin and end with a letter or digit, with _.:- inside"
        if device.container_edits == NO_EDITS:
            yield f"device {device.name}: containerEdits are empty, expected at least one edit"
        yield from _broken_edits(f"device {device.name}", device.container_edits)


def _broken_edits(place: str, edits: Edits) -> Iterator[str]:
    variables = (*edits.env, *(variable for hook in edits.hooks for variable in hook.env))
    yield from (f"{place}: env {each!r} is not NAME=VALUE" for each in variables if each.find("=") < 1)
    paths = [
        *(("a device node", "path", node.path) for node in edits.device_nodes),
        *(("a mount", "hostPath", mount.host_path) for mount in edits.mounts),
        *(("a mount", "containerPath", mount.container_path) for mount in edits.mounts),
        *(("a hook", "path", hook.path) for hook in edits.hooks),
    ]
    yield from (f"{place}: {what} has no {key}" for what, key, path in paths if not path)
    names = (hook.hook_name for hook in edits.hooks)
    yield from (f"{place}: hook name {name!r}" for name in names if name not in _HOOK_NAMES)
