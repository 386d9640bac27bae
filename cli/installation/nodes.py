"""Nodes with GPUs: their plugins, what they publish, and what they report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import msgspec

from dracaena.api.availability import current_pages, several_pools, unfinished, why_pool_unusable
from dracaena.api.extended_resources import GPUS
from dracaena.api.names import TAINT_EFFECT, taint_key
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.cli.installation.programs import PLUGIN, is_ready
from dracaena.cli.installation.snapshot import (
    Document,
    Finding,
    Quote,
    Snapshot,
    fine,
    labels,
    name_of,
    text,
    texts,
    to_fix,
)
from dracaena.cli.workloads import DAEMON_TOLERATIONS
from dracaena.controller.allocation.nodes.matching import required_affinity, unfit_for
from dracaena.validation.pod_templates import value_at

SIGNS: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "nvidia.com/gpu.present",
)
"""Labels with the value `true` on nodes with GPUs: those in the affinity of the chart's plugin, less that of NVIDIA's
CPUs, which says nothing about GPUs."""


def gpu_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Each node with GPUs has a plugin."""
    served = {text(pod, "spec", "nodeName") for pod in snapshot.of_component("pods", PLUGIN)}
    daemon_set = next(iter(snapshot.of_component("daemonsets", PLUGIN)), None)
    count = 0
    for node in snapshot.objects("nodes"):
        sign = _sign(node)
        count += bool(sign)
        if sign and name_of(node) not in served:
            why = _why_no_plugin(daemon_set, node)
            yield to_fix("node {} has GPUs ({}) and no plugin: {}", name_of(node), sign, why)
    if not count:
        words = (
            "no node has a label or a capacity that says it has GPUs: node-feature-discovery, the GPU operator or an"
        )
        yield to_fix(f"{words} admin has to label them: kubectl label node NODE nvidia.com/gpu.present=true")
    else:
        yield fine("nodes that say that they have GPUs: {}", str(count))


def pools(snapshot: Snapshot) -> Iterator[Finding]:
    """Each plugin that is ready publishes the GPUs of its node, whole."""
    pages = _pages(snapshot)
    for name in sorted(pages):
        nothing = not any(page.spec.devices for page in pages[name])
        if why := "it has no device: Events on the node say why" if nothing else _why_unusable(name, pages[name]):
            yield to_fix("the pool of node {} is of no use: {}", name, why)
    ready = {text(pod, "spec", "nodeName") for pod in snapshot.of_component("pods", PLUGIN) if is_ready(pod)} - {""}
    if silent := tuple(sorted(ready - pages.keys())):
        words = (
            "plugins are ready on nodes {} and nothing is published there: their logs and the Events on the nodes say"
        )
        yield to_fix(f"{words} why", silent)
    running = {text(pod, "spec", "nodeName") for pod in snapshot.of_component("pods", PLUGIN)}
    if left := tuple(sorted(pages.keys() - running)):
        words = (
            "GPUs of nodes {} are published and no plugin runs there: pods that get them cannot start. An admin has to"
        )
        yield to_fix(f"{words} bring the plugin back, or delete the ResourceSlices", left)
    if snapshot.unread_slices:
        yield to_fix("ResourceSlices {} cannot be read: upgrade Dracaena, or this command", snapshot.unread_slices)
    devices = sum(len(page.spec.devices) for each in pages.values() for page in each)
    yield fine("published: {} devices, by {} nodes", str(devices), str(len(pages)))


def taints(snapshot: Snapshot) -> Iterator[Finding]:
    """The server keeps the taint with which the driver keeps kube-scheduler off its devices."""
    key = taint_key(snapshot.driver)
    left: list[str] = []
    kept = 0
    for node, pages in sorted(_pages(snapshot).items()):
        devices = [device for page in pages for device in page.spec.devices]
        tainted = [
            any(taint.key == key and taint.effect == TAINT_EFFECT for taint in device.taints) for device in devices
        ]
        kept += sum(tainted)
        if any(tainted) and not all(tainted):
            words = "{} of {} devices of node {} lack the taint {}: kube-scheduler may give them to a second claim. An"
            without = str(tainted.count(False))
            yield to_fix(f"{words} admin has to restart the plugin there", without, str(len(devices)), node, key)
        elif devices and not any(tainted):
            left.append(node)
    yield fine("devices with the taint {}: {}", key, str(kept))
    if left:
        yield fine("nodes left to kube-scheduler (the setting `allocator`): {}", tuple(left))


