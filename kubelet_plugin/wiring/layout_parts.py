"""Builds what keeps this node's GPUs in their layouts, of the kinds that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from dracaena.api.names import mig_layout_key, vgpu_layout_key
from dracaena.api.objects import Pod
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.layouts.rounds import LayoutRounds
from dracaena.kubelet_plugin.settings import LAYOUT, PluginSettings
from dracaena.kubelet_plugin.wiring.layout_context import LayoutContext
from dracaena.kubelet_plugin.wiring.mig_layout_parts import mig_layouts
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts
from dracaena.kubelet_plugin.wiring.vgpu_layout_parts import vgpu_layouts_of


class LayoutParts:
    """The layouts of one node. Raises BadInputError for settings that exclude each other."""

    def __init__(self, node: NodeParts, gpus: GpuParts, pods: Reflector[Pod]) -> None:
        context = LayoutContext(node, gpus, pods)
        built = [each for each in (mig_layouts(context), vgpu_layouts_of(context)) if each is not None]
        self.rounds: Sequence[LayoutRounds[Any, Any]] = [rounds for rounds, _ in built]
        for each in self.rounds:
            node.label_updates.subscribe(each.look_soon)
            gpus.publisher.subscribe(each.look_soon)
        self._changing: Sequence[Callable[[], Collection[str]]] = [changing for _, changing in built]

    def changing(self) -> Collection[str]:
        """Return the GPUs that are being changed; the caller holds the lock (LastGuard)."""
        return {gpu for each in self._changing for gpu in each()}


def layout_keys(settings: PluginSettings) -> Collection[str]:
    """Return the keys of the taints that layouts must set before anything is published (NodeDevices)."""
    found = ((settings.mig, mig_layout_key), (settings.vgpu, vgpu_layout_key))
    return [key(settings.driver_name) for mode, key in found if mode == LAYOUT]
