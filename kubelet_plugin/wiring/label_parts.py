"""Builds what follows labels of the Node, as far as the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from dracaena.api.confidential import cc_mode_label
from dracaena.api.names import mig_layout_key, vgpu_layout_key
from dracaena.api.objects import Pod
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.labels.follower import LabelFollower
from dracaena.kubelet_plugin.wiring.cc_mode_parts import cc_mode_notes, cc_modes_of
from dracaena.kubelet_plugin.wiring.label_context import LabelContext
from dracaena.kubelet_plugin.wiring.mig_layout_parts import mig_layouts_of
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts
from dracaena.kubelet_plugin.wiring.vgpu_layout_parts import vgpu_layouts_of


class LabelParts:
    """What follows labels on one node."""

    def __init__(self, node: NodeParts, gpus: GpuParts, pods: Reflector[Pod], engine: ChangeEngine) -> None:
        context = LabelContext(node, gpus, pods, engine)
        layouts = [each for each in (mig_layouts_of(context), vgpu_layouts_of(context)) if each is not None]
        self._changing: Sequence[Callable[[], Collection[str]]] = [changing for _, changing in layouts]
        self.followers: list[LabelFollower[Any, Any]] = [follower for follower, _ in layouts]
        self.refusal: Callable[[], str | None] = lambda: None
        """See LastGuard."""
        self.modes: Callable[[], Mapping[str, str]] = dict
        """See CcModeNotes.modes()."""
        notes = cc_mode_notes(node)
        if notes is not None and gpus.source is not None:
            self.followers.append(cc_modes_of(context, notes))
            self.refusal, self.modes = notes.refusal, notes.modes

    def changing(self) -> Collection[str]:
        """Return the GPUs that are being changed; the caller holds the lock (LastGuard)."""
        return {gpu for each in self._changing for gpu in each()}


def label_keys(node: NodeParts) -> Collection[str]:
    """Return the keys of the taints that must be known before anything is published (NodeDevices)."""
    settings = node.settings
    found = (
        (settings.gpus.layouts(GpuRole.LAYOUT) is not None, mig_layout_key),
        (settings.gpus.layouts(GpuRole.VGPU) is not None, vgpu_layout_key),
        (cc_mode_notes(node) is not None, cc_mode_label),
    )
    return [key(settings.driver_name) for is_followed, key in found if is_followed]
