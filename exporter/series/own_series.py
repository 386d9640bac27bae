"""Our own series: who has what, what containers use, what is allocated and idle, and the state of the exporter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.quantity import parse_bytes
from dracaena.exporter.series.device_series import ServedDevice
from dracaena.exporter.series.families import Labels, MetricFamily, Sample
from dracaena.exporter.series.history import IdleKey
from dracaena.exporter.series.owners import GpuAllocation, Owner, Owners
from dracaena.exporter.series.readings import DriverReading

_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class PodlistState:
    """The state of podlist.json."""

    is_read: bool
    """Whether the last look found a readable file."""
    age_s: float | None
    """Seconds since its modification time; None: there is no file."""
    errors: Mapping[str, int]
    """Failed looks by reason."""
    entries: int = 0


@dataclass(frozen=True, slots=True)
class OwnState:
    """The state of the exporter."""

    version: str
    driver_up: bool
    driver_seconds: float
    """Seconds that the last reading took."""
    nvml_errors: Mapping[tuple[str, str], int]
    """(call, error) → how often."""
    ran_back: int
    """Values of counters that were lower than the one before, and not shown."""
    faults_of_fields: int
    missing: Mapping[str, int]
    """GPUs that an earlier reading named and the last one does not: UUID → index."""
    podlist: PodlistState


def allocation_families(owners: Owners, reading: DriverReading | None, hostname: str) -> tuple[MetricFamily, ...]:
    """Return who has what. Without a reading of the driver nothing is known about the devices."""
    parents = {mig.uuid: gpu.uuid for gpu in reading.gpus for mig in gpu.mig} if reading is not None else {}
    limits = [(each, share) for each in owners.allocations for share in each.shares]
    memory = [(each, share, _bytes(share.memory)) for each, share in limits]
    return (
        MetricFamily(
            "dracaena_gpu_allocation_info",
            "gauge",
            "1 for each container and each GPU, MIG device or share that it has; claim: UIDs of its claims.",
            tuple(
                Sample({**_allocation_labels(each, hostname), **_parts(each, parents)}, 1)
                for each in owners.allocations
            ),
        ),
        MetricFamily(
            "dracaena_gpu_share_memory_bytes",
            "gauge",
            "Memory of a share of a GPU, as the claim got it.",
            tuple(
                Sample({**_allocation_labels(each, hostname), "share_id": share.share_id}, size)
                for each, share, size in memory
                if size is not None
            ),
        ),
        MetricFamily(
            "dracaena_gpu_share_cores_ratio",
            "gauge",
            "Ceiling of a share of a GPU, as a fraction of the GPU's cores; left out: no ceiling.",
            tuple(
                Sample({**_allocation_labels(each, hostname), "share_id": share.share_id}, share.cores / _PERCENT)
                for each, share in limits
                if share.cores
            ),
        ),
    )


def use_families(
    devices: Sequence[ServedDevice], idle: Mapping[IdleKey, float], now_s: float, idle_after_s: float, hostname: str
) -> tuple[MetricFamily, ...]:
    """Return what containers use, and what they have but do not use. `idle`: since when, by device and owner."""
    uses = [
        (_use_labels(device, owner, hostname), use)
        for device in devices
        if device.shared_out is not None
        for owner, use in device.shared_out.by_owner.items()
    ]
    idle_s = [(_idle_labels(key, hostname), now_s - since_s) for key, since_s in idle.items()]
    return (
        MetricFamily(
            "dracaena_gpu_container_processes",
            "gauge",
            "Processes of a container on a device.",
            tuple(Sample(labels, use.processes) for labels, use in uses),
        ),
        MetricFamily(
            "dracaena_gpu_container_memory_used_bytes",
            "gauge",
            "Memory of a device that the processes of a container use.",
            tuple(Sample(labels, use.memory_bytes) for labels, use in uses if use.memory_bytes is not None),
        ),
        MetricFamily(
            "dracaena_gpu_container_sm_ratio",
            "gauge",
            "Mean fraction of the SMs that the processes of a container used since the last scrape; not on MIG "
            "devices.",
            tuple(Sample(labels, use.sm_percent / _PERCENT) for labels, use in uses if use.sm_percent is not None),
        ),
        MetricFamily(
            "dracaena_gpu_other_processes",
            "gauge",
            "Processes on a device that belong to no container that has it.",
            tuple(
                Sample(_device_labels(device, hostname), device.shared_out.strangers)
                for device in devices
                if device.shared_out is not None
            ),
        ),
        MetricFamily(
            "dracaena_gpu_allocated_idle_seconds",
            "gauge",
            "Time for which a container has had a device without using it, as far back as the exporter has observed.",
            tuple(Sample(labels, seconds) for labels, seconds in idle_s),
        ),
        MetricFamily(
            "dracaena_gpu_allocated_idle",
            "gauge",
            "1 if a container has had a device for longer than idle-after-s without using it, else 0.",
            tuple(Sample(labels, float(seconds >= idle_after_s)) for labels, seconds in idle_s),
        ),
    )


def state_families(
    state: OwnState, reading: DriverReading | None, owners: Owners, hostname: str
) -> tuple[MetricFamily, ...]:
    """Return the state of the exporter, the driver and podlist.json."""
    gpus = reading.gpus if reading is not None else ()
    podlist = state.podlist
    age = [] if podlist.age_s is None else [Sample({}, max(0.0, podlist.age_s))]
    return (
        _one("dracaena_exporter_build_info", "Version of the exporter.", 1, {"version": state.version}),
        _one("dracaena_exporter_driver_up", "1 if the GPU driver answered this scrape in time.", state.driver_up),
        _one("dracaena_exporter_driver_seconds", "Time of the last reading of the driver.", state.driver_seconds),
        MetricFamily(
            "dracaena_exporter_gpu_up",
            "gauge",
            "1 if a GPU answered until the end of this scrape, else 0; also 0 for a GPU that was named before and is "
            "no longer.",
            tuple(
                Sample({"gpu": str(index), "UUID": uuid, "hostname": hostname}, float(is_up))
                for index, uuid, is_up in sorted(
                    [
                        *((gpu.index, gpu.uuid, not gpu.lost) for gpu in gpus),
                        *((index, uuid, False) for uuid, index in state.missing.items()),
                    ]
                )
            ),
        ),
        _one(
            "dracaena_exporter_unnamed_gpus",
            "GPUs that the driver counts but does not name.",
            reading.unnamed if reading is not None else 0,
        ),
        _counter(
            "dracaena_exporter_nvml_errors_total",
            "NVML calls that failed but could have succeeded, by call and error.",
            [({"call": call, "error": error}, count) for (call, error), count in sorted(state.nvml_errors.items())],
        ),
        _counter(
            "dracaena_exporter_counters_ran_back_total",
            "Values of the driver's counters that were lower than before and are not shown.",
            [({}, state.ran_back)],
        ),
        _one("dracaena_exporter_faulty_fields", "Lines of the field file that have no effect.", state.faults_of_fields),
        _one("dracaena_exporter_podlist_up", "1 if podlist.json existed and could be read.", podlist.is_read),
        MetricFamily(
            "dracaena_exporter_podlist_age_seconds",
            "gauge",
            "Time since podlist.json was last touched: a minute at most while the plugin keeps it right.",
            tuple(age),
        ),
        _counter(
            "dracaena_exporter_podlist_errors_total",
            "Failed reads of podlist.json, by reason; the former map stays in use.",
            [({"reason": reason}, count) for reason, count in sorted(podlist.errors.items())],
        ),
        _one("dracaena_exporter_podlist_entries", "Containers in podlist.json.", podlist.entries),
        _one(
            "dracaena_exporter_podlist_unknown_gpus",
            "GPUs in podlist.json that the driver does not list, except those for virtual machines.",
            len(owners.unknown) if reading is not None else 0,
        ),
    )


def _one(name: str, help_text: str, value: float, labels: Labels | None = None) -> MetricFamily:
    return MetricFamily(name, "gauge", help_text, (Sample(labels or {}, float(value)),))


def _counter(name: str, help_text: str, counts: Iterable[tuple[Labels, int]]) -> MetricFamily:
    return MetricFamily(name, "counter", help_text, tuple(Sample(labels, count) for labels, count in counts))


def _allocation_labels(each: GpuAllocation, hostname: str) -> Labels:
    return {**_owner_labels(each.owner), "uuid": each.uuid, "hostname": hostname}


def _parts(each: GpuAllocation, parents: Mapping[str, str]) -> Labels:
    """Return the labels that identify the part of a GPU. One container may have several shares of one GPU."""
    return {
        "claim": ",".join(each.claims),
        "parent_uuid": parents.get(each.uuid, ""),
        "share_id": ",".join(share.share_id for share in each.shares),
    }


def _owner_labels(owner: Owner) -> Labels:
    return {"namespace": owner.namespace, "pod": owner.pod, "container": owner.container, "pod_uid": owner.pod_uid}


def _use_labels(device: ServedDevice, owner: Owner, hostname: str) -> Labels:
    return {**_owner_labels(owner), **_device_labels(device, hostname)}


def _device_labels(device: ServedDevice, hostname: str) -> Labels:
    return {"uuid": device.name, "hostname": hostname}


def _idle_labels(key: IdleKey, hostname: str) -> Labels:
    device, owner = key
    return {**_owner_labels(owner), "uuid": device, "hostname": hostname}


def _bytes(quantity: str) -> float | None:
    try:
        return float(parse_bytes(quantity)) if quantity else None
    except ValueError:
        return None
