"""GPUs that are cut into parts on demand (MIG), as ResourceSlices describe them: places, counters, and what is left.

The whole GPU and each part that it can be cut into draw on one set of counters. A place is a profile at a start, and
takes some of each counter; what is left of them is the GPU's state.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import ge, sub
from typing import Final, Generic, TypeVar

from dracaena.api import attributes as table
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import Device, DeviceAttribute

D = TypeVar("D")
"""What is known about a part besides its place."""

Left = tuple[int, ...]
"""What is left of each counter of one GPU, in the order of its geometry: the state of the GPU."""

PROFILE: Final = table.PROFILE.name
START: Final = table.PLACEMENT_START.name
SIZE: Final = table.PLACEMENT_SIZE.name

MAX_PLACES: Final = 256
"""The most devices that draw on the counters of one GPU: its places, and the whole GPU. An H100 has 25 places. Working
out what stays possible takes time that grows with their square: 65,000 comparisons for 256, some 20 ms."""


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """One profile at one start."""

    profile: str
    start: int
    """The first memory slice."""
    size: int
    """Memory slices."""
    compute: int
    """Compute slices."""
    takes: tuple[int, ...]
    """What it takes of each counter of the GPU."""

    @property
    def footprint(self) -> tuple[int, int, int]:
        """What distinguishes places, apart from their engines: 1g.10gb and 1g.10gb+me at one start have the same."""
        return self.start, self.size, self.compute


@dataclass(frozen=True, slots=True)
class PartitionGeometry:
    """All places of a GPU. Equal for GPUs that can be cut in the same way."""

    slices: int
    """Memory slices."""
    there: Left
    """What an unused GPU has of each counter."""
    places: tuple[PartitionPlace, ...]
    """In the order in which they are tried: small before large, each profile by its starts."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.slices, self.there, self.places)))

    def __hash__(self) -> int:
        return self._hash


def fits(place: PartitionPlace, left: Left) -> bool:
    """Return whether there is enough of every counter for a place."""
    return all(map(ge, left, place.takes))


@dataclass(frozen=True, slots=True)
class PartitionedGpu(Generic[D]):
    """One GPU, without its identity."""

    geometry: PartitionGeometry
    numbers: tuple[int, ...]
    """For each place of the geometry its device, by the device's place among all of the node (NodePool.order)."""
    devices: tuple[D, ...]
    """For each place what selectors and constraints can read."""
    taints: tuple[tuple[Taint, ...], ...]
    """For each place its taints besides ours."""
    ordinal: int | None = None
    """Of the whole GPU; None if only its parts can be given."""
    whole: int = -1
    """The whole device, by its place among all devices of the node."""
    whole_takes: Left = ()
    """What the whole device takes of each counter."""
    _mask: int = field(init=False, repr=False, compare=False)
    """Of all its devices, a shortcut for the many unused GPUs."""

    def __post_init__(self) -> None:
        devices = (*self.numbers, *(() if self.ordinal is None else (self.whole,)))
        object.__setattr__(self, "_mask", sum(1 << number for number in set(devices)))

    def left(self, taken: int) -> Left:
        """Return what is left of each counter when these devices of the node are held, whole or in shares; below 0 if
        more was taken than there was."""
        left = self.geometry.there
        if not taken & self._mask:
            return left
        for number, place in zip(self.numbers, self.geometry.places, strict=True):
            if taken >> number & 1:
                left = tuple(map(sub, left, place.takes))
        if self.ordinal is not None and taken >> self.whole & 1:
            left = tuple(map(sub, left, self.whole_takes))
        return left

    def is_whole(self, left: Left) -> bool:
        """Return whether enough is left for the whole GPU."""
        return self.ordinal is not None and all(map(ge, left, self.whole_takes))


@dataclass(frozen=True, slots=True)
class Partitions(Generic[D]):
    """All GPUs of a node that are cut into parts on demand."""

    gpus: tuple[PartitionedGpu[D], ...] = ()
    has_more: bool = False
    """Whether the node has devices to give that are neither whole GPUs nor parts of these."""


def lefts(partitions: Sequence[PartitionedGpu[D]], rest: Hashable) -> tuple[Left, ...]:
    """Return what is left of each GPU of a node, by the rest of its state (NodeState.rest)."""
    taken = 0
    if isinstance(rest, tuple):
        taken, shares = rest
        for place, _ in shares:
            taken |= 1 << place
    return tuple(one.left(taken) for one in partitions)


def broken(partitions: Sequence[PartitionedGpu[D]], rest: Hashable) -> int:
    """Return a mask of the GPUs that cannot be given whole because of what their parts, or others, have taken."""
    return sum(1 << ordinal for ordinal in _broken(partitions, rest))


def _broken(partitions: Sequence[PartitionedGpu[D]], rest: Hashable) -> Iterator[int]:
    for one, left in zip(partitions, lefts(partitions, rest), strict=True):
        if one.ordinal is not None and not one.is_whole(left):
            yield one.ordinal


def partitioned_sets(devices: Iterable[Device], gpus: Collection[str], ours: Collection[str]) -> frozenset[str]:
    """Return the counter sets of GPUs that are cut on demand, with at most MAX_PLACES devices each. `gpus`: names of
    the whole GPUs; `ours`: names of the devices that are ours to allocate."""
    users: dict[str, list[Device]] = {}
    for device in devices:
        for consumption in device.consumes_counters:
            users.setdefault(consumption.counter_set, []).append(device)
    return frozenset(name for name, every in users.items() if _is_understood(every, gpus, ours))


def _is_understood(users: Sequence[Device], gpus: Collection[str], ours: Collection[str]) -> bool:
    if len(users) > MAX_PLACES:
        return False
    wholes = sum(device.name in gpus for device in users)
    places = sum(_is_place(device) for device in users if device.name not in gpus)
    return wholes <= 1 and places > 0 and wholes + places == len(users) and all(_is_simple(one, ours) for one in users)


def _is_simple(device: Device, ours: Collection[str]) -> bool:
    consumes = device.consumes_counters
    is_odd = device.unknown or device.binding_conditions or device.name not in ours
    return len(consumes) == 1 and not consumes[0].compatibility_groups and not is_odd


def _is_place(device: Device) -> bool:
    profile, start, size = (device.attributes.get(name, DeviceAttribute()) for name in (PROFILE, START, SIZE))
    if profile.string is None or start.int_value is None or size.int_value is None:
        return False
    return table.PLACEMENT_START.holds(start.int_value) and table.PLACEMENT_SIZE.holds(size.int_value)
