"""Builds what keeps this node's GPUs in their MIG layout, if the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dracaena.api.machine import Gpu
from dracaena.api.names import gpu_device_name, mig_layout_key
from dracaena.kubelet_plugin.adapters.files.layout_file import LayoutFile
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout, read_layouts
from dracaena.kubelet_plugin.labels.follower import LabelFollower
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.mig_changes import MigLayoutChanges
from dracaena.kubelet_plugin.labels.mig_layouts import MigLayouts
from dracaena.kubelet_plugin.labels.reports import MIG_WORDS
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from dracaena.kubelet_plugin.wiring.label_context import FollowedLabel, LabelContext


def mig_layouts_of(
    context: LabelContext,
) -> tuple[LabelFollower[Gpu, GpuLayout], Callable[[], Collection[str]]] | None:
    """Return what follows the label, and what returns the GPUs that are being changed, by device name; None without
    a file of MIG layouts.
    """
    node, settings = context.node, context.node.settings
    entry = settings.gpus.layouts(GpuRole.LAYOUT)
    mig = context.gpus.mig
    if entry is None or mig is None:
        return None
    notes = LayoutNotes(node.ledger, node.claims, MigLayouts.name, GpuRecord())
    row = MigLayouts(
        MigLayoutChanges(mig.hand, mig.instances, context.engine, notes, node.gpu_lock),
        notes,
        context.users(),
        read_layouts=LayoutFile("MIG layouts", entry.file, read_layouts).read,
        first_indices=context.gpus.devices.first_indices,
    )
    label = FollowedLabel(
        mig_layout_key(settings.driver_name),
        entry.layout,
        MIG_WORDS,
        node.metrics.node.mig_layout,
        entry.condition,
    )
    return context.follower(label, row), lambda: [gpu_device_name(uuid) for uuid in notes.changing()]
