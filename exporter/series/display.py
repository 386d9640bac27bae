"""Who has what, for people: a tree as text, and the same by pod as JSON.

Modelled on gpu-manager's /graph and /usage: the same questions, in the terms of this exporter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dracaena.exporter.series.device_series import ServedDevice
from dracaena.exporter.series.owners import Owner
from dracaena.exporter.series.readings import DeviceUse, GpuQuantity
from dracaena.exporter.series.usage import ContainerUse

SHOWN: Final = frozenset(
    {GpuQuantity.GPU_UTILIZATION_PERCENT, GpuQuantity.MEMORY_USED_BYTES, GpuQuantity.MEMORY_TOTAL_BYTES}
)
"""What must be read for the tree, whatever fields are served."""

NO_ANSWER: Final = "the GPU driver does not answer"
_MIB = 1 << 20
_PERCENT = 100.0


def tree_text(devices: Sequence[ServedDevice] | None, hostname: str) -> str:
    """Return the node, its GPUs, their GPU instances, and below each its owners. None: the driver does not answer."""
    if devices is None:
        return f"{_plain(hostname)}: {NO_ANSWER}\n"
    lines = [f"{_plain(hostname)}: {sum(not _is_part(device) for device in devices)} GPUs"]
    can_be_had = frozenset(device.key for device in _whole(devices))
    for device in devices:
        depth = 1 if _is_part(device) else 0
        lines.append(f"{'   ' * depth}├─ {_device_text(device, can_be_had=device.key in can_be_had)}")
        lines += [f"{'   ' * (depth + 1)}└─ {_owner_text(owner, use)}" for owner, use in _owners(device)]
    return "\n".join(lines) + "\n"


def usage_json(devices: Sequence[ServedDevice] | None, hostname: str, *, owners_known: bool = True) -> bytes:
    """Return what each container has and uses, by pod; `"driver": false` if the driver does not answer. `unowned` lists
    the devices that no container has, with what they do; it is left out if that is not known.
    """
    pods: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for device in devices or ():
        for owner, use in _owners(device):
            containers = pods.setdefault((owner.namespace, owner.pod, owner.pod_uid), {})
            containers.setdefault(owner.container, []).append(_use_document(device, use))
    document = {
        "node": hostname,
        "driver": devices is not None,
        "pods": [
            {"namespace": namespace, "pod": pod, "uid": uid, "containers": containers}
            for (namespace, pod, uid), containers in sorted(pods.items())
        ],
    }
    if owners_known and devices is not None:
        document["unowned"] = [_unowned_document(device) for device in _whole(devices) if not device.owners]
    return json.dumps(document, indent=1).encode() + b"\n"


def _whole(devices: Sequence[ServedDevice]) -> Iterator[ServedDevice]:
    """Yield what containers can have: GPUs that are not divided, and GPU instances."""
    divided = {device.labels["gpu"] for device in devices if _is_part(device)}
    yield from (device for device in devices if _is_part(device) or device.labels["gpu"] not in divided)


def _unowned_document(device: ServedDevice) -> dict[str, Any]:
    use = device.use
    document: dict[str, Any] = {"gpu": int(device.labels["gpu"]), "uuids": list(device.uuids)}
    if _is_part(device):
        document["profile"] = device.labels["GPU_I_PROFILE"]
    if use.processes is not None:
        document["processes"] = len(use.processes)
    if (used := use.values.get(GpuQuantity.MEMORY_USED_BYTES)) is not None:
        document["memory_bytes"] = int(used)
    if (busy := use.values.get(GpuQuantity.GPU_UTILIZATION_PERCENT)) is not None:
        document["busy_ratio"] = busy / _PERCENT
    return document


def _owners(device: ServedDevice) -> Iterator[tuple[Owner, ContainerUse | None]]:
    """Yield the owners of a device, with what they use of it as far as that is known."""
    if device.shared_out is None:
        yield from ((owner, None) for owner in device.owners)
    else:
        yield from device.shared_out.by_owner.items()


def _is_part(device: ServedDevice) -> bool:
    return "GPU_I_ID" in device.labels


def _device_text(device: ServedDevice, *, can_be_had: bool) -> str:
    labels = device.labels
    if _is_part(device):
        name = f"MIG {labels['GPU_I_PROFILE']} (GPU instance {labels['GPU_I_ID']})"
    else:
        name = f"GPU{labels['gpu']} {_plain(labels['modelName'])}"
    facts = [*_facts(device.use), *(["free"] if can_be_had and not device.owners else [])]
    return f"{name}: {', '.join(facts)}" if facts else name


def _facts(use: DeviceUse) -> Iterator[str]:
    busy = use.values.get(GpuQuantity.GPU_UTILIZATION_PERCENT)
    if busy is not None:
        yield f"{busy:.0f} % busy"
    used, total = (use.values.get(q) for q in (GpuQuantity.MEMORY_USED_BYTES, GpuQuantity.MEMORY_TOTAL_BYTES))
    if used is not None:
        yield f"{used / _MIB:.0f}" + (f" of {total / _MIB:.0f} MiB" if total is not None else " MiB")
    if use.processes:
        yield "pids " + " ".join(str(process.pid) for process in use.processes)


def _owner_text(owner: Owner, use: ContainerUse | None) -> str:
    name = _plain(f"{owner.namespace}/{owner.pod}/{owner.container or '*'}")
    if use is None:
        return name
    facts = [f"{use.processes} processes"]
    if use.memory_bytes is not None:
        facts.append(f"{use.memory_bytes / _MIB:.0f} MiB")
    if use.sm_percent is not None:
        facts.append(f"{use.sm_percent:.0f} % of the SMs")
    return f"{name}: {', '.join(facts)}"


def _use_document(device: ServedDevice, use: ContainerUse | None) -> dict[str, Any]:
    document: dict[str, Any] = {"gpu": int(device.labels["gpu"]), "uuids": list(device.uuids)}
    if use is not None:
        document["processes"] = use.processes
        if use.memory_bytes is not None:
            document["memory_bytes"] = use.memory_bytes
        if use.sm_percent is not None:
            document["sm_ratio"] = use.sm_percent / _PERCENT
    return document


def _plain(text: str) -> str:
    """Return a text without control characters: names come from a file, and terminals obey such characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
