"""Builds what keeps this node's GPUs in their MIG layout, if the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dracaena.api.errors import BadInputError
from dracaena.api.names import gpu_device_name, mig_layout_key
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.files.layout_file import LayoutFile
from dracaena.kubelet_plugin.discovery.mig.layouts import read_layouts
from dracaena.kubelet_plugin.layouts.journals import LayoutJournals
from dracaena.kubelet_plugin.layouts.mig_changes import LayoutControl, MigLayoutChanges
from dracaena.kubelet_plugin.layouts.mig_rounds import MigLayouts
from dracaena.kubelet_plugin.layouts.reports import MIG_WORDS
from dracaena.kubelet_plugin.prepare.journals.layouts import MIG_JOURNAL
from dracaena.kubelet_plugin.settings import LAYOUT
from dracaena.kubelet_plugin.wiring.layout_context import ChosenLayout, LayoutContext


def mig_layouts(context: LayoutContext) -> tuple[MigLayouts, Callable[[], Collection[str]]] | None:
    """Return the layouts, and what returns the GPUs that are being changed, by device name; None without mig=layout.

    Raises BadInputError for settings that exclude each other.
    """
    node, gpus, settings = context.node, context.gpus, context.node.settings
    if settings.mig != LAYOUT:
        return None
    control = _control(context)
    journals = LayoutJournals(node.folders.marks, node.claims, read_boot_id(), MIG_JOURNAL)
    chosen = ChosenLayout(
        mig_layout_key(settings.driver_name),
        settings.mig_layout,
        MIG_WORDS,
        node.metrics.node.mig_layout,
        "mig-layouts",
        settings.mig_layout_condition,
    )
    layouts = MigLayouts(
        MigLayoutChanges(control, context.live.ask, journals, context.gpu_lock()),
        journals,
        context.users(),
        context.ports(chosen),
        node.clock,
        read_layouts=LayoutFile("MIG layouts", settings.mig_layouts_file, read_layouts).read,
        first_indices=gpus.devices.first_indices,
    )
    gpus.updates.subscribe(layouts.take, same=layouts.read_again)
    return layouts, lambda: [gpu_device_name(uuid) for uuid in journals.changing()]


def _control(context: LayoutContext) -> LayoutControl:
    if not context.node.settings.mig_layouts_file:
        raise BadInputError("setting mig=layout needs mig-layouts-file, which names the file of MIG layouts")
    asked = context.gpus.source or context.gpus.recorded
    control = None if asked is None else asked.mig_control()
    assert isinstance(control, LayoutControl)
    return control
