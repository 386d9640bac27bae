"""Builds what changes this node's GPUs for claims: divides them by MIG, or binds them to VFIO."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.use import lent
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.adapters.kernel.host_processes import sees_listener
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import SOCKET
from dracaena.kubelet_plugin.adapters.programs.persistence_mode import SWITCHED_S, PersistenceMode
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import WRITES, PciDriverFiles
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.kinds.mig_mode import WholeGpus
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import VfioGpus
from dracaena.kubelet_plugin.changes.pci_hand import Holders, PciHand
from dracaena.kubelet_plugin.gpu_driver.lending import OTHERS_S, GpuDriverLending
from dracaena.kubelet_plugin.ports import OpeningProcess
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from dracaena.kubelet_plugin.wiring.from_settings import seen_driver_root, seen_host_root
from dracaena.kubelet_plugin.wiring.parts import GpuParts, NodeParts

HIDDEN: Final = (
    "this plugin does not see the processes of its node, so it cannot tell who has a GPU open, and binds none to VFIO "
    "nor gives one back: its pod needs `hostPID: true`"
)


def gpu_kinds(node: NodeParts, gpus: GpuParts) -> tuple[AnyThingKind, ...]:
    """Return them; a recorded machine is never bound to VFIO. Without `as: passthrough` no claim has a GPU bound to
    VFIO, but those of claims that were prepared before must be given back.
    """
    mig = gpus.mig
    divided: tuple[AnyThingKind, ...] = () if mig is None else (mig.instances, mig.whole)
    live = gpus.live
    if gpus.source is None or live is None:
        return divided
    lending = GpuDriverLending(
        live.ask,
        gpus.source.close,
        lambda: lent(node.paths.gpu_driver_lock, node.clock, OTHERS_S),
    )

    def moved() -> None:
        lending.open_anew()
        live.read_soon()

    socket = node.paths.podlist / SOCKET
    if node.settings.gpus.binds:
        told = partial(node.troubles.update, "host-processes")
        gpus.updates.subscribe(lambda _machine: told(host_troubles(socket)), same=lambda: told(host_troubles(socket)))
    drivers = PciDriverFiles(
        node.paths.gpu_locks / WRITES, modules=str(Path(seen_host_root(node.settings), "lib/modules"))
    )
    vfio = VfioGpus(
        drivers,
        PciHand(drivers, partial(_holders, PciHolders().holders, socket)),
        lending,
        make_whole=lambda address: make_whole(gpus.devices.pool(), None if mig is None else mig.whole, address),
        changed=moved,
        persistence=PersistenceMode(
            seen_driver_root(node.settings),
            in_use=node.release.in_program,
            answer_s=SWITCHED_S,
        ),
    )
    partitions = () if gpus.fabric is None else (gpus.fabric.partitions,)
    return (*divided, vfio, *partitions)


def host_troubles(kubelet: Path) -> tuple[Trouble, ...]:
    """Return a trouble if this process does not see the processes of its node, which a socket of kubelet shows; nothing
    if it does, or that is not known.
    """
    return (trouble(TroubleKind.HOST_PROCESSES, HIDDEN),) if sees_listener(kubelet) is False else ()


def _holders(look: Holders, kubelet: Path, address: str, iommu_group: int | None) -> Sequence[OpeningProcess]:
    """Return who has a GPU open. Raises TemporaryError if this process cannot see all that could."""
    if sees_listener(kubelet) is False:
        raise TemporaryError(HIDDEN)
    return look(address, iommu_group)


def make_whole(pool: PublishedPool, whole: WholeGpus | None, address: str) -> None:
    """Ensure that a GPU is not in MIG mode, as the driver says now: turn it off if the plugin may.

    `whole` is None if the driver is not asked. Raises DracaenaError if the GPU stays in MIG mode.
    """
    for name, gpu in pool.gpus.items():
        if gpu.pci_bus_id != address or gpu.mig_enabled is None or whole is None:
            continue
        if name in pool.switched:
            whole.make_whole(gpu)
        else:
            whole.refuse_divided(gpu)
