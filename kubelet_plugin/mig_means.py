"""What divides this node's GPUs on demand, and undoes that."""

from __future__ import annotations

from collections.abc import Mapping

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Gpu
from dracaena.api.names import gpu_device_name
from dracaena.kubelet_plugin.from_settings import NodeSource
from dracaena.kubelet_plugin.live_machine import LiveMachine
from dracaena.kubelet_plugin.mig_instances import MigInstances, WholeGpus
from dracaena.kubelet_plugin.own_places import OwnPlaces
from dracaena.kubelet_plugin.ports import EffectMeans, GpuGoneError, NotingEffectMeans, ReadPool
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, MIG_OFF
from dracaena.kubelet_plugin.settings import ON_DEMAND, PluginSettings


def mig_means(
    settings: PluginSettings,
    source: NodeSource | None,
    live: LiveMachine | None,
    read_pool: ReadPool,
    own_places: OwnPlaces,
) -> Mapping[str, EffectMeans | NotingEffectMeans]:
    """Return what divides GPUs on demand and makes them whole again, by kind of effect; none for a recorded machine.

    With mig=existing no claim is given such an effect, but those of claims that were prepared before have to be undone.
    Raises BadInputError for a recorded machine with mig=onDemand: nothing makes MIG devices there, so no claim could
    be prepared.
    """
    control = None if source is None else source.mig_control()
    if source is None or control is None or live is None:
        if settings.mig != ON_DEMAND:
            return {}
        raise BadInputError(
            "setting mig=onDemand needs the GPUs of this node, and setting machine plays recorded ones in their place: "
            "leave out one of the two"
        )

    def read_gpu(uuid: str) -> Gpu:
        gpu = read_pool().gpus.get(gpu_device_name(uuid))
        if gpu is None:
            raise GpuGoneError(f"GPU {uuid} is not among those that the driver shows: it is lost, or was removed")
        return gpu

    instances = MigInstances(control, live.ask, read_gpu, source.access_minors, own_places.touch)
    return {MIG_INSTANCE: instances, MIG_OFF: WholeGpus(control, live.ask, read_gpu)}
