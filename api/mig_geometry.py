"""How a GPU can be divided: the profiles of its GPU instances with their placements, and what each takes of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from dracaena.api.mig import mig_device_name
from dracaena.api.names import DeviceName

ENGINES: Mapping[str, str] = {
    "copy_engines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg_engines": "jpeg-engines",
    "ofa_engines": "ofa-engines",
}
"""Field of MigProfile → the counter of such engines."""

MEMORY_SLICE = "memory-slice-"
"""Prefix of the counters of memory slices; their numbers follow."""

COMPUTE_SLICES = "compute-slices"
"""The counter of compute slices."""


@dataclass(frozen=True, slots=True, order=True)
class MigPlacement:
    """Where a GPU instance can lie: its memory slices are `start` to `start + size - 1`."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The first slice after it."""
        return self.start + self.size

    def __str__(self) -> str:
        return f"memory slice {self.start}" if self.size == 1 else f"memory slices {self.start} to {self.end - 1}"

    def overlaps(self, other: MigPlacement) -> bool:
        """Whether both need the same memory slice."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A size of GPU instances as the driver offers it (nvmlDeviceGetGpuInstanceProfileInfoV)."""

    name: str
    """`1g.10gb`, `1g.10gb+me`: without the `MIG ` that NVML puts before it."""
    profile_id: int
    """The id that NVML needs to make an instance. It differs between drivers; no identity."""
    compute_slices: int
    memory_bytes: int
    multiprocessors: int
    max_instances: int
    """The most instances of it that one GPU can have."""
    placements: tuple[MigPlacement, ...]
    """In ascending order."""
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0

    def check(self) -> None:
        """State the invariants; raise ValueError naming the first that does not hold."""
        if not self.placements or list(self.placements) != sorted(set(self.placements)):
            raise ValueError(f"profile {self.name}: expected placements in ascending order, each once")
        if any(place.start < 0 or place.size < 1 for place in self.placements):
            raise ValueError(f"profile {self.name}: a placement lies outside of the GPU")
        if len({place.start for place in self.placements}) != len(self.placements):
            raise ValueError(f"profile {self.name}: two placements share one start")
        amounts = (self.memory_bytes, self.multiprocessors, *(getattr(self, engine) for engine in ENGINES))
        if min(amounts) < 0 or self.compute_slices < 1 or self.max_instances < 1:
            raise ValueError(f"profile {self.name}: a number is too small")


@dataclass(frozen=True, slots=True)
class MigPlace:
    """One profile at one placement of one GPU: what a claim can have of a GPU that is divided on demand."""

    parent_uuid: str
    profile: MigProfile
    placement: MigPlacement

    @property
    def device_name(self) -> DeviceName:
        """Name in the ResourceSlice, the same as that of a MIG device which lies there."""
        return mig_device_name(self.parent_uuid, self.profile.name, self.placement.start)


def places(parent_uuid: str, profiles: Iterable[MigProfile]) -> tuple[MigPlace, ...]:
    """Return all places of a GPU, small before large, each profile's by their start.

    kube-scheduler takes the first device that fits, and needs it in this order where it allocates.
    """
    by_size = sorted(profiles, key=lambda profile: (profile.compute_slices, profile.memory_bytes, profile.name))
    return tuple(
        MigPlace(parent_uuid, profile, placement) for profile in by_size for placement in sorted(profile.placements)
    )


def counters(profiles: Iterable[MigProfile]) -> Mapping[str, int]:
    """Return what a GPU has of all that its instances compete for: counter → amount; nothing without profiles.

    Memory slices are counted one by one, since a place is made of them. Engines are counted only if instances side by
    side could ask for more than there are: counters cost space in every device. There are as many as all instances of
    some profile have together: for a B200, NVIDIA lists one decoder with each profile, the largest too, and seven
    instances of the smallest. If NVML allows fewer instances of a profile than have room by these counters, the profile
    has a counter of its own.
    """
    known = tuple(profiles)
    if not known:
        return {}
    slices = max(place.end for profile in known for place in profile.placements)
    found = {f"{MEMORY_SLICE}{number}": 1 for number in range(slices)}
    found[COMPUTE_SLICES] = max(profile.compute_slices for profile in known)
    for engine, name in ENGINES.items():
        there = max(getattr(profile, engine) * profile.max_instances for profile in known)
        if _most(known, lambda profile, engine=engine: int(getattr(profile, engine))) > there:  # type: ignore[misc]
            found[name] = there
    for profile in known:
        if _most_alone(profile, found) > profile.max_instances:
            found[_own_counter(profile)] = profile.max_instances
    return found


def consumption(place: MigPlace, there: Mapping[str, int]) -> Mapping[str, int]:
    """Return what a place takes of its GPU's counters; counters that it does not use are left out."""
    return {name: amount for name, amount in _amounts(place.profile, place.placement) if amount and name in there}


def _amounts(profile: MigProfile, placement: MigPlacement) -> Iterator[tuple[str, int]]:
    for number in range(placement.start, placement.end):
        yield f"{MEMORY_SLICE}{number}", 1
    yield COMPUTE_SLICES, profile.compute_slices
    for engine, name in ENGINES.items():
        yield name, getattr(profile, engine)
    yield _own_counter(profile), 1


def _own_counter(profile: MigProfile) -> str:
    return f"instances-{mig_device_name('', profile.name, 0).removeprefix('mig--').removesuffix('-0')}"


def _most(profiles: Iterable[MigProfile], weight: Callable[[MigProfile], int]) -> int:
    """Return the largest sum over instances that share no memory slice, whatever else they share."""
    intervals = sorted(
        (place.end, place.start, weight(profile)) for profile in profiles for place in profile.placements
    )
    best = {0: 0}
    most = 0
    for end, start, amount in intervals:
        before = max(value for upto, value in best.items() if upto <= start)
        most = max(most, before + amount)
        best[end] = max(best.get(end, 0), most)
    return most


def _most_alone(profile: MigProfile, there: Mapping[str, int]) -> int:
    """Return how many instances of one profile have room by the counters."""
    limits = [
        there[name] // amount for name, amount in _amounts(profile, MigPlacement(0, 0)) if name in there and amount
    ]
    return min([_most([profile], lambda _profile: 1), *limits])
