"""Stand-in for what a container runtime does with CDI: find each device by its full name in the spec folder.

It starts nothing. It fails where containerd would fail, and returns what a container would be given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dracaena.api.errors import TemporaryError


class UnresolvableDevicesError(TemporaryError):
    """No spec in the folder names these CDI devices; containerd would refuse to create the container."""


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container would be given: `NAME=value` pairs and device nodes, sorted."""

    env: tuple[str, ...]
    device_nodes: tuple[str, ...]


def resolve(cdi_root: Path, device_ids: Iterable[str]) -> Edits:
    """Return the container edits of all devices. Raises UnresolvableDevicesError with those that no spec has."""
    wanted = sorted(set(device_ids))
    known: dict[str, list[dict[str, Any]]] = {}
    if wanted:
        for spec in _specs(cdi_root):
            for device in spec.get("devices", ()):
                common = spec.get("containerEdits") or {}
                known[f"{spec['kind']}={device['name']}"] = [common, device.get("containerEdits") or {}]
    missing = [name for name in wanted if name not in known]
    if missing:
        raise UnresolvableDevicesError(f"unresolvable CDI devices {', '.join(missing)}")
    edits = [edit for name in wanted for edit in known[name]]
    env = {pair for edit in edits for pair in edit.get("env") or ()}
    nodes = {node["path"] for edit in edits for node in edit.get("deviceNodes") or ()}
    return Edits(tuple(sorted(env)), tuple(sorted(nodes)))


def _specs(cdi_root: Path) -> list[dict[str, Any]]:
    specs = []
    for path in sorted(cdi_root.glob("*.json")):
        try:
            specs.append(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
        except (FileNotFoundError, msgspec.DecodeError):
            continue  # removed just now, or not a spec: the runtime skips those too
    return specs
