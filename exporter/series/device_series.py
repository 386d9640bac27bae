"""Series under dcgm-exporter's names, of GPUs and MIG devices, each with the container that has it.

If one container has a device, all series of the device have its labels. If none has it, or several have, they have no
such labels: a device appears once, and so does what a GPU and its GPU instances both report, so that sums and means
over a name are right. What each container uses of a shared GPU is among our own series (own_series).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dracaena.exporter.series.families import Labels, MetricFamily, Sample
from dracaena.exporter.series.field_file import ChosenFields
from dracaena.exporter.series.fields import DRIVER_VERSION, GpuField
from dracaena.exporter.series.owners import Owner, Owners
from dracaena.exporter.series.readings import (
    DeviceUse,
    DriverReading,
    GpuProcess,
    GpuQuantity,
    GpuReading,
    MigInstance,
)
from dracaena.exporter.series.usage import DeviceShareOut, Places, share_out


@dataclass(frozen=True, slots=True)
class ServedDevice:
    """A whole GPU, or a GPU instance with all its MIG devices, which share its memory."""

    key: str
    """Its name in the state that is kept between readings."""
    uuids: tuple[str, ...]
    labels: Labels
    use: DeviceUse
    owners: tuple[Owner, ...]
    shared_out: DeviceShareOut | None
    told_by_parts: frozenset[GpuQuantity] = frozenset()
    """Of a GPU that is divided: what its GPU instances report, too."""

    @property
    def name(self) -> str:
        """Return its name in our own series: one UUID, or those of all parts of a GPU instance."""
        return ",".join(self.uuids)


def devices_of(reading: DriverReading, owners: Owners, places: Places, hostname: str) -> tuple[ServedDevice, ...]:
    """Return all devices that answered, GPUs in the driver's order, each with its GPU instances after it."""
    return tuple(each for gpu in reading.gpus for each in _devices(gpu, owners, places, hostname))


def dcgm_families(
    chosen: ChosenFields,
    reading: DriverReading,
    devices: Sequence[ServedDevice],
    counts: Mapping[tuple[str, str], float],
) -> tuple[MetricFamily, ...]:
    """Return one family for each chosen field, in the chosen order.

    `counts`: the counter values to show (history.CounterKey).
    """
    version = {DRIVER_VERSION: reading.driver_version} if chosen.driver_version and reading.driver_version else {}
    return tuple(
        MetricFamily(
            field.name,
            field.type,
            field.help,
            tuple(
                Sample({**sample.labels, **version}, sample.value)
                for device in devices
                for sample in _sample(field, device, counts)
            ),
        )
        for field in chosen.fields
    )


def _owner_labels(owner: Owner) -> Labels:
    return {"container": owner.container, "namespace": owner.namespace, "pod": owner.pod}


def _sample(field: GpuField, device: ServedDevice, counts: Mapping[tuple[str, str], float]) -> Iterator[Sample]:
    value = device.use.values.get(field.quantity)
    if value is not None and field.quantity not in device.told_by_parts:
        owner = _owner_labels(device.owners[0]) if len(device.owners) == 1 else {}
        yield Sample({**device.labels, **owner}, counts.get((device.key, field.name), value) / field.divisor)


def _devices(gpu: GpuReading, owners: Owners, places: Places, hostname: str) -> Iterator[ServedDevice]:
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": f"nvidia{gpu.index if gpu.minor is None else gpu.minor}",
        "modelName": gpu.product_name,
    }
    mine = owners.of([gpu.uuid])
    told_by_parts = frozenset(quantity for mig in gpu.mig for quantity in mig.use.values)
    yield ServedDevice(
        gpu.uuid,
        (gpu.uuid,),
        {**labels, "hostname": hostname},
        gpu.use,
        mine,
        share_out(gpu.use, mine, places),
        told_by_parts,
    )
    instances: dict[int, list[MigInstance]] = {}
    for mig in gpu.mig:
        instances.setdefault(mig.gpu_instance_id, []).append(mig)
    for number, parts in sorted(instances.items()):
        mine = owners.of(part.uuid for part in parts)
        use = _joined(parts)
        instance = {"GPU_I_PROFILE": _profile(parts), "GPU_I_ID": str(number), "hostname": hostname}
        yield ServedDevice(
            f"{gpu.uuid}/{number}",
            tuple(part.uuid for part in parts),
            {**labels, **instance},
            use,
            mine,
            share_out(use, mine, places),
        )


def _joined(parts: Sequence[MigInstance]) -> DeviceUse:
    """Return what a GPU instance does: each part reports the memory of the whole, and only its own processes."""
    told = [part.use.processes for part in parts if part.use.processes is not None]
    by_pid: dict[int, GpuProcess] = {process.pid: process for processes in told for process in processes}
    processes = tuple(by_pid[pid] for pid in sorted(by_pid)) if len(told) == len(parts) else None
    return replace(parts[0].use, processes=processes)


def _profile(parts: Sequence[MigInstance]) -> str:
    """Return the profile of the GPU instance: `1c.3g.20gb` is a part of `3g.20gb`."""
    profile = parts[0].profile
    first, dot, rest = profile.partition(".")
    return rest if dot and first.endswith("c") and first[:-1].isdigit() else profile
