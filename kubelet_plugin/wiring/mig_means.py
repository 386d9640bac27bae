"""Builds what divides this node's GPUs, and undoes that."""

from __future__ import annotations

from dracaena.api.machine import Gpu
from dracaena.api.names import gpu_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.recorded.mig import RecordedMig, access_minors
from dracaena.kubelet_plugin.changes.kinds.mig_instances import AccessMinors, MigInstances
from dracaena.kubelet_plugin.changes.kinds.mig_mode import WholeGpus
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.node.health_monitor import ask_at_once
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.ports import GpuGoneError, MigControl, ReadPool
from dracaena.kubelet_plugin.wiring.from_settings import NodeSource
from dracaena.kubelet_plugin.wiring.parts import MigKinds, NodeParts


def mig_kinds(
    node: NodeParts, source: NodeSource | None, live: LiveMachine | None, read_pool: ReadPool
) -> MigKinds | None:
    """Return it; None if GPUs stay as they are.

    Without `as: mig` no claim gets such a device, but those of claims that were prepared before must be undone. Without
    a `source` the GPUs are those of a recorded machine, whose instances are files; they are read in the thread of
    `live` if there is one.
    """

    def read_gpu(uuid: str) -> Gpu:
        gpu = read_pool().gpus.get(gpu_device_name(uuid))
        if gpu is None:
            raise GpuGoneError(f"GPU {uuid} is not among those that the driver shows: it is lost, or was removed")
        return gpu

    control: MigControl | None
    minors: AccessMinors
    if source is None:
        files = DocumentFolder(node.paths.recorded_mig, synced=False)
        control, minors = RecordedMig(read_gpu, files, read_boot_id()), access_minors
    else:
        control, minors = source.mig_control(), source.access_minors
    if control is None:
        return None
    hand = MigHand(control, ask_at_once if live is None else live.ask)
    return MigKinds(hand, MigInstances(hand, read_gpu, minors, node.ledger, node.clock), WholeGpus(hand, read_gpu))
