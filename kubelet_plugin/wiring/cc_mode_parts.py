"""Builds what switches modes of confidential computing, if the settings name NVIDIA's program for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dracaena.api.confidential import cc_mode_label
from dracaena.api.errors import BadInputError
from dracaena.api.names import DeviceName, PoolName
from dracaena.api.objects import Pod
from dracaena.host.adapters.files.lock import GpuLocks
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.gpu_driver.use import lent
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.adapters.kube import KubeClaims
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import SOCKET
from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool
from dracaena.kubelet_plugin.adapters.sysfs.confidential_host import runs_confidential_guests
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import WRITES, PciDriverFiles
from dracaena.kubelet_plugin.cc_modes.changes import CcModeChanges
from dracaena.kubelet_plugin.cc_modes.journals import CcModeJournals
from dracaena.kubelet_plugin.cc_modes.modes import CcModes, ModePorts
from dracaena.kubelet_plugin.cc_modes.reports import CcModeReports
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import not_given_back
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.gpu_driver.lending import OTHERS_S, GpuDriverLending
from dracaena.kubelet_plugin.node.devices import EVERY_GPU
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.settings import EXISTING, LAYOUT
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.kubelet_plugin.wiring.from_settings import seen_host_root
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts

HIDDEN: Final = (
    "this plugin does not see the processes of its node, so it cannot tell who has a GPU open, and switches none to "
    "another mode: its pod needs `hostPID: true`"
)

_LOCK: Final = DeviceName("cc-modes")


def cc_mode_journals(node: NodeParts) -> CcModeJournals | None:
    """Return the journal of a node whose modes are switched, or were being switched; None for others.

    Raises BadInputError for settings that exclude each other.
    """
    settings = node.settings
    # Synced, so that the next boot knows of a change that a power cut interrupted.
    journals = CcModeJournals(DocumentFolder(node.paths.checkpoints.parent), node.claims, read_boot_id())
    if not settings.cc_mode_tool:
        return journals if journals.is_changing() else None
    if settings.machine:
        raise BadInputError("setting cc-mode-tool needs GPUs, and `machine` plays a recording: leave out one of them")
    if LAYOUT in (settings.mig, settings.vgpu):
        raise BadInputError(
            "setting cc-mode-tool cannot be combined with mig=layout or vgpu=layout: both change GPUs while nobody has "
            "them, and a reset ends MIG devices and vGPUs"
        )
    if settings.fabric_partitions:
        raise BadInputError(
            "setting cc-mode-tool cannot be combined with fabric-partitions: what Fabric Manager does when all GPUs "
            "are reset is not known"
        )
    return journals


class CcModeParts:
    """The modes of one node; without cc-mode-tool nothing is switched."""

    def __init__(self, node: NodeParts, gpus: GpuParts, pods: Reflector[Pod]) -> None:
        """Raises BadInputError for settings that exclude each other."""
        self.modes: CcModes | None = None
        self.refusal: Callable[[], str | None] = lambda: None
        """See LastGuard."""
        self.known: Callable[[], Mapping[str, str]] = dict
        """See CcModeJournals.modes()."""
        journals = cc_mode_journals(node)
        live, source = gpus.live, gpus.source
        if journals is None or live is None or source is None:
            return
        settings = node.settings
        writes = node.paths.gpu_locks / WRITES
        program = CcModeTool(settings.cc_mode_tool, writes)
        drivers = PciDriverFiles(writes, modules=str(Path(seen_host_root(settings), "lib/modules")))
        users = GpuUsers(
            driver=settings.driver_name,
            pool=PoolName(settings.node_name),
            claims=node.claims,
            pods=pods,
            find_claim=KubeClaims(node.client).find_claim,
        )
        lending = GpuDriverLending(
            live.ask, source.close, lambda: lent(node.paths.gpu_driver_lock, node.clock, OTHERS_S)
        )
        lock = GpuLocks(node.paths.gpu_locks, node.clock).of(_LOCK)
        changes = CcModeChanges(
            program, drivers, PciHand(drivers, PciHolders().holders), lending.closed, journals, lock
        )
        self.modes = CcModes(changes, journals, users, _ports(node, gpus, live, program, drivers), node.clock)
        self.refusal, self.known = journals.refusal, journals.modes
        gpus.updates.subscribe(self.modes.take, same=self.modes.read_again)
        node.label_updates.subscribe(self.modes.look_soon)
        gpus.publisher.subscribe(self.modes.look_soon)


def _ports(
    node: NodeParts, gpus: GpuParts, live: LiveMachine, program: CcModeTool, drivers: PciDriverFiles
) -> ModePorts:
    label = cc_mode_label(node.settings.driver_name)
    reports = CcModeReports(label, node.metrics, node.events.on_node, partial(node.troubles.update, "cc-modes"))
    return ModePorts(
        label=label,
        labels=partial(_labels, node),
        missing_program=lambda: program.missing() or _hidden(node.paths.podlist / SOCKET),
        read_bus=drivers.read,
        runs_confidential_guests=runs_confidential_guests,
        keeps_mig_devices=node.settings.mig == EXISTING,
        unclaimed=partial(not_given_back, node.ledger),
        driver_refusal=node.release.refusal,
        withhold=lambda withheld: gpus.devices.withhold(label, [EVERY_GPU] if withheld else []),
        is_withheld=partial(_is_withheld, gpus, label),
        read_soon=live.read_soon,
        tell=reports.tell,
    )


def _hidden(kubelet: Path) -> str | None:
    """Return a text if this process does not see the processes of its node, which a socket of kubelet shows."""
    return HIDDEN if sees_listener(kubelet) is False else None


def _labels(node: NodeParts) -> Mapping[str, str] | None:
    seen = node.cache.get(node.settings.node_name)
    return None if seen is None else seen.metadata.labels


def _is_withheld(gpus: GpuParts, key: str) -> bool:
    devices = (device for each in gpus.slices.values() for device in each.spec.devices)
    return gpus.slices.synced and all(any(taint.key == key for taint in device.taints) for device in devices)
