"""Who holds what of a GPU: the whole, a part made by MIG, or shares that are counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dracaena.api.attributes import ALL_CORES
from dracaena.api.names import DeviceName
from dracaena.api.quantity import format_bytes
from dracaena.kubelet_plugin.device_kinds.shared_device import shareable_bytes
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, TIME_SLICE, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice, PublishedPool

ANYWHERE: Final = ""
"""Where a claim is that has a device of an unknown address, or a node that may be another device's by now."""

_PARTS: Final = "parts"
"""Where parts of any GPU are: their nodes are numbered together."""


def held_at(claim: PreparedClaim) -> frozenset[str]:
    """Return where a claim holds something: GPUs by device name and PCI address. Another claim can only conflict with
    it, by the other functions here and by held_nodes(), if they have such a place in common, or the other is ANYWHERE.
    """
    places = {ANYWHERE} if claim.former else set()
    for device in claim.devices:
        places |= {device.physical_gpu, device.pci_bus_id or ANYWHERE}
        if device.access_minors:
            places.add(_PARTS)
    return frozenset(places)


def holders(
    wanted: PreparedClaim, prepared: Iterable[PreparedClaim]
) -> tuple[tuple[PreparedDevice, PreparedDevice, PreparedClaim], ...]:
    """Return each wanted device that another claim holds, with that claim's conflicting device and the claim.

    A MIG device conflicts with its whole GPU, and a share with its whole device; shares of one device do not conflict
    with each other. A GPU for virtual machines conflicts with the GPU at its PCI address and with each part of it;
    vGPUs of one GPU do not conflict with each other.
    Devices for admin access hold nothing and are held by nobody.
    """
    gpus = {device.physical_gpu for device in wanted.devices if not device.admin_access}
    slots = {device.pci_bus_id for device in wanted.devices if not device.admin_access} - {None}
    held: dict[DeviceName, list[tuple[PreparedDevice, PreparedClaim]]] = {}
    by_slot: dict[str, list[tuple[PreparedDevice, PreparedClaim]]] = {}
    mine_uid = wanted.claim.uid
    for other in prepared:
        for device in other.devices:
            gpu = device.physical_gpu
            if (gpu in gpus or device.pci_bus_id in slots) and other.claim.uid != mine_uid:
                held.setdefault(gpu, []).append((device, other))
                if device.pci_bus_id is not None:
                    by_slot.setdefault(device.pci_bus_id, []).append((device, other))
    found = []
    for mine in wanted.devices:
        gpu = mine.physical_gpu
        overlap = next(
            (
                (theirs, claim)
                for theirs, claim in held.get(gpu, ())
                if not mine.goes_with(theirs) and _overlap(mine, theirs, gpu)
            ),
            None,
        )
        if overlap is None:
            overlap = next(
                (each for each in by_slot.get(mine.pci_bus_id or "", ()) if _changed_driver(mine, each[0])), None
            )
        if overlap is not None:
            found.append((mine, *overlap))
    return tuple(found)


def of_unknown_address(
    wanted: PreparedClaim, prepared: Iterable[PreparedClaim], pool: PublishedPool
) -> tuple[tuple[PreparedDevice, PreparedDevice, PreparedClaim], ...]:
    """Return each wanted device that may be, or overlap, a device of another claim whose GPU is no longer known: its
    address was not kept (a broken checkpoint), and neither the driver nor the vGPU manager has it now. With the device
    of that claim and the claim.
    """
    mine_by_hands = [(device, _hands(device)) for device in wanted.devices if not device.admin_access]
    found = []
    for other in prepared:
        for theirs in other.devices if other.claim.uid != wanted.claim.uid else ():
            if theirs.pci_bus_id is not None or theirs.admin_access:
                continue
            address = _address(theirs, pool)
            found += [
                (mine, theirs, other)
                for mine, hands in mine_by_hands
                if hands is not _hands(theirs) and address in (None, mine.pci_bus_id)
            ]
    return tuple(found)


def _address(device: PreparedDevice, pool: PublishedPool) -> str | None:
    """Return the PCI address of the GPU that a device is or is a part of, None if it is not known now."""
    if device.is_vgpu:
        vgpu = pool.vgpus.get(device.device)
        return None if vgpu is None else vgpu.parent
    gpu = pool.gpus.get(device.physical_gpu)
    return None if gpu is None else gpu.pci_bus_id


def _changed_driver(mine: PreparedDevice, theirs: PreparedDevice) -> bool:
    """Whether two devices at one PCI address are the same GPU, moved to another driver since the other claim got it.
    Nothing but the address connects the two: the UUID of one of them is not known.
    """
    return _hands(mine) is not _hands(theirs) and not (mine.admin_access or theirs.admin_access)


class _Hands(Enum):
    """Which driver has a GPU."""

    GPU_DRIVER = 1
    VFIO = 2
    VGPU_MANAGER = 3


def _hands(device: PreparedDevice) -> _Hands:
    if device.is_vgpu:
        return _Hands.VGPU_MANAGER
    return _Hands.VFIO if device.is_passthrough else _Hands.GPU_DRIVER


