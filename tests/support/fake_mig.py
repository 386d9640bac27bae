"""GPUs that can be divided, under the fake NVML: NVIDIA's rules of MIG, as the real pynvml meets them.

The hardware outlives the library: a plugin that is killed and started again finds the instances that it left.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pynvml

from dracaena.api.machine import Machine
from dracaena.api.mig_geometry import ENGINES, MigPlacement, MigProfile
from support.fake_nvml import INVALID_ARGUMENT, NOT_SUPPORTED, OK, FakeNvml
from support.fake_nvml_values import FakeMig

NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
IN_USE = pynvml.NVML_ERROR_IN_USE
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
INSUFFICIENT_RESOURCES = pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES

_GPU_INSTANCE, _COMPUTE_INSTANCE = 0x10000, 0x20000
_NEWER = ("Hopper", "Blackwell")
"""Architectures that change the MIG mode without a reset."""

_BY_SLICES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""Slices → NVML's number of the plain profile, of GPU and compute instances alike."""
_BY_SUFFIX = {
    "+me": {1: 7, 2: 8},
    "+gfx": {1: 10, 2: 11, 3: 17, 4: 12},
    "-me": {1: 13, 2: 14},
    "+me.all": {1: 15, 2: 16},
}
"""Suffix of a profile's name → slices → NVML's number of the profile."""
_COMPUTE_SLICES = {number: slices for slices, number in _BY_SLICES.items()} | {7: 1, 8: 7}

CHANGES = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""The calls that change something."""


@dataclass
class FakeGpuInstance:
    """One GPU instance of a GPU."""

    profile: MigProfile
    placement: MigPlacement
    compute: dict[int, str] = field(default_factory=dict)
    """Compute instance → UUID of the MIG device."""
    busy: bool = False
    """Whether a process uses it."""


@dataclass
class FakeDividedGpu:
    """What one GPU is like now."""

    mode: bool = False
    pending: bool = False
    instances: dict[int, FakeGpuInstance] = field(default_factory=dict)
    watched: bool = False
    """Whether another process holds the GPU open, a monitor for example: its mode cannot be changed."""
    pids: list[int] = field(default_factory=list)
    """What computes on it as a whole; what runs on one of its instances is that one's `busy`."""
    graphics_pids: list[int] = field(default_factory=list)
    """What draws with it."""
    device_id: int = 0


