"""Entries of podlist.json and the devices that the driver lists → which containers have which device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.device_share import DeviceShare
from dracaena.api.podlist import PodlistEntry
from dracaena.api.vgpu import is_of_virtual_machine
from dracaena.exporter.series.readings import GpuReading


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One container that has a device. Its name is empty if only the pod is known."""

    namespace: str
    pod: str
    container: str
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """One device of one container."""

    owner: Owner
    uuid: str
    """UUID of the GPU or the MIG device, as the driver has it."""
    claims: tuple[str, ...]
    """UIDs of the claims of the container's GPUs."""
    shares: tuple[DeviceShare, ...] = ()
    """Shares of this device; empty: the container has all of it."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Who has what on this node."""

    allocations: tuple[GpuAllocation, ...] = ()
    """Sorted by device as the driver lists them, then by owner."""
    unknown: tuple[str, ...] = ()
    """Entries of gpu_list that name no device of the driver; sorted. Without GPUs for virtual machines, which are named
    by their PCI address, and vGPUs, by that or a bare UUID: no driver of the node lists them."""

    def of(self, uuids: Iterable[str]) -> tuple[Owner, ...]:
        """Return who has any of these devices, sorted, each once."""
        wanted = frozenset(uuids)
        return tuple(sorted({each.owner for each in self.allocations if each.uuid in wanted}))


def find_owners(entries: Sequence[PodlistEntry], gpus: Sequence[GpuReading]) -> Owners:
    """Match entries with devices, whatever form of names the plugin writes (setting podlist-gpus).

    A bare number is tried as an index before a minor: the file does not show which of the two the plugin writes.
    """
    known = _device_names(gpus)
    order = {uuid: place for place, uuid in enumerate(dict.fromkeys(known.values()))}
    found: dict[tuple[str, Owner], GpuAllocation] = {}
    unknown: set[str] = set()
    for entry in entries:
        owner = Owner(entry.namespace, entry.name, entry.container, entry.uid)
        for name in entry.gpu_list:
            uuid = known.get(name)
            if uuid is None:
                if not is_of_virtual_machine(name):
                    unknown.add(name)
                continue
            shares = tuple(share for share in entry.shares if share.gpu == name)
            found[uuid, owner] = GpuAllocation(owner, uuid, entry.claims, shares)
    sorted_keys = sorted(found, key=lambda key: (order[key[0]], key[1]))
    return Owners(tuple(found[key] for key in sorted_keys), tuple(sorted(unknown)))


def _device_names(gpus: Sequence[GpuReading]) -> Mapping[str, str]:
    """Return every name of every device → its UUID, in the order of the devices."""
    names: dict[str, str] = {}
    for gpu in gpus:
        names[gpu.uuid] = gpu.uuid
        for mig in gpu.mig:
            names[mig.uuid] = mig.uuid
    for gpu in gpus:
        for number, whole, part in _numbers(gpu):
            names.setdefault(whole.format(number), gpu.uuid)
            for mig in gpu.mig:
                names.setdefault(part.format(number, mig.gpu_instance_id), mig.uuid)
    return names


def _numbers(gpu: GpuReading) -> Iterable[tuple[int, str, str]]:
    yield gpu.index, "{}", "{}-{}"
    if gpu.minor is not None:
        yield gpu.minor, "nvidia{}", "nvidia{}/gi{}"
