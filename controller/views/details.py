"""What the page shows of one node and of one pod, and what it serves as /graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dracaena.api.decision import Decision, describe, part_in_words, read_decision, value_in_words
from dracaena.api.errors import BadInputError
from dracaena.api.gpu_states import FREE, NOT_PUBLISHED, GpuState
from dracaena.api.groups import lowest_in_group
from dracaena.api.holders import Holder
from dracaena.api.node_status import DeviceStatus, PublishedNode, counted, gpu_label, label_of, tree_lines
from dracaena.api.objects import Pod, Taint
from dracaena.api.pod_states import POD_STATES, pod_state
from dracaena.api.rails import rails_of
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.sharing import amounts_in_words, is_all_memory, memory_percent
from dracaena.api.slice_drawing import DrawnGpu
from dracaena.api.topology import Topology
from dracaena.api.tree import TreeNode, build_tree
from dracaena.controller.views.names import Sight, shown_text, without_names
from dracaena.controller.views.node_line import NodeLine
from dracaena.controller.views.snapshot import ClusterSnapshot, WaitingPod
from dracaena.controller.views.waiting import waited_s, why_and_help
from dracaena.controller.views.workloads import workload_of

MOST_TREES: Final = 50
"""Nodes that /graph draws as trees: some 100 KiB. Beyond that each gets one line, and ?node=NAME draws its tree."""

MOST_GPUS: Final = 32
"""Of a node that /graph draws next to others: 16, each of them for containers and for virtual machines. What a tree
costs grows with the square, so a node that publishes more gets one line, too, and ?node=NAME draws it."""


def node_view(node: PublishedNode, line: NodeLine, sight: Sight) -> dict[str, Any]:
    """Return the JSON form of one node; docs/page.md promises it. `line` is the same node in one line."""
    shown = without_names(node, sight)
    topology = shown.machine.topology
    groups = _nvlink_groups(topology)
    devices = {mig.name: mig for mig in shown.migs}
    indexes = {gpu.uuid: gpu.index for gpu in reversed(shown.machine.gpus)}
    return {
        "name": shown.name,
        "product": shown_text(shown.product),
        "levels": [{"level": level, "name": shown_text(name)} for level, name in line.levels],
        "free": line.cells.count(FREE),
        "all": len(line.cells),
        "remarks": [shown_text(remark) for remark in shown.remarks],
        "tree": _tree(build_tree(topology)),
        "gpus": [
            {**_gpu(shown, ordinal, groups), "sign": line.cells[ordinal : ordinal + 1] or NOT_PUBLISHED}
            for ordinal in range(topology.gpu_count)
        ],
        "partitions": shown.linked_sets,
        "matrix": [list(row) for row in topology.matrix()],
        "migs": [_device(part) for part in (*shown.migs, *shown.vgpus) if part.start is None],
        "cut": [_cut(gpu, indexes.get(gpu.uuid), devices) for gpu in shown.cut],
    }


def _nvlink_groups(topology: Topology) -> Sequence[int | None]:
    """Return the number of each GPU's NVLink group, from 1 in the order of ordinals; None: the GPU has no NVLink."""
    count = topology.gpu_count
    joins = [(ordinal, peer) for ordinal in range(count) for peer in topology.nvlink_peers(ordinal)]
    lowest = lowest_in_group(count, joins)
    linked = {ordinal for pair in joins for ordinal in pair}
    numbers = {low: place for place, low in enumerate(sorted({lowest[each] for each in linked}), start=1)}
    return [numbers[lowest[ordinal]] if ordinal in linked else None for ordinal in range(count)]


def _tree(node: TreeNode) -> dict[str, Any]:
    if node.is_leaf:
        return {"gpu": node.ordinals[0]}
    level = None if node.level is None else node.level.name
    return {"level": level, "assumed": node.assumed, "children": [_tree(child) for child in node.children]}


def _gpu(node: PublishedNode, ordinal: int, groups: Sequence[int | None]) -> dict[str, Any]:
    gpu, device = node.machine.gpus[ordinal], node.gpus.get(ordinal)
    state = node.states[ordinal] if ordinal < len(node.states) else GpuState(NOT_PUBLISHED)
    found: dict[str, Any] = {
        "index": gpu.index,
        "numaNode": node.machine.topology.numa_nodes[ordinal],
        "rail": rails_of(node.machine.topology)[ordinal],
        "nvlinkGroup": groups[ordinal],
        "state": state.name,
        "why": shown_text(state.why) or None,
        "label": shown_text(gpu_label(state, device)),
        "taints": [{"what": shown_text(_what(taint)), "effect": taint.effect} for taint in state.taints],
    }
    if device is None:
        return {**found, "heldBy": []}
    product = {"product": shown_text(gpu.product_name or ""), "uuid": shown_text(gpu.uuid)}
    return {**_device(device), **product, **found}


def _what(taint: Taint) -> str:
    """Return what a taint says, without the domain of its key: `xid=79`."""
    name = taint.key.rpartition("/")[2]
    return f"{name}={taint.value}" if taint.value else name


def _device(device: DeviceStatus) -> dict[str, Any]:
    return {
        "device": shown_text(device.name),
        **({} if device.profile is None else {"profile": shown_text(device.profile)}),
        "label": shown_text(label_of(device)),
        "capacity": dict(device.capacity),
        "heldBy": [{**_name(holder), **_amount(holder, device.capacity)} for holder in device.holders],
    }


