"""Follows the Node that the plugin runs on."""

from __future__ import annotations

from dracaena.api.objects import Node
from dracaena.kube.client import KubeClient
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.section import NodeSection
from dracaena.process.clock import Clock


def node_cache(
    name: str,
    clock: Clock,
    metrics: PluginMetrics,
    view: KubeClient,
    release: GpuDriverRelease,
    section: NodeSection | None,
) -> Reflector[Node]:
    """Return the cache that follows this Node: a label on it may ask us to close the GPU driver."""
    if section is not None:
        release.note_labels(section.labels)
        cache = section.cache
    else:

        def note_labels(_old: Node | None, new: Node | None) -> None:
            if new is not None:
                release.note_labels(new.metadata.labels)

        cache = Reflector(view, Node, clock=clock, field_selector=f"metadata.name={name}", on_change=note_labels)
    metrics.node.watch_troubles(cache.resource, cache.troubles)
    return cache