class FakeMigHardware:
    """The GPUs of one machine. `made` counts the MIG devices that there ever were."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.refused_compute = {7, 8}
        """NVML's numbers of the profiles of compute instances that are offered, and that the driver then does not make
        (kubernetes-sigs/dra-driver-nvidia-gpu#1480)."""
        self.gpus = [FakeDividedGpu(bool(gpu.mig_enabled), bool(gpu.mig_enabled)) for gpu in machine.gpus]
        self.made = 0

    def changes_at_once(self, ordinal: int) -> bool:
        return self.machine.gpus[ordinal].architecture in _NEWER

    def put(self, ordinal: int, profile: str, start: int, *, compute: bool = True) -> FakeGpuInstance:
        """Make an instance as an admin does."""
        gpu = self.gpus[ordinal]
        gpu.mode = gpu.pending = True
        known = next(each for each in self.machine.gpus[ordinal].mig_profiles if each.name == profile)
        placement = next(place for place in known.placements if place.start == start)
        assert self.refusal(ordinal, known, placement) is None
        instance = FakeGpuInstance(known, placement)
        gpu.instances[self.free_number(ordinal)] = instance
        if compute:
            instance.compute[0] = self.new_uuid()
        return instance

    def new_uuid(self) -> str:
        self.made += 1
        return f"MIG-{uuid.UUID(int=self.made)}"

    def free_number(self, ordinal: int) -> int:
        taken = self.gpus[ordinal].instances
        return next(number for number in range(1, 100) if number not in taken)

    def refusal(self, ordinal: int, profile: MigProfile, placement: MigPlacement) -> int | None:
        """Return why NVIDIA's driver makes no such instance now, None where it does."""
        gpu, profiles = self.gpus[ordinal], self.machine.gpus[ordinal].mig_profiles
        if not gpu.mode:
            return int(NOT_SUPPORTED)
        if placement not in profile.placements:
            return int(INVALID_ARGUMENT)
        others = list(gpu.instances.values())
        if any(placement.overlaps(other.placement) for other in others):
            return int(INSUFFICIENT_RESOURCES)
        if sum(1 for other in others if other.profile == profile) >= profile.max_instances:
            return int(INSUFFICIENT_RESOURCES)
        for resource in ("compute_slices", *ENGINES):
            together = resource != "compute_slices"  # what one profile needs for all its instances is certainly there
            there = max(getattr(each, resource) * (each.max_instances if together else 1) for each in profiles)
            if getattr(profile, resource) + sum(getattr(other.profile, resource) for other in others) > there:
                return int(INSUFFICIENT_RESOURCES)
        return None

    def layout(self, ordinal: int) -> list[tuple[str, int, int]]:
        """Return the instances: profile, start, number of compute instances; sorted by start."""
        found = self.gpus[ordinal].instances.values()
        return sorted((each.profile.name, each.placement.start, len(each.compute)) for each in found)


class FakeMigNvml(FakeNvml):
    """The library on that hardware, as one process has it open."""

    def __init__(self, hardware: FakeMigHardware, *, privileged: bool = True, places_need_mode: bool = False) -> None:
        super().__init__(hardware.machine)
        self.hardware = hardware
        self.privileged = privileged
        self.places_need_mode = places_need_mode
        """Whether this driver tells placements only while a GPU is in MIG mode."""
        self.before_change: Callable[[str], None] = lambda _symbol: None
        self.after_change: Callable[[str], None] = lambda _symbol: None
        self.once: dict[str, int] = {}
        """Symbol → error of its next call, which does nothing."""
        self.late: dict[str, int] = {}
        """Symbol → error that its next call answers after it did what it was asked for."""

    @property
    def migs(self) -> tuple[FakeMig, ...]:
        """All MIG devices: they exist only where there is a compute instance."""
        return tuple(self._migs())

    @migs.setter
    def migs(self, _given: tuple[FakeMig, ...]) -> None:
        pass

    def _migs(self) -> Iterator[FakeMig]:
        for ordinal, gpu in enumerate(self.hardware.gpus):
            number = 0
            for gi, each in sorted(gpu.instances.items()):
                for ci, identity in sorted(each.compute.items()):
                    name = f"{self.machine.gpus[ordinal].product_name} MIG {each.profile.name}"
                    yield FakeMig(
                        ordinal, number, identity, name, gi, ci, each.placement.start, each.placement.size,
                        each.profile.memory_bytes >> 20, each.profile.multiprocessors,
                    )  # fmt: skip
                    number += 1

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        call = super().__getattr__(symbol)

        def watched(*arguments: Any) -> Any:
            if symbol in self.once:
                return self.once.pop(symbol)
            if symbol not in CHANGES:
                return call(*arguments)
            self.before_change(symbol)
            if not self.privileged:
                return int(NO_PERMISSION)
            answer = call(*arguments)
            self.after_change(symbol)
            return self.late.pop(symbol) if answer == OK and symbol in self.late else answer

        return watched

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        gpu = self.hardware.gpus[_ordinal(handle)]
        if not self.machine.gpus[_ordinal(handle)].mig_profiles:
            return int(NOT_SUPPORTED)
        current._obj.value, pending._obj.value = int(gpu.mode), int(gpu.pending)
        return int(OK)

    def _nvmlDeviceSetMigMode(self, handle: Any, mode: int, status: Any) -> int:
        ordinal = _ordinal(handle)
        gpu = self.hardware.gpus[ordinal]
        if not self.machine.gpus[ordinal].mig_profiles:
            return int(NOT_SUPPORTED)
        status._obj.value = OK
        if gpu.instances and not mode:
            return int(IN_USE)
        gpu.pending = bool(mode)
        if gpu.mode == bool(mode):
            return int(OK)
        if not self.hardware.changes_at_once(ordinal):
            status._obj.value = RESET_REQUIRED
        elif gpu.watched:
            status._obj.value = IN_USE
        else:
            gpu.mode = bool(mode)
        return int(OK)

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, number: int, info: Any) -> int:
        profile = next((p for p in self._profiles(handle) if _number(p) == number), None)
        if profile is None:
            return int(NOT_SUPPORTED)
        told = info._obj
        if told.version == pynvml.nvmlGpuInstanceProfileInfo_v2:
            told.name = f"MIG {profile.name}".encode()
        return _tell(told, profile)

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, number: int, info: Any) -> int:
        profile = next((p for p in self._profiles(handle) if _number(p) == number), None)
        return int(NOT_SUPPORTED) if profile is None else _tell(info._obj, profile)

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(self, handle: Any, number: int, places: Any, count: Any) -> int:
        profile = next((p for p in self._profiles(handle) if p.profile_id == number), None)
        if profile is None or (self.places_need_mode and not self.hardware.gpus[_ordinal(handle)].mode):
            return int(NOT_SUPPORTED)
        if places is not None:
            if count._obj.value < len(profile.placements):
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
            for at, place in enumerate(reversed(profile.placements)):  # in no order that is promised
                places[at].start, places[at].size = place.start, place.size
        count._obj.value = len(profile.placements)
        return int(OK)

    def _nvmlDeviceCreateGpuInstanceWithPlacement(self, handle: Any, number: int, place: Any, instance: Any) -> int:
        ordinal = _ordinal(handle)
        profile = next((p for p in self._profiles(handle) if p.profile_id == number), None)
        if profile is None:
            return int(INVALID_ARGUMENT)
        asked = getattr(place, "_obj", place)
        placement = MigPlacement(int(asked.start), int(asked.size))
        refusal = self.hardware.refusal(ordinal, profile, placement)
        if refusal is not None:
            return refusal
        gi = self.hardware.free_number(ordinal)
        self.hardware.gpus[ordinal].instances[gi] = FakeGpuInstance(profile, placement)
        return _give(instance, _GPU_INSTANCE + ordinal * 0x100 + gi)

    def _nvmlDeviceGetGpuInstances(self, handle: Any, number: int, instances: Any, count: Any) -> int:
        ordinal = _ordinal(handle)
        if not self.hardware.gpus[ordinal].mode:
            return int(NOT_SUPPORTED)
        found = [
            gi
            for gi, each in sorted(self.hardware.gpus[ordinal].instances.items())
            if each.profile.profile_id == number
        ]
        for at, gi in enumerate(found):
            instances[at] = _as(pynvml.c_nvmlGpuInstance_t, _GPU_INSTANCE + ordinal * 0x100 + gi)
        count._obj.value = len(found)
        return int(OK)

    def _nvmlDeviceGetGpuInstanceById(self, handle: Any, gi: int, instance: Any) -> int:
        ordinal = _ordinal(handle)
        if not self.hardware.gpus[ordinal].mode:
            return int(NOT_SUPPORTED)
        if gi not in self.hardware.gpus[ordinal].instances:
            return int(NOT_FOUND)
        return _give(instance, _GPU_INSTANCE + ordinal * 0x100 + gi)

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> int:
        _ordinal_of, gi, found = self._instance(instance)
        if found is None:
            return int(INVALID_ARGUMENT)
        told = info._obj
        told.id, told.profileId = gi, found.profile.profile_id
        told.placement.start, told.placement.size = found.placement.start, found.placement.size
        return int(OK)

    def _nvmlGpuInstanceDestroy(self, instance: Any) -> int:
        ordinal, gi, found = self._instance(instance)
        if found is None:
            return int(NOT_FOUND)
        if found.compute or found.busy:
            return int(IN_USE)
        del self.hardware.gpus[ordinal].instances[gi]
        return int(OK)

    def _nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        self, instance: Any, number: int, _engine: int, info: Any
    ) -> int:
        _ordinal_of, _gi, found = self._instance(instance)
        slices = _COMPUTE_SLICES.get(number)
        if found is None or slices is None or slices > found.profile.compute_slices:
            return int(NOT_SUPPORTED)
        info._obj.id, info._obj.sliceCount, info._obj.instanceCount = number + 50, slices, 1
        return int(OK)

    def _nvmlGpuInstanceCreateComputeInstance(self, instance: Any, number: int, compute: Any) -> int:
        ordinal, gi, found = self._instance(instance)
        if found is None:
            return int(NOT_FOUND)
        if number - 50 in self.hardware.refused_compute:
            return int(NOT_SUPPORTED)
        if found.compute:
            return int(INSUFFICIENT_RESOURCES)
        found.compute[0] = self.hardware.new_uuid()
        return _give(compute, _COMPUTE_INSTANCE + ordinal * 0x1000 + gi * 0x10)

    def _nvmlGpuInstanceGetComputeInstances(self, instance: Any, number: int, computes: Any, count: Any) -> int:
        ordinal, gi, found = self._instance(instance)
        if found is None:
            return int(NOT_FOUND)
        whole = _BY_SLICES[found.profile.compute_slices] + 50
        listed = sorted(found.compute) if number == whole else []
        for at, ci in enumerate(listed):
            handle = _COMPUTE_INSTANCE + ordinal * 0x1000 + gi * 0x10 + ci
            computes[at] = _as(pynvml.c_nvmlComputeInstance_t, handle)
        count._obj.value = len(listed)
        return int(OK)

    def _nvmlComputeInstanceGetInfo_v2(self, compute: Any, info: Any) -> int:
        ordinal, gi, ci = _compute(compute)
        found = self.hardware.gpus[ordinal].instances.get(gi)
        if found is None or ci not in found.compute:
            return int(INVALID_ARGUMENT)
        info._obj.id = ci
        place = next(
            at
            for at, mig in enumerate(self.migs)
            if (mig.parent, mig.gpu_instance, mig.compute_instance) == (ordinal, gi, ci)
        )
        info._obj.device = _as(pynvml.c_nvmlDevice_t, 0x2000 + place)
        return int(OK)

    def _nvmlComputeInstanceDestroy(self, compute: Any) -> int:
        ordinal, gi, ci = _compute(compute)
        found = self.hardware.gpus[ordinal].instances.get(gi)
        if found is None or ci not in found.compute:
            return int(NOT_FOUND)
        if found.busy:
            return int(IN_USE)
        del found.compute[ci]
        return int(OK)

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        """A GPU shows what runs on it as a whole, a MIG device what runs on that."""
        mig = self._mig(handle)
        if mig is None:
            pids = self.hardware.gpus[_ordinal(handle)].pids
        else:
            pids = [4000 + mig.gpu_instance] * self.hardware.gpus[mig.parent].instances[mig.gpu_instance].busy
        return _list_processes(pids, count, infos)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        is_part = self._mig(handle) is not None
        return _list_processes([] if is_part else self.hardware.gpus[_ordinal(handle)].graphics_pids, count, infos)

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        info._obj.pciDeviceId = self.hardware.gpus[_ordinal(handle)].device_id
        return super()._nvmlDeviceGetPciInfo_v3(handle, info)

    def _profiles(self, handle: Any) -> tuple[MigProfile, ...]:
        return self.machine.gpus[_ordinal(handle)].mig_profiles

    def _instance(self, handle: Any) -> tuple[int, int, FakeGpuInstance | None]:
        ordinal, gi = divmod(_value(handle) - _GPU_INSTANCE, 0x100)
        return ordinal, gi, self.hardware.gpus[ordinal].instances.get(gi)


