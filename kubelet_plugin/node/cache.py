"""Follows the Node that the plugin runs on."""

from __future__ import annotations

from dracaena.api.objects import Node
from dracaena.kube.client import KubeClient
from dracaena.kube.reflector import Kept, Reflector
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.label_updates import LabelUpdates
from dracaena.kubelet_plugin.node.section import NodeSection
from dracaena.process.clock import Clock


def node_cache(
    name: str,
    clock: Clock,
    metrics: PluginMetrics,
    view: KubeClient,
    updates: LabelUpdates,
    section: NodeSection | None,
) -> Reflector[Node]:
    """Return the cache that follows this Node. Its labels go to `updates`, unless `section` passes them on."""
    if section is not None:
        cache = section.cache
    else:

        def node_changed(_old: Node | None, new: Node | None) -> None:
            if new is not None:
                updates.publish(new.metadata.labels)

        cache = Reflector(
            view, Node, clock=clock, on_change=node_changed, kept=Kept(field_selector=f"metadata.name={name}")
        )
    metrics.node.watch_troubles(cache.resource, cache.troubles)
    return cache