def other_drivers(snapshot: Snapshot) -> Iterator[Finding]:
    """Nobody else gives out the same GPUs."""
    ours = {page.spec.node_name for page in snapshot.slices}
    with_device_plugin = [
        name_of(node)
        for node in snapshot.objects("nodes")
        if name_of(node) in ours and texts(node, "status", "allocatable").get(GPUS, "0") != "0"
    ]
    theirs = {text(one, "spec", "nodeName") for one in snapshot.objects("resourceslices")}
    for what, nodes in (("device plugin", with_device_plugin), ("DRA driver", sorted(theirs & ours - {""}))):
        if nodes:
            words = "NVIDIA's {} gives out the GPUs of nodes {} too, so that two pods may get one GPU: an admin has to"
            yield to_fix(f"{words} switch it off there (docs/migrate.md)", what, tuple(nodes))
    if not with_device_plugin and not theirs & ours:
        yield fine("no driver of NVIDIA gives out the same GPUs")


def reports(snapshot: Snapshot) -> Iterator[Finding]:
    """What the plugins have reported on their nodes: the driver, its root, ways to GPUs without a claim, folders."""
    found: dict[str, dict[str, str]] = {}
    for event in snapshot.objects("events"):
        if text(event, "type") == "Warning" and text(event, "involvedObject", "kind") == "Node":
            nodes = found.setdefault(text(event, "reason"), {})
            nodes[text(event, "involvedObject", "name")] = text(event, "message")
    for reason, nodes in sorted(found.items()):
        words = "nodes {} reported {}: {} (docs/reference/events.md says what to do)"
        yield to_fix(words, tuple(sorted(nodes)), reason, Quote(nodes[min(nodes)]))
    if not found:
        yield fine("no plugin has reported a trouble of its node within the hour that Events are kept")


def _sign(node: Document) -> str:
    """Return by what a node says that it has GPUs; empty if it does not."""
    own = labels(node)
    sign = next((key for key in SIGNS if own.get(key) == "true"), "")
    return sign or (GPUS if texts(node, "status", "capacity").get(GPUS, "0") != "0" else "")


def _why_no_plugin(daemon_set: Document | None, node: Document) -> str:
    if daemon_set is None:
        return "there is no DaemonSet of the plugin: an admin has to install the chart"
    template = {"metadata": {"name": PLUGIN}, "spec": value_at(daemon_set, ("spec", "template", "spec"))}
    try:
        pod, there = Pod.from_json(json.dumps(template).encode()), Node.from_json(json.dumps(node).encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return "the DaemonSet or the Node is not of the API's shape"
    why = unfit_for(pod, required_affinity(pod), [*pod.spec.tolerations, *DAEMON_TOLERATIONS], there)
    if why is None:
        return "its DaemonSet has not made a pod there: kubectl describe daemonset says why"
    return (
        f"its DaemonSet leaves it out ({why}): an admin has to change the node, or kubeletPlugin's affinity, "
        "nodeSelector or tolerations"
    )


def _pages(snapshot: Snapshot) -> dict[str, list[ResourceSlice]]:
    found: dict[str, list[ResourceSlice]] = {}
    for page in snapshot.slices:
        found.setdefault(page.spec.node_name or page.spec.pool.name, []).append(page)
    return found


def _why_unusable(node: str, pages: list[ResourceSlice]) -> str:
    count = len({page.spec.pool.name for page in pages})
    current = current_pages(pages)
    return several_pools(node, count) if count > 1 else unfinished(current) or why_pool_unusable(current)
