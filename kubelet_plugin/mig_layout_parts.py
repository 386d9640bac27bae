"""Builds what keeps this node's GPUs in their MIG layout, where the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from dracaena.api.errors import BadInputError
from dracaena.api.names import DeviceName, PoolName, gpu_device_name, mig_layout_key
from dracaena.api.objects import Pod
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, set_node_condition
from dracaena.kubelet_plugin.adapters.layout_file import LayoutFile
from dracaena.kubelet_plugin.adapters.lock import GpuLocks
from dracaena.kubelet_plugin.checkpoints import Checkpoints
from dracaena.kubelet_plugin.claim_files import ClaimFiles
from dracaena.kubelet_plugin.claim_folders import ClaimFolders
from dracaena.kubelet_plugin.discovery.mig_layouts import read_layouts
from dracaena.kubelet_plugin.gpu_users import GpuUsers
from dracaena.kubelet_plugin.layout_journals import LayoutJournals
from dracaena.kubelet_plugin.layout_reports import MIG_WORDS, LayoutReports
from dracaena.kubelet_plugin.layout_rounds import LayoutPorts
from dracaena.kubelet_plugin.live_machine import LiveMachine
from dracaena.kubelet_plugin.mig_layout_changes import LayoutControl, MigLayoutChanges
from dracaena.kubelet_plugin.mig_layouts import MigLayouts
from dracaena.kubelet_plugin.node_devices import gpu_of
from dracaena.kubelet_plugin.parts import GpuParts, NodeParts
from dracaena.kubelet_plugin.prepare.layout_journal import MIG_JOURNAL, GpuRecord
from dracaena.kubelet_plugin.settings import LAYOUT, PluginSettings


class MigLayoutParts:
    """The layouts of one node; without mig=layout there are none, and nothing is looked after."""

    def __init__(
        self,
        node: NodeParts,
        gpus: GpuParts,
        folders: ClaimFolders,
        checkpoints: Checkpoints,
        files: ClaimFiles,
        pods: Reflector[Pod],
    ) -> None:
        """Raises BadInputError for settings that do not go together."""
        settings = node.settings
        self.layouts: MigLayouts | None = None
        self.changing: Callable[[], Collection[DeviceName]] = tuple
        """See LastGuard."""
        if settings.mig != LAYOUT:
            return
        control, live = _control(settings, gpus)
        journals = LayoutJournals(folders.marks, node.call_lock, read_boot_id(), MIG_JOURNAL)
        users = GpuUsers(
            driver=settings.driver_name,
            pool=PoolName(settings.node_name),
            checkpoints=checkpoints,
            salvage=files.salvage,
            pods=pods,
            find_claim=KubeClaims(node.client).find_claim,
            lock=node.call_lock,
        )
        changes = MigLayoutChanges(control, live.ask, journals, GpuLocks(node.paths.gpu_locks, node.clock).of)
        self.layouts = MigLayouts(
            changes,
            journals,
            users,
            _ports(node, gpus, live),
            node.clock,
            read_layouts=LayoutFile("MIG layouts", settings.mig_layouts_file, read_layouts).read,
            first_indices=gpus.devices.first_indices,
        )
        self.changing = partial(_changing, journals)
        gpus.updates.subscribe(self.layouts.take, same=self.layouts.read_again)


def _control(settings: PluginSettings, gpus: GpuParts) -> tuple[LayoutControl, LiveMachine]:
    if not settings.mig_layouts_file:
        raise BadInputError("setting mig=layout needs mig-layouts-file, which names the file of MIG layouts")
    asked = gpus.source or gpus.recorded
    control = None if asked is None else asked.mig_control()
    assert gpus.live is not None  # with mig=layout something is read again and again
    assert isinstance(control, LayoutControl)
    return control, gpus.live


def _ports(node: NodeParts, gpus: GpuParts, live: LiveMachine) -> LayoutPorts:
    return LayoutPorts(
        name=partial(_layout_name, node),
        withhold=gpus.devices.withhold,
        is_withheld=partial(_is_withheld, node, gpus),
        read_soon=live.read_soon,
        tell=_reports(node).tell,
    )


def _layout_name(node: NodeParts) -> str | None:
    """Return the layout that the label names, else the settings; None before the Node was seen."""
    seen = node.cache.get(node.settings.node_name)
    if seen is None:
        return None
    return seen.metadata.labels.get(mig_layout_key(node.settings.driver_name), node.settings.mig_layout)


def _is_withheld(node: NodeParts, gpus: GpuParts, uuid: str) -> bool:
    key = mig_layout_key(node.settings.driver_name)
    devices = (device for each in gpus.slices.values() for device in each.spec.devices)
    return gpus.slices.synced and all(
        any(taint.key == key for taint in device.taints) for device in devices if gpu_of(device) == uuid
    )


def _changing(journals: LayoutJournals[GpuRecord]) -> Collection[DeviceName]:
    return [gpu_device_name(uuid) for uuid in journals.changing()]


def _reports(node: NodeParts) -> LayoutReports:
    settings = node.settings
    return LayoutReports(
        MIG_WORDS,
        node.metrics.node.mig_layout,
        node.events.on_node,
        partial(node.troubles.update, "mig-layouts"),
        partial(set_node_condition, node.client, settings.node_name) if settings.mig_layout_condition else None,
        node.clock,
    )
