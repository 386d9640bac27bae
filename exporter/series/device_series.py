"""Series under dcgm-exporter's names, of GPUs and MIG devices, each with the container that has it.

If one container has a device, all series of the device have its labels. If none has it, they have no such labels. If
several have it, each value of the device appears once without them, and what containers use of it once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dracaena.exporter.series.families import Labels, MetricFamily, Sample
from dracaena.exporter.series.field_file import ChosenFields
from dracaena.exporter.series.fields import DRIVER_VERSION, GPU_UTILIZATION, MEMORY_USED, GpuField
from dracaena.exporter.series.owners import Owner, Owners
from dracaena.exporter.series.readings import DeviceUse, DriverReading, GpuProcess, GpuReading, MigInstance
from dracaena.exporter.series.usage import ContainerUse, DeviceShareOut, Places, share_out

_MIB = 1 << 20


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
                Sample({**sample.labels, **version, **_owner_labels(owner)}, sample.value)
                for device in devices
                for owner, sample in _samples(field, device, counts)
            ),
        )
        for field in chosen.fields
    )


def _owner_labels(owner: Owner | None) -> Labels:
    if owner is None:
        return {}
    return {"container": owner.container, "namespace": owner.namespace, "pod": owner.pod}


def _samples(
    field: GpuField, device: ServedDevice, counts: Mapping[tuple[str, str], float]
) -> Iterator[tuple[Owner | None, Sample]]:
    value = device.use.values.get(field.quantity)
    if value is not None:
        value = counts.get((device.key, field.name), value)
        only = device.owners[0] if len(device.owners) == 1 else None
        yield only, Sample(device.labels, value / field.divisor)
    if len(device.owners) > 1 and device.shared_out is not None:
        for owner, use in device.shared_out.by_owner.items():
            mine = _of_container(field.name, use)
            if mine is not None:
                yield owner, Sample(device.labels, mine)


def _of_container(name: str, use: ContainerUse) -> float | None:
    if name == MEMORY_USED and use.memory_bytes is not None:
        return use.memory_bytes / _MIB
    return use.sm_percent if name == GPU_UTILIZATION else None


def _devices(gpu: GpuReading, owners: Owners, places: Places, hostname: str) -> Iterator[ServedDevice]:
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.pci_bus_id,
        "device": f"nvidia{gpu.index if gpu.minor is None else gpu.minor}",
        "modelName": gpu.product_name,
    }
    mine = owners.of([gpu.uuid])
    yield ServedDevice(
        gpu.uuid, (gpu.uuid,), {**labels, "hostname": hostname}, gpu.use, mine, share_out(gpu.use, mine, places)
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