def _name(holder: Holder) -> dict[str, Any]:
    if holder.hidden:
        return {"hidden": True}
    namespace, _, claim = holder.claim.partition("/")
    return {"namespace": namespace, "claim": claim, "pods": list(holder.pods)}


def _amount(holder: Holder, capacity: Mapping[str, str]) -> dict[str, Any]:
    """Return what a share takes; a whole device has no amount."""
    if holder.consumed is None or is_all_memory(holder.consumed, capacity):
        return {"amount": None, "percent": None, "mode": None}
    percent = memory_percent(holder.consumed, capacity)
    return {"amount": shown_text(amounts_in_words(holder.consumed)), "percent": percent, "mode": holder.mode}


def _cut(gpu: DrawnGpu, index: int | None, devices: Mapping[str, DeviceStatus]) -> dict[str, Any]:
    return {
        "gpu": index,
        "slices": gpu.slices,
        "parts": [{**_device(devices[part.name]), "start": part.start, "size": part.size} for part in gpu.parts],
    }


def pod_view(
    driver: str, pod: Pod, claims: Mapping[str, ResourceClaim | None], waiting: WaitingPod | None, now_s: float
) -> dict[str, Any]:
    """Return the JSON form of one pod; docs/page.md promises it. `claims`: its claims by the names that the pod gives
    them; None: not there. `waiting`: why it waits; None when unknown. `now_s`: steady time."""
    allocated = all(claim is not None and claim.status.allocation is not None for claim in claims.values())
    state = pod_state(pod, allocated=allocated)
    whose = workload_of(pod, pod.metadata.name)
    return {
        "namespace": pod.metadata.namespace,
        "name": pod.metadata.name,
        "state": state,
        "words": POD_STATES[state],
        "node": pod.spec.node_name or None,
        "workload": {"kind": shown_text(whose.kind), "name": shown_text(whose.name)},
        "waiting": _waiting(waiting, now_s) if waiting is not None and state == "waiting" else None,
        "claims": [_claim(driver, alias, claim) for alias, claim in claims.items()],
    }


def _waiting(pod: WaitingPod, now_s: float) -> dict[str, Any]:
    return {"reason": pod.reason, **why_and_help(pod.why), "waitedSeconds": waited_s(pod, now_s)}


def _claim(driver: str, alias: str, claim: ResourceClaim | None) -> dict[str, Any]:
    if claim is None:
        return {"alias": alias, "claim": None, "devices": [], "decision": None}
    allocation = claim.status.allocation
    devices = [] if allocation is None else [f"{one.pool}/{one.device}" for one in allocation.devices.results]
    return {
        "alias": alias,
        "claim": claim.metadata.name,
        "devices": [shown_text(device) for device in devices],
        "decision": _decided(driver, claim),
    }


def _decided(driver: str, claim: ResourceClaim) -> dict[str, Any] | None:
    try:
        decision = read_decision(claim, driver)
    except BadInputError as error:
        return {"words": shown_text(str(error)), "parts": []}
    return None if decision is None else _decision(decision)


def _decision(decision: Decision) -> dict[str, Any]:
    second = decision.runner_up
    theirs = dict(second.score) if second is not None else {}
    return {
        "words": shown_text(describe(decision)),
        "node": decision.node,
        "links": shown_text(decision.links),
        "runnerUp": None if second is None else {"node": second.node, "links": shown_text(second.links)},
        "lostBy": None if second is None else part_in_words(second.lost_by),
        "parts": [
            {
                "part": shown_text(part_in_words(name)),
                "chosen": value_in_words(name, value),
                "runnerUp": value_in_words(name, theirs[name]) if name in theirs else None,
                "decided": second is not None and name == second.lost_by,
            }
            for name, value in decision.score
        ],
    }


def graph_text(snapshot: ClusterSnapshot, sight: Sight, *, node: str = "") -> str | None:
    """Return the nodes as trees with who has what, after gpu-manager's /graph; None if there is no such node.

    If there are more than MOST_TREES nodes and none is named, each gets one line.
    """
    if node:
        found = snapshot.node(node)
        return None if found is None else "\n".join(_printable(tree_lines(without_names(found, sight)))) + "\n"
    if len(snapshot.lines) > MOST_TREES:
        return "\n".join((*_printable(map(_line, snapshot.lines)), "?node=NAME draws the tree of a node")) + "\n"
    trees = []
    for line in snapshot.lines:
        if len(line.cells) > MOST_GPUS:
            trees += [*_printable(iter((f"{_line(line)}; ?node={line.name} draws its tree",))), ""]
            continue
        found = snapshot.node(line.name)
        trees += [] if found is None else [*_printable(tree_lines(without_names(found, sight))), ""]
    return "\n".join(trees or [f"no node publishes devices of {snapshot.driver}", ""])


def _line(line: NodeLine) -> str:
    free = line.cells.count(FREE)
    return f"{line.name}: {free} of {counted(len(line.cells), 'GPU')} free, {line.product}"


def _printable(lines: Iterator[str]) -> Iterator[str]:
    return (shown_text(line) for line in lines)
