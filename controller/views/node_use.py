"""What the containers of a node use of its GPUs, as its exporter reports, with names for those who may see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.limits import DNS_SUBDOMAIN_BYTES
from dracaena.controller.views.names import Sight, shown_text

MOST_USES: Final = 2_048
"""Of one node, more than any has: 16 GPUs with 48 clients of MPS each are 768. All are sorted and shown at once."""

_PERCENT = 100


class _Use(msgspec.Struct, frozen=True):
    gpu: int
    processes: int | None = None
    memory_bytes: int | None = None
    sm_ratio: float | None = None


class _Pod(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    containers: dict[str, list[_Use]]


class _Unowned(msgspec.Struct, frozen=True):
    gpu: int
    profile: str | None = None
    processes: int | None = None
    memory_bytes: int | None = None
    busy_ratio: float | None = None


class _Usage(msgspec.Struct, frozen=True):
    node: str
    driver: bool
    pods: list[_Pod]
    unowned: list[_Unowned] = []


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one container uses of one device of a node; None: the driver does not report it."""

    gpu: int
    """Index of the GPU, or of the one that it is a part of."""
    namespace: str
    pod: str
    container: str
    """Empty: several containers of the pod have the device, and we do not know what each uses."""
    processes: int | None
    memory_bytes: int | None
    sm_percent: int | None


@dataclass(frozen=True, slots=True)
class UnownedUse:
    """What runs on a device that no container has, as far as the driver reports."""

    gpu: int
    """Index of the GPU, or of the one that it is a part of."""
    profile: str | None
    """Of a part."""
    processes: int | None
    memory_bytes: int | None
    busy_percent: int | None


@dataclass(frozen=True, slots=True)
class NodeUses:
    """What the GPUs of a node do."""

    uses: tuple[GpuUse, ...]
    unowned: tuple[UnownedUse, ...] = ()
    """Only those on which something runs."""


def read_usage(node: str, data: bytes) -> NodeUses:
    """Read what the exporter of a node serves as /usage, by GPU and name. Raises BadInputError, in words that follow
    the node."""
    try:
        found = msgspec.json.decode(data, type=_Usage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"its exporter's answer cannot be read: {error}") from error
    if found.node != node:
        raise BadInputError(f"its exporter says that it belongs to node {shown_text(found.node)}")
    if not found.driver:
        raise BadInputError("the GPU driver does not answer its exporter")
    _check_size(found)
    uses = [
        GpuUse(
            use.gpu,
            pod.namespace,
            pod.pod,
            container,
            use.processes,
            use.memory_bytes,
            _percent(use.sm_ratio),
        )
        for pod in found.pods
        for container, each in pod.containers.items()
        for use in each
    ]
    unowned = [
        UnownedUse(each.gpu, each.profile, each.processes, each.memory_bytes, _percent(each.busy_ratio))
        for each in found.unowned
        if each.processes or each.busy_ratio
    ]
    return NodeUses(
        tuple(sorted(uses, key=lambda use: (use.gpu, use.namespace, use.pod, use.container))),
        tuple(sorted(unowned, key=lambda use: (use.gpu, use.profile or ""))),
    )


def _percent(ratio: float | None) -> int | None:
    return None if ratio is None else round(_PERCENT * min(max(ratio, 0.0), 1.0))


def use_view(node: str, answer: NodeUses, sight: Sight) -> dict[str, Any]:
    """Return the JSON form of a node's use; docs/page.md promises it."""
    return {
        "node": node,
        "trouble": None,
        "uses": [_use(use, sight) for use in answer.uses],
        "unowned": [
            {
                "gpu": use.gpu,
                "profile": None if use.profile is None else shown_text(use.profile),
                "processes": use.processes,
                "memoryBytes": use.memory_bytes,
                "busyPercent": use.busy_percent,
            }
            for use in answer.unowned
        ],
    }


def no_use_view(node: str, why: str) -> dict[str, Any]:
    """Return the JSON form of a node whose use is not known."""
    return {"node": node, "trouble": shown_text(f"no figures from node {node}: {why}"), "uses": [], "unowned": []}


def _check_size(found: _Usage) -> None:
    """Raise BadInputError if an exporter reports more than there can be: each namespace is asked about and kept, and
    all uses are written in one piece."""
    pods = found.pods
    count = sum(len(each) for pod in pods for each in pod.containers.values()) + len(found.unowned)
    if count > MOST_USES:
        raise BadInputError(f"its exporter reports {count} uses of GPUs; no node has more than {MOST_USES}")
    names = [name for pod in pods for name in (pod.namespace, pod.pod, *pod.containers)]
    longest = max((len(name) for name in (*names, *(each.profile or "" for each in found.unowned))), default=0)
    if longest > DNS_SUBDOMAIN_BYTES:
        raise BadInputError(
            f"its exporter reports a name of {longest} characters; none has more than {DNS_SUBDOMAIN_BYTES}"
        )


def _use(use: GpuUse, sight: Sight) -> dict[str, Any]:
    named = {
        "namespace": shown_text(use.namespace),
        "pod": shown_text(use.pod),
        "container": shown_text(use.container) or None,
    }
    return {
        "gpu": use.gpu,
        **(named if sight(use.namespace) else {"hidden": True}),
        "processes": use.processes,
        "memoryBytes": use.memory_bytes,
        "smPercent": use.sm_percent,
    }
