"""Builds what switches modes of confidential computing, if the settings name NVIDIA's program for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from dracaena.api.confidential import cc_mode_label
from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.gpu_driver.use import lent
from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import SOCKET
from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool
from dracaena.kubelet_plugin.adapters.sysfs.confidential_host import runs_confidential_guests
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import WRITES, PciDriverFiles
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import not_given_back
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.gpu_driver.lending import OTHERS_S, GpuDriverLending
from dracaena.kubelet_plugin.labels.cc_mode_changes import CcModeChanges
from dracaena.kubelet_plugin.labels.cc_mode_notes import CcModeNotes
from dracaena.kubelet_plugin.labels.cc_modes import CcModePorts, CcModes
from dracaena.kubelet_plugin.labels.follower import LabelFollower
from dracaena.kubelet_plugin.labels.reports import cc_mode_words
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange
from dracaena.kubelet_plugin.wiring.claim_folders import CHECKPOINT_MODE
from dracaena.kubelet_plugin.wiring.from_settings import seen_host_root
from dracaena.kubelet_plugin.wiring.label_context import FollowedLabel, LabelContext
from dracaena.kubelet_plugin.wiring.parts import NodeParts

HIDDEN: Final = (
    "this plugin does not see the processes of its node, so it cannot tell who has a GPU open, and switches none to "
    "another mode: its pod needs `hostPID: true`"
)

_LOCK: Final = DeviceName("cc-modes")


def cc_mode_notes(node: NodeParts) -> CcModeNotes | None:
    """Return the notes of a node whose modes are switched, or were being switched; None for others."""
    settings = node.settings
    # Synced, so that the next boot knows of a change that a power cut interrupted.
    files = DocumentFolder(node.paths.ledger, mode=CHECKPOINT_MODE)
    notes = CcModeNotes(Ledger(files, node.claims, node.ledger.boot_id), node.claims)
    if not settings.cc_mode_tool:
        return notes if notes.is_changing() else None
    return notes


def cc_modes_of(context: LabelContext, notes: CcModeNotes) -> LabelFollower[Machine | None, ModeChange]:
    """Return what follows the label; without cc-mode-tool nothing is switched."""
    node, settings, live, source = context.node, context.node.settings, context.live, context.gpus.source
    assert source is not None  # a recorded machine has no modes
    writes, label = node.paths.gpu_locks / WRITES, cc_mode_label(settings.driver_name)
    program = CcModeTool(settings.cc_mode_tool, writes)
    drivers = PciDriverFiles(writes, modules=str(Path(seen_host_root(settings), "lib/modules")))
    lending = GpuDriverLending(live.ask, source.close, lambda: lent(node.paths.gpu_driver_lock, node.clock, OTHERS_S))
    lock = node.gpu_lock(_LOCK)
    hand = PciHand(drivers, PciHolders().holders)
    ports = CcModePorts(
        label=label,
        missing_program=lambda: program.missing() or _hidden(node.paths.podlist / SOCKET),
        read_bus=drivers.read,
        runs_confidential_guests=runs_confidential_guests,
        keeps_mig_devices=not settings.gpus.has(GpuRole.MIG, GpuRole.LAYOUT),
        unclaimed=partial(not_given_back, node.ledger),
        driver_refusal=node.release.refusal,
        read_soon=live.read_soon,
    )
    changes = CcModeChanges(program, drivers, hand, lending.closed, notes, lock)
    row = CcModes(changes, notes, context.users(), ports, node.clock)
    return context.follower(FollowedLabel(label, None, cc_mode_words(label), node.metrics.node.confidential_mode), row)


def _hidden(kubelet: Path) -> str | None:
    """Return a text if this process does not see the processes of its node, which a socket of kubelet shows."""
    return HIDDEN if sees_listener(kubelet) is False else None
