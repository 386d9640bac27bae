"""The first thing that the page shows: sums, and how many pods of each size fit. Its size is bounded.

The unit is the GPU that was bought: the states of all nodes (api.gpu_states) add up to all GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from dracaena.api.gpu_states import gpu_sums
from dracaena.controller.views.names import shown_text
from dracaena.controller.views.node_line import NodeLine, Room
from dracaena.controller.views.snapshot import ClusterSnapshot, WaitingPod
from dracaena.controller.views.waiting import reasons, waited_s

MOST_PRODUCTS: Final = 100
"""Of one answer; the others are one more entry."""

SIZES: Final = (1, 2, 4, 8, 16)
"""GPUs of a pod, as people ask for them; 16 is shown only if a node has that many."""


def summary(snapshot: ClusterSnapshot, now_s: float) -> dict[str, Any]:
    """Return the JSON form; docs/page.md promises it. `now_s`: steady time."""
    lines = snapshot.lines
    return {
        "driver": snapshot.driver,
        "nodes": len(lines),
        "gpus": gpu_sums(line.cells for line in lines),
        "migSlices": _room(line.mig_slices for line in lines),
        "shareMemoryGiB": _room(line.share_gib for line in lines),
        "fits": fits(lines),
        "products": _products(lines),
        "waiting": None if snapshot.waiting is None else _waiting(snapshot.waiting, now_s),
    }


def _room(rooms: Iterable[Room]) -> dict[str, int]:
    free = total = 0
    for room in rooms:
        free, total = free + room.free, total + room.all
    return {"free": free, "all": total}


def fits(lines: Sequence[NodeLine]) -> list[dict[str, int]]:
    """Return how many pods of each size would find free GPUs on one node, and in how many cases within one NVLink
    group. Only GPUs count: CPU, memory and placement rules are for the scheduler to judge."""
    largest = max((len(line.cells) for line in lines), default=0)
    found = []
    for gpus in SIZES:
        if gpus > max(largest, SIZES[-2]):
            break
        pods = sum(sum(line.open_gpus) // gpus for line in lines)
        linked = sum(group // gpus for line in lines for group in line.open_gpus)
        found.append({"gpus": gpus, "pods": pods, "linked": linked})
    return found


def _waiting(pods: Sequence[WaitingPod], now_s: float) -> dict[str, Any]:
    oldest_s = max((waited_s(pod, now_s) for pod in pods), default=0)
    return {"total": len(pods), "reasons": reasons(pods), "oldestSeconds": oldest_s}


def _products(lines: Iterable[NodeLine]) -> list[dict[str, Any]]:
    """Return the sums of each product, those with the most GPUs first."""
    groups: dict[str, list[NodeLine]] = {}
    for line in lines:
        groups.setdefault(line.product, []).append(line)
    most = sorted(groups.items(), key=lambda item: (-sum(len(line.cells) for line in item[1]), item[0]))
    rest = [line for _, some in most[MOST_PRODUCTS:] for line in some]
    shown = [*most[:MOST_PRODUCTS], *([("other products", rest)] if rest else [])]
    return [
        {"product": shown_text(name), "nodes": len(some), **gpu_sums(line.cells for line in some)}
        for name, some in shown
    ]
