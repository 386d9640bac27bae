"""Prepared claims and the last reading → where their devices are now, and which device nodes stay reserved.

A claim has a GPU (UUID, PCI address) or a MIG device (GPU, profile and place), and containers get it by device nodes.
The driver chooses the numbers of nodes: after it was reloaded with one GPU less, /dev/nvidia5 is another GPU, and after
MIG devices were recreated, nvidia-cap66 opens another one. Nothing can be taken from a running container: it keeps the
node that it was started with, and so whatever device that node has become. So those nodes are remembered with the claim
(PreparedClaim.former) until kubelet unprepares it, and no other claim gets them meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dracaena.api.names import gpu_device_name
from dracaena.kubelet_plugin.device_kinds.mig_place import as_before
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    NO_MINOR,
    ClaimReference,
    PreparedClaim,
    PreparedDevice,
    PublishedPool,
)


@dataclass(frozen=True, slots=True)
class Followed:
    """A prepared claim as it should be by the last reading."""

    prepared: PreparedClaim
    """The same object if nothing changed."""
    missing: tuple[str, ...] = ()
    """Why its containers cannot be given all of its devices now, in the order of the devices."""


@dataclass(frozen=True, slots=True)
class HeldNode:
    """A device of one claim, and the device that containers of another claim got under one of its nodes."""

    claim: ClaimReference
    """The claim that wants the device, whose users are told."""
    mine: PreparedDevice
    former: PreparedDevice
    holder: PreparedClaim

    def __str__(self) -> str:
        name = self.holder.claim.told_to(self.claim)
        return (
            f"{self.mine.device} is {_node(self.mine, self.former)} now, which containers of {name} still have "
            f"from when it was {self.former.device}: delete the pods of that claim"
        )


def follow(prepared: PreparedClaim, pool: PublishedPool) -> Followed:
    """Return a claim with its devices as last read.

    A device of which only a number is unknown right now stays unchanged: the next reading may show it. But once its
    node belongs to another device, no container may be started with that node until the device's own number is known.
    """
    missing: list[str] = []
    devices: list[PreparedDevice] = []
    left: list[PreparedDevice] = []
    for device in prepared.devices:
        kind = kind_of(device.device, device.share_id)
        is_gone = pool.vanished.get(device.device) == device.uuid
        problem = mig_device_gone(device.uuid) if is_gone else kind.obstacle(device.device, pool)
        if problem is None:
            now = kind.as_read(device, pool)
            now = as_before(now, prepared.former) if device.index is None else now
        else:
            if not is_gone and kind.facts_are_missing(device.device, pool):
                taken = _taken(device, pool)
                if taken is None and not _was_left(device, prepared.former):
                    devices.append(device)
                    continue
                problem = problem if taken is None else f"{problem}, and {taken}"
            missing.append(problem)
            now = dataclasses.replace(device, index=None, gpu_instance_id=None, iommu_group=None)
        is_left = problem is not None or _nodes(now) != _nodes(device)
        if is_left and _has_nodes(device) and not _was_left(device, prepared.former):
            left.append(device)
        devices.append(now)
    if not left and tuple(devices) == prepared.devices:
        return Followed(prepared, tuple(missing))
    former = _former(prepared.former, left, devices)
    if former == prepared.former and tuple(devices) == prepared.devices:
        return Followed(prepared, tuple(missing))
    return Followed(dataclasses.replace(prepared, devices=tuple(devices), former=former), tuple(missing))


def mig_device_gone(uuid: str) -> str:
    """Return the text of Followed.missing for a MIG device that is gone."""
    return f"MIG device {uuid} is gone"


def with_former(prepared: PreparedClaim, earlier: Iterable[PreparedDevice]) -> PreparedClaim:
    """Return a claim that is prepared again, with what its containers may have from an earlier preparation."""
    known = [device for device in earlier if _has_nodes(device)]
    former = _former(prepared.former, known, prepared.devices)
    return prepared if former == prepared.former else dataclasses.replace(prepared, former=former)


def same_nodes(one: PreparedClaim, other: PreparedClaim) -> bool:
    """Whether containers get the same devices by the same nodes, and may hold the same former nodes."""
    return one.former == other.former and all(
        (a.device, _nodes(a)) == (b.device, _nodes(b)) for a, b in zip(one.devices, other.devices, strict=True)
    )


def held_nodes(wanted: PreparedClaim, others: Sequence[PreparedClaim]) -> tuple[HeldNode, ...]:
    """Return the devices of a claim whose nodes containers of other claims hold from an earlier numbering.

    A MIG device of another claim counts as gone if a wanted device has its node: the driver shows that before any
    reading does. Claims prepared with the same device are up to holders.holders(). Devices for admin access hold
    nothing and are held by nobody.
    """
    found: list[HeldNode] = []
    parts = [device for device in wanted.devices if device.access_minors]
    for other in others:
        if not (other.former or parts) or other.claim.uid == wanted.claim.uid:
            continue
        found += [
            HeldNode(wanted.claim, mine, theirs, other)
            for theirs in other.devices
            for mine in parts
            # All compute instances of a GPU instance share the first node; the second belongs to one alone.
            if not set(mine.access_minors[1:]).isdisjoint(theirs.access_minors[1:])
            and theirs.index is not None  # otherwise its nodes are former ones already
            and mine.device != theirs.device
            and not mine.goes_with(theirs)
        ]
        still = {device.device for device in other.devices}
        found += [
            HeldNode(wanted.claim, mine, former, other)
            for former in other.former
            for mine in wanted.devices
            if _share_a_node(mine, former)
            and not mine.goes_with(former)
            and not (mine.device == former.device and mine.device in still)
        ]
    return tuple(found)


def moves(prepared: PreparedClaim, told: Collection[str] = ()) -> tuple[str, ...]:
    """Return in words which nodes containers may have that are no longer the claim's devices, sorted, each once;
    without those of the devices `told`, by UUID, which users hear of separately.
    """
    former = (device for device in prepared.former if device.uuid not in told)
    return tuple(sorted({f"{' and '.join(_nodes(f))}, which was {f.device}" for f in former}))


def _former(
    before: Iterable[PreparedDevice], more: Iterable[PreparedDevice], now: Iterable[PreparedDevice]
) -> tuple[PreparedDevice, ...]:
    """Return all nodes that containers may have, except those that are the same device now; sorted, each once."""
    there = (device for device in now if device.index is not None or device.iommu_group is not None)
    current = {(device.device, _nodes(device)) for device in there}
    found = {(device.device, _nodes(device)): device for device in (*before, *more)}
    return tuple(found[key] for key in sorted(found) if key not in current)


def _was_left(device: PreparedDevice, former: Iterable[PreparedDevice]) -> bool:
    """Whether a device was gone, or its node was another device's, when it was last followed."""
    return device.index is None and (device.device, _nodes(device)) in {(f.device, _nodes(f)) for f in former}


