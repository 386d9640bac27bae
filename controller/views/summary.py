"""The first thing that the page shows: sums, how many pods of each size fit, the first nodes, and the waiting pods.

Its size is bounded whatever the cluster: lists are cut, and say how many entries there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dracaena.controller.views.names import Sight, shown_text
from dracaena.controller.views.node_line import NodeLine
from dracaena.controller.views.snapshot import ClusterSnapshot, WaitingPod

MOST_NODES: Final = 100
"""Nodes of one answer: two or three screens."""

MOST_WAITING: Final = 50
"""Waiting pods of one answer, of those that may be named; all are counted by reason."""

MOST_PRODUCTS: Final = 20
MOST_REMARKS: Final = 4
"""Of one node."""

SIZES: Final = (1, 2, 4, 8, 16)
"""GPUs of a pod, as people ask for them; 16 is shown only if a node has that many."""


def summary(snapshot: ClusterSnapshot, sight: Sight, now_s: float) -> dict[str, Any]:
    """Return the JSON form; docs/page.md promises it. `now_s`: steady time."""
    lines = snapshot.lines
    return {
        "driver": snapshot.driver,
        "nodes": len(lines),
        "devices": sum(line.devices for line in lines),
        "free": sum(line.free for line in lines),
        "fits": fits(lines),
        "products": _products(lines),
        "waiting": None if snapshot.waiting is None else waiting(snapshot.waiting, sight, now_s),
        "firstNodes": nodes(lines),
    }


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


def nodes(lines: Sequence[NodeLine], *, search: str = "", after: str = "") -> dict[str, Any]:
    """Return the first nodes after `after` whose name or product contains `search`, ignoring case."""
    wanted = search.casefold()
    found = [line for line in lines if wanted in line.name.casefold() or wanted in line.product.casefold()]
    shown = [line for line in found if line.name > after][:MOST_NODES]
    more = bool(shown) and shown[-1].name != found[-1].name
    return {"total": len(found), "more": more, "nodes": [_node(line) for line in shown]}


def waiting(pods: Sequence[WaitingPod], sight: Sight, now_s: float) -> dict[str, Any]:
    """Return which pods wait and why; only the number of those that may not be seen."""
    seen = [pod for pod in pods if sight(pod.namespace)]
    return {
        "total": len(pods),
        "reasons": dict(sorted(Counter(pod.reason for pod in pods).items())),
        "hidden": len(pods) - len(seen),
        "pods": [waiting_pod(pod, now_s) for pod in seen[:MOST_WAITING]],
    }


def waiting_pod(pod: WaitingPod, now_s: float) -> dict[str, Any]:
    """Return the JSON form of one waiting pod. `now_s`: steady time."""
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "reason": pod.reason,
        "why": shown_text(pod.why),
        "waitedSeconds": int(max(now_s - pod.since_s, 0.0)),
    }


def _node(line: NodeLine) -> dict[str, Any]:
    return {
        "name": line.name,
        "product": shown_text(line.product),
        "devices": line.devices,
        "free": line.free,
        "cells": line.cells,
        "migCells": line.mig_cells,
        "remarks": [shown_text(remark) for remark in line.remarks[:MOST_REMARKS]],
    }


def _products(lines: Iterable[NodeLine]) -> list[dict[str, Any]]:
    sums: dict[str, list[int]] = {}
    for line in lines:
        known = sums.setdefault(line.product, [0, 0, 0])
        for place, count in enumerate((1, line.devices, line.free)):
            known[place] += count
    most = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:MOST_PRODUCTS]
    return [
        {"product": shown_text(product), "nodes": count, "devices": devices, "free": free}
        for product, (count, devices, free) in most
    ]
