"""Builds what divides this node's GPUs on demand, and undoes that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from dracaena.api.machine import Gpu
from dracaena.api.names import gpu_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.recorded.mig import RecordedMig, access_minors
from dracaena.kubelet_plugin.effects.mig_device_records import MigDeviceRecords
from dracaena.kubelet_plugin.effects.mig_instances import AccessMinors, MigControl, MigInstances, WholeGpus
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.ports import EffectMeans, GpuGoneError, NotingEffectMeans, ReadPool
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, MIG_OFF
from dracaena.kubelet_plugin.store.own_places import OwnPlaces
from dracaena.kubelet_plugin.wiring.from_settings import NodeSource


def mig_means(
    folder: Path,
    source: NodeSource | None,
    live: LiveMachine | None,
    read_pool: ReadPool,
    own_places: OwnPlaces,
    records: MigDeviceRecords,
) -> Mapping[str, EffectMeans | NotingEffectMeans]:
    """Return what divides GPUs on demand and makes them whole again, by kind of effect; empty if GPUs stay as they are.

    With mig=existing no claim gets such an effect, but those of claims that were prepared before must be undone.
    Without a `source` the GPUs are those of a recorded machine, whose instances are files in `folder`; they are read in
    the thread of `live` if there is one.
    """

    def read_gpu(uuid: str) -> Gpu:
        gpu = read_pool().gpus.get(gpu_device_name(uuid))
        if gpu is None:
            raise GpuGoneError(f"GPU {uuid} is not among those that the driver shows: it is lost, or was removed")
        return gpu

    ask = _at_once if live is None else live.ask
    if source is None:
        recorded = RecordedMig(read_gpu, DocumentFolder(folder, synced=False), read_boot_id())
        return _means(recorded, ask, read_gpu, access_minors, own_places, records)
    control = source.mig_control()
    return {} if control is None else _means(control, ask, read_gpu, source.access_minors, own_places, records)


def _means(
    control: MigControl,
    ask: Callable[[str, Callable[[], object], float], object],
    read_gpu: Callable[[str], Gpu],
    minors: AccessMinors,
    own_places: OwnPlaces,
    records: MigDeviceRecords,
) -> Mapping[str, EffectMeans | NotingEffectMeans]:
    instances = MigInstances(control, ask, read_gpu, minors, records, own_places.touch)
    return {MIG_INSTANCE: instances, MIG_OFF: WholeGpus(control, ask, read_gpu)}


def _at_once(_what: str, work: Callable[[], object], _deadline_s: float) -> object:
    """Read files, which cannot hang, in the caller's thread."""
    return work()
