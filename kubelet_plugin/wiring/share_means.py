"""Builds what enforces shares on this node, from its settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from dracaena.api import mps
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.files.mps_supervisor import supervisor_runs
from dracaena.kubelet_plugin.adapters.kernel.cgroups import Cgroups
from dracaena.kubelet_plugin.adapters.programs.nvidia_smi import NvidiaSmi
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.kinds.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.changes.kinds.mps_shares import MpsShares
from dracaena.kubelet_plugin.changes.kinds.time_slices import TimeSlices
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.enforcement import NO_MEMORY_LIMITS, NO_TIME_SLICES, NodeEnforcement
from dracaena.kubelet_plugin.device_kinds.mps_effect import NO_MPS
from dracaena.kubelet_plugin.device_kinds.table import kinds_on
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.ports import PodCgroups
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.upkeep.mps_fault_watch import MpsFaultWatch
from dracaena.kubelet_plugin.wiring.from_settings import seen_driver_root
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts
from dracaena.process.clock import Clock

LIMIT_DEADLINE_S: Final = 10.0
"""Longest wait for the driver: it answers within microseconds, but may be busy with a reading of the node."""


@dataclass(frozen=True, slots=True)
class ShareMeans:
    """What makes the effects of shares, and the kinds of devices that know what this node can enforce."""

    kinds: tuple[AnyThingKind, ...]
    """Things that the engine settles."""
    kind_of: KindOf
    supervisor: MpsShares | None
    """None where no MPS supervisor is named."""
    cgroups: PodCgroups

    def client_folders(self) -> tuple[str, ...]:
        """Return what the containers of shares by MPS see at places of the supervisor's choice."""
        return () if self.supervisor is None else mps.client_folders(self.supervisor.protocol())


def share_means(node: NodeParts, gpus: GpuParts) -> ShareMeans:
    """Return them. A recorded machine has time slices only if it brings a driver of its own, and no memory limits."""
    settings = node.settings
    supervisor = _mps_shares(settings, node.clock)
    recorded = settings.machine and not settings.driver_root
    smi = None if recorded else NvidiaSmi(seen_driver_root(settings), in_use=node.release.in_program)
    cgroups = Cgroups(settings.cgroup_root)
    shares = () if supervisor is None else (supervisor,)
    limits = _memory_limits(gpus, cgroups)
    slices = () if smi is None else (TimeSlices(smi),)

    def enforcement() -> NodeEnforcement:
        return NodeEnforcement(
            mps=NO_MPS if supervisor is None else supervisor.offer(),
            time_slices=NO_TIME_SLICES if smi is None else smi.missing(),
            memory_limits=cgroups.problem() if limits else NO_MEMORY_LIMITS,
        )

    return ShareMeans((*limits, *slices, *shares), kinds_on(enforcement), supervisor, cgroups)


def _memory_limits(gpus: GpuParts, cgroups: PodCgroups) -> tuple[MemoryLimits, ...]:
    """Return what limits memory in the driver's thread; nothing with a recorded machine."""
    source, live = gpus.source, gpus.live
    if source is None or live is None:
        return ()

    def limit(gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        work = partial(source.limit_memory, gpu, cgroup, limit_bytes)
        live.ask(f"a memory limit of {gpu}", work, LIMIT_DEADLINE_S)

    return (MemoryLimits(limit, cgroups),)


def _mps_shares(settings: PluginSettings, clock: Clock) -> MpsShares | None:
    """Return what asks the node's MPS supervisor for shares, None where there is none."""
    if not settings.mps_root:
        return None
    root = Path(settings.mps_root)
    # Like the supervisor's: the folder is on a tmpfs, so nothing in it outlives a power cut.
    return MpsShares(
        root=settings.mps_root,
        requests=DocumentFolder(root / mps.REQUESTS, synced=False),
        statuses=DocumentFolder(root / mps.STATUS, synced=False),
        node=DocumentFolder(root, synced=False),
        is_running=partial(supervisor_runs, root),
        boot_id=read_boot_id(),
        clock=clock,
    )


def mps_fault_watch(node: NodeParts, supervisor: MpsShares, reporter: PodDevicesReporter) -> MpsFaultWatch:
    """Return what tells pods about faults of their MPS server."""
    return MpsFaultWatch(
        shares=supervisor,
        claims=node.claims,
        users_known=lambda: reporter.users_known,
        pods_of=reporter.users_now,
        files=node.folders.marks,
        tell=node.events.warn_users,
        clock=node.clock,
    )