def _list_processes(pids: list[int], count: Any, infos: Any) -> int:
    if pids and infos is None:
        count._obj.value = len(pids)
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for info, pid in zip(infos or (), pids, strict=False):
        info.pid = pid
    count._obj.value = len(pids)
    return int(OK)


def _number(profile: MigProfile) -> int:
    """Return NVML's number of a profile."""
    suffix = profile.name.partition("gb")[2]
    if suffix:
        return _BY_SUFFIX[suffix][profile.compute_slices]
    double = profile.compute_slices == 1 and profile.placements[0].size == 2
    return 9 if double else _BY_SLICES[profile.compute_slices]


def _tell(told: Any, profile: MigProfile) -> int:
    told.id, told.sliceCount, told.instanceCount = profile.profile_id, profile.compute_slices, profile.max_instances
    told.multiprocessorCount, told.memorySizeMB = profile.multiprocessors, profile.memory_bytes >> 20
    told.copyEngineCount, told.decoderCount, told.encoderCount = (
        profile.copy_engines, profile.decoders, profile.encoders
    )  # fmt: skip
    told.jpegCount, told.ofaCount = profile.jpeg_engines, profile.ofa_engines
    return int(OK)


def _as(kind: Any, value: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(value), kind)


def _give(reference: Any, value: int) -> int:
    ctypes.cast(ctypes.pointer(reference._obj), ctypes.POINTER(ctypes.c_void_p)).contents.value = value
    return int(OK)


def _value(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _ordinal(handle: Any) -> int:
    return _value(handle) - 0x1000


def _compute(handle: Any) -> tuple[int, int, int]:
    ordinal, rest = divmod(_value(handle) - _COMPUTE_INSTANCE, 0x1000)
    return (ordinal, *divmod(rest, 0x10))
