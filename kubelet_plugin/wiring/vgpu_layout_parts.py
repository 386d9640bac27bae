"""Builds what keeps this node's GPUs in their vGPU layout, if the settings ask for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from dracaena.api.names import DeviceName, vgpu_layout_key
from dracaena.api.vgpu import vgpu_device_name
from dracaena.kubelet_plugin.adapters.files.layout_file import LayoutFile
from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import SOCKET
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import PciDriverFiles
from dracaena.kubelet_plugin.adapters.sysfs.vgpu_gpus import SysfsVgpuGpus
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import VgpuGpu, VgpuLayout, read_vgpu_layouts
from dracaena.kubelet_plugin.labels.follower import BlockedError, LabelFollower
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.reports import VGPU_WORDS
from dracaena.kubelet_plugin.labels.vgpu_changes import VgpuLayoutChanges
from dracaena.kubelet_plugin.labels.vgpu_layouts import VgpuLayoutsOfNode
from dracaena.kubelet_plugin.ports import OpeningProcess
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from dracaena.kubelet_plugin.wiring.label_context import FollowedLabel, LabelContext

HIDDEN: Final = (
    "this plugin does not see the processes of its node, so it cannot tell who has a vGPU open, and removes none: its "
    "pod needs `hostPID: true`"
)

Holders = Callable[[str, int | None], Sequence[OpeningProcess]]


def vgpu_layouts_of(
    context: LabelContext,
) -> tuple[LabelFollower[VgpuGpu, VgpuLayout], Callable[[], Collection[str]]] | None:
    """Return what follows the label, and what returns the GPUs that are being changed, by PCI address; None without
    a file of vGPU layouts.
    """
    node, settings = context.node, context.node.settings
    entry = settings.gpus.layouts(GpuRole.VGPU)
    if entry is None:
        return None
    notes = LayoutNotes(node.ledger, node.claims, VgpuLayoutsOfNode.name, NOTHING_KNOWN)
    sysfs, source = SysfsVgpuGpus(), context.gpus.source
    assert source is not None  # a recorded machine has no vGPUs

    def read() -> Sequence[VgpuGpu]:
        return sysfs.read(source.vgpu_types())

    def is_named_of(name: str, gpu: DeviceName) -> bool:
        there = (vgpu for each in read() if each.address == gpu for vgpu in each.vgpus)
        return any(vgpu_device_name(vgpu.identity) == name for vgpu in there)

    label = FollowedLabel(
        vgpu_layout_key(settings.driver_name),
        entry.layout,
        VGPU_WORDS,
        node.metrics.node.vgpu_layout,
        entry.condition,
    )
    changes = VgpuLayoutChanges(
        read,
        PciDriverFiles(node.paths.gpu_locks / "writes"),
        partial(_holders, PciHolders().vgpu_holders, node.paths.podlist / SOCKET),
        notes,
        node.gpu_lock,
        lambda: str(uuid4()),
    )
    row = VgpuLayoutsOfNode(
        changes,
        notes,
        context.users(is_of_address, is_named_of),
        read_layouts=LayoutFile("vGPU layouts", entry.file, read_vgpu_layouts).read,
        read_gpus=read,
    )
    return context.follower(label, row), notes.changing


def is_of_address(device: PreparedDevice, gpu: DeviceName) -> bool:
    """Whether a device is the GPU at a PCI address or a vGPU of it. A vGPU whose GPU is not known, because its
    checkpoint broke, may be of any.
    """
    if device.pci_bus_id is None:
        return device.is_vgpu
    return device.pci_bus_id == gpu


def _holders(look: Holders, kubelet: Path, vgpu: str, iommu_group: int | None) -> Sequence[OpeningProcess]:
    """Return who has a vGPU open. Raises BlockedError if this process cannot see all that could."""
    if sees_listener(kubelet) is False:
        raise BlockedError(HIDDEN)
    return look(vgpu, iommu_group)
