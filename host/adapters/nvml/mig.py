"""The MIG devices that exist on one GPU, through NVML."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from ctypes import byref, c_uint
from typing import Any, Protocol

import pynvml

from dracaena.api.mig import EmptyGpuInstance, MigAttributes
from dracaena.api.mig_geometry import MigProfile
from dracaena.host.facts.machine import MigFacts

_NO_DEVICE = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})
"""A number that no MIG device has right now: numbers have gaps."""
_MIB = 1 << 20
_MOST_INSTANCES = 64
"""More than any GPU has: the driver writes as many handles as there are."""
NAME_MARK = "MIG "
"""What precedes the profile in the names of MIG devices and of GPU instance profiles: `… MIG 1g.5gb`."""


class Ask(Protocol):
    """Calls NVML. A refusal gives None, and is recorded for this device unless it is an expected answer."""

    def __call__(self, device: str, call: Any, *arguments: Any, expected: AbstractSet[int] = frozenset()) -> Any:
        """Return the answer of call(*arguments)."""
        ...


def gpu_instances(ask: Ask, device: str, parent: Any, profile: MigProfile) -> Iterator[tuple[Any, Any]]:
    """Yield handle and information (nvmlGpuInstanceInfo_t) of each GPU instance of a profile, in the driver's order.

    The driver knows none outside of MIG mode, and says NOT_SUPPORTED there.
    """
    found, count = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)(), c_uint(_MOST_INSTANCES)
    call = pynvml.nvmlDeviceGetGpuInstances
    if ask(device, call, parent, profile.profile_id, found, byref(count)) is None:
        return
    for instance in found[: count.value]:
        info = ask(device, pynvml.nvmlGpuInstanceGetInfo, instance)
        if info is not None:
            yield instance, info


class MigReader:
    """Reads the MIG devices of one GPU that is in MIG mode."""

    def __init__(self, ask: Ask, device: str, parent: Any, parent_uuid: str) -> None:
        self._ask = ask
        self._device = device
        self._parent = parent
        self._parent_uuid = parent_uuid

    def read(self) -> tuple[MigFacts, ...]:
        """Return them by number. A device without UUID or instance numbers cannot be named and is left out."""
        count = self._ask(self._device, pynvml.nvmlDeviceGetMaxMigDeviceCount, self._parent) or 0
        found = (self._read(number, handle) for number, handle in self._handles(count))
        return tuple(facts for facts in found if facts is not None)

    def empty_gpu_instances(
        self, profiles: tuple[MigProfile, ...], devices: tuple[MigFacts, ...]
    ) -> tuple[EmptyGpuInstance, ...]:
        """Return the GPU instances of these profiles that have none of these MIG devices. Cost: a call a profile, and
        one an instance.
        """
        shown = {device.gpu_instance_id for device in devices}
        found = (
            EmptyGpuInstance(
                self._parent_uuid, int(info.id), profile.name, int(info.placement.start), int(info.placement.size)
            )
            for profile in profiles
            for _instance, info in gpu_instances(self._ask, self._device, self._parent, profile)
        )
        return tuple(each for each in found if each.gpu_instance_id not in shown)

    def _handles(self, count: int) -> Iterator[tuple[int, Any]]:
        call = pynvml.nvmlDeviceGetMigDeviceHandleByIndex
        for number in range(count):
            handle = self._ask(self._device, call, self._parent, number, expected=_NO_DEVICE)
            if handle is not None:
                yield number, handle

    def _read(self, number: int, handle: Any) -> MigFacts | None:
        device = f"MIG {number} of {self._device}"
        identity = self._ask(device, pynvml.nvmlDeviceGetUUID, handle)
        gpu_instance = self._ask(device, pynvml.nvmlDeviceGetGpuInstanceId, handle)
        compute_instance = self._ask(device, pynvml.nvmlDeviceGetComputeInstanceId, handle)
        if identity is None or gpu_instance is None or compute_instance is None:
            return None
        info = self._gpu_instance_info(device, gpu_instance)
        attributes = self._ask(device, pynvml.nvmlDeviceGetAttributes, handle)
        return MigFacts(
            parent_uuid=self._parent_uuid,
            uuid=identity,
            gpu_instance_id=gpu_instance,
            compute_instance_id=compute_instance,
            profile=_profile(self._ask(device, pynvml.nvmlDeviceGetName, handle)),
            start=int(info.placement.start) if info is not None else None,
            size=int(info.placement.size) if info is not None else None,
            memory_bytes=int(attributes.memorySizeMB) * _MIB if attributes is not None else None,
            multiprocessors=int(attributes.multiprocessorCount) if attributes is not None else None,
            attributes=_attributes(attributes) if attributes is not None else None,
        )

    def _gpu_instance_info(self, device: str, gpu_instance: int) -> Any:
        instance = self._ask(device, pynvml.nvmlDeviceGetGpuInstanceById, self._parent, gpu_instance)
        return self._ask(device, pynvml.nvmlGpuInstanceGetInfo, instance) if instance is not None else None


def _attributes(told: Any) -> MigAttributes:
    return MigAttributes(
        gpu_slices=int(told.gpuInstanceSliceCount),
        compute_slices=int(told.computeInstanceSliceCount),
        copy_engines=int(told.sharedCopyEngineCount),
        decoders=int(told.sharedDecoderCount),
        encoders=int(told.sharedEncoderCount),
        jpeg_engines=int(told.sharedJpegCount),
        ofa_engines=int(told.sharedOfaCount),
    )


def _profile(name: str | None) -> str | None:
    """Return what follows the last mark in a MIG device's name."""
    if name is None:
        return None
    _, mark, profile = name.rpartition(NAME_MARK)
    return profile.strip() or None if mark else None
