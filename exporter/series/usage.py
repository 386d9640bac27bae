"""What each container uses of a device, from the processes on it and their cgroups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dracaena.exporter.series.owners import Owner
from dracaena.exporter.series.readings import DeviceUse, ProcessPlace

Places = Mapping[int, ProcessPlace]
"""pid → where it runs; a process that has ended meanwhile is not there."""

_MOST_PERCENT = 100.0
"""The shares of processes that took turns on a GPU are rounded one by one and may add up to more."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What one container uses of one device."""

    processes: int = 0
    memory_bytes: int | None = 0
    """None: the driver does not report it for one of the processes."""
    sm_percent: float | None = None
    """None: the driver does not report it."""


@dataclass(frozen=True, slots=True)
class DeviceShareOut:
    """The use of one device, by owner; an owner without processes uses nothing."""

    by_owner: Mapping[Owner, ContainerUse]
    strangers: int
    """Processes that belong to no owner of the device: of the host, or of a pod that does not have it."""


def share_out(use: DeviceUse, owners: Sequence[Owner], places: Places) -> DeviceShareOut | None:
    """Assign each process to the owner in whose pod it runs; None if the driver does not report processes.

    podlist.json has names of containers, a cgroup has their ids. If several containers of one pod have the device,
    their use is reported for the pod, with an empty container name.
    """
    if use.processes is None:
        return None
    sm = use.sm_percent_by_pid
    idle = ContainerUse(sm_percent=None if sm is None else 0.0)
    found = dict.fromkeys(owners, idle)
    strangers = 0
    for process in use.processes:
        owner = _owner_of(places.get(process.pid), owners)
        if owner is None:
            strangers += 1
            continue
        so_far = found.get(owner, idle)
        found[owner] = replace(
            so_far,
            processes=so_far.processes + 1,
            memory_bytes=_sum(so_far.memory_bytes, process.memory_bytes),
            sm_percent=_sm(so_far.sm_percent, sm, process.pid),
        )
    unsure = {owner.pod_uid for owner in found if not owner.container}
    known = {owner: use for owner, use in found.items() if not owner.container or owner.pod_uid not in unsure}
    return DeviceShareOut(dict(sorted(known.items())), strangers)


def _owner_of(place: ProcessPlace | None, owners: Sequence[Owner]) -> Owner | None:
    if place is None or not place.pod_uid:
        return None
    mine = [owner for owner in owners if owner.pod_uid == place.pod_uid]
    if len(mine) <= 1:
        return mine[0] if mine else None
    return replace(mine[0], container="")


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _sm(so_far: float | None, by_pid: Mapping[int, float] | None, pid: int) -> float | None:
    if so_far is None or by_pid is None:
        return None
    return min(_MOST_PERCENT, so_far + by_pid.get(pid, 0.0))