def _overlap(mine: PreparedDevice, theirs: PreparedDevice, gpu: DeviceName) -> bool:
    """Whether two devices of one GPU have a part of it in common.

    Two MIG devices that exist at the same time never overlap. But theirs may not exist any more, and mine not yet: the
    claim that was given the slices holds them.
    """
    if mine.device == theirs.device or gpu in (mine.device, theirs.device):
        return True
    if None in (mine.start, mine.size, theirs.start, theirs.size):
        return False
    if mine.gpu_instance_id is not None and mine.gpu_instance_id == theirs.gpu_instance_id:
        return False
    assert mine.start is not None
    assert mine.size is not None
    assert theirs.start is not None
    assert theirs.size is not None
    return mine.start < theirs.start + theirs.size and theirs.start < mine.start + mine.size


@dataclass(frozen=True, slots=True)
class Overdrawn:
    """A GPU of which a claim wants shares that do not fit beside the held ones."""

    device: DeviceName
    wanted: tuple[int, int]
    """Bytes of memory and percent of the cores; the next two alike."""
    held: tuple[int, int]
    there: tuple[int, int]
    holders: tuple[PreparedClaim, ...]
    """The other claims that have shares of it, in the order given."""

    def is_by(self, some: Sequence[PreparedClaim]) -> bool:
        """Whether the wanted amount does not even fit beside these holders alone, if all others give back theirs."""
        return _exceeds(self.wanted, _sum(some, self.device, self.there[0]), self.there)

    def __str__(self) -> str:
        memory = self.wanted[0] + self.held[0] > self.there[0]
        wanted, held, there = (
            format_bytes(each[0]) if memory else f"{each[1]} %" for each in (self.wanted, self.held, self.there)
        )
        return (
            f"{wanted} of the {'memory' if memory else 'cores'} of {self.device} do not fit next to {held} that other "
            f"claims have: it has {there}"
        )


def overdrawn(wanted: PreparedClaim, prepared: Iterable[PreparedClaim], pool: PublishedPool) -> tuple[Overdrawn, ...]:
    """Return the GPUs of which a claim wants more than is left, by what all claims consume (consumedCapacity).

    A share of unknown size counts as all of the memory. Devices for admin access do not count.
    """
    shared = list(dict.fromkeys(d.device for d in _shares(wanted)))
    if not shared:
        return ()
    others = [other for other in prepared if other.claim.uid != wanted.claim.uid]
    found = []
    for device in shared:
        gpu = pool.gpus.get(device)
        memory_bytes = 0 if gpu is None or gpu.memory_bytes is None else shareable_bytes(gpu.memory_bytes)
        there = (memory_bytes, ALL_CORES)
        beside = tuple(other for other in others if any(d.device == device for d in _shares(other)))
        mine, theirs = _sum([wanted], device, memory_bytes), _sum(beside, device, memory_bytes)
        if _exceeds(mine, theirs, there):
            found.append(Overdrawn(device, mine, theirs, there, beside))
    return tuple(found)


def of_another_mode(
    wanted: PreparedClaim, prepared: Iterable[PreparedClaim]
) -> tuple[tuple[DeviceName, PreparedClaim, str], ...]:
    """Return each GPU of which a claim wants a share that is incompatible with another claim's, with that claim and the
    difference. While MPS serves a GPU, nothing can use it without MPS; and a GPU has one interval.
    """
    mine = [(share.device, _division(wanted, share)) for share in _shares(wanted)]
    found: dict[tuple[DeviceName, str], PreparedClaim] = {}
    for other in prepared if mine else ():
        if other.claim.uid != wanted.claim.uid:
            theirs = [(share.device, _division(other, share)) for share in _shares(other)]
            for (device, one), (place, another) in itertools.product(mine, theirs):
                difference = _difference(one, another)
                if device == place and difference is not None:
                    found.setdefault((device, difference), other)
    return tuple((device, other, difference) for (device, difference), other in found.items())


def _division(claim: PreparedClaim, share: PreparedDevice) -> tuple[bool, Scalar | None]:
    """Return whether a share is by MPS, and the interval of its time slices, even while the old one is restored."""
    own = [each for each in claim.wants if (each.device, each.share_id) == (share.device, share.share_id)]
    intervals = (each.parameters.get("interval") for each in own if each.kind == TIME_SLICE)
    return any(each.kind == MPS_SHARE for each in own), next(intervals, None)


def _difference(one: tuple[bool, Scalar | None], other: tuple[bool, Scalar | None]) -> str | None:
    if one[0] is not other[0]:
        return "one of the two uses MPS and the other does not: a GPU is shared in one way at a time"
    if None in (one[1], other[1]) or one[1] == other[1]:
        return None
    return f"the two want time slices of different intervals, {one[1]} and {other[1]}: a GPU has one at a time"


_NOTHING: Final = (0, 0)


def _exceeds(mine: tuple[int, int], theirs: tuple[int, int], there: tuple[int, int]) -> bool:
    return any(a + b > limit for a, b, limit in zip(mine, theirs, there, strict=True))


def _sum(claims: Sequence[PreparedClaim], device: DeviceName, all_bytes: int) -> tuple[int, int]:
    shares = [d for claim in claims for d in _shares(claim) if d.device == device]
    if not shares:
        return _NOTHING
    memory = sum(all_bytes if share.memory_bytes is None else share.memory_bytes for share in shares)
    return memory, sum(share.cores for share in shares)


def _shares(claim: PreparedClaim) -> list[PreparedDevice]:
    return [d for d in claim.devices if d.share_id is not None and not d.admin_access]