def _taken(device: PreparedDevice, pool: PublishedPool) -> str | None:
    """Return which other device has a node of this one now, None if none is known. The device must be in the pool."""
    mig = pool.mig_devices.get(device.device)
    own_gpu = device.device if mig is None else gpu_device_name(mig.parent_uuid)
    for name in sorted(pool.gpus):
        if name != own_gpu and pool.gpus[name].minor == device.minor:
            return f"/dev/nvidia{device.minor} is {name} now"
    if mig is None:
        return None
    for name in sorted(pool.mig_devices):
        other = pool.mig_devices[name]
        same_gpu_instance = (other.parent_uuid, other.gpu_instance_id) == (mig.parent_uuid, mig.gpu_instance_id)
        # The first one opens the GPU instance; all compute instances in it share it.
        caps = set(device.access_minors[1:] if same_gpu_instance else device.access_minors)
        both = caps.intersection(other.access_minors or ()) if name != device.device else set()
        if both:
            return f"/dev/nvidia-caps/nvidia-cap{min(both)} is {name} now"
    return None


def _share_a_node(mine: PreparedDevice, former: PreparedDevice) -> bool:
    """Whether the nodes of `former` let their holder use `mine`.

    A part of a GPU is opened by its own nodes of nvidia-caps; the GPU's node, which all of its parts share, opens only
    the whole. A part that is not created yet has no nodes: it is checked again once it has.
    """
    if mine.iommu_group is not None or former.iommu_group is not None:
        return mine.iommu_group == former.iommu_group
    if former.access_minors and not mine.is_whole_gpu:
        return not set(mine.access_minors).isdisjoint(former.access_minors)
    return mine.minor == former.minor


def _has_nodes(device: PreparedDevice) -> bool:
    """Whether containers may have device nodes of a device."""
    return device.minor != NO_MINOR or device.iommu_group is not None


def _nodes(device: PreparedDevice) -> tuple[str, ...]:
    """Return the device nodes of a device, without /dev/vfio/vfio, which all share."""
    if device.iommu_group is not None:
        return (f"/dev/vfio/{device.iommu_group}",)
    return (f"/dev/nvidia{device.minor}", *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in device.access_minors))


def _node(mine: PreparedDevice, former: PreparedDevice) -> str:
    shared = [node for node in _nodes(mine) if node in _nodes(former)]
    return shared[-1] if shared else _nodes(mine)[0]
