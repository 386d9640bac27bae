"""How a GPU can be divided, through NVML: the profiles of its GPU instances and where each can be placed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any

import pynvml

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.host.adapters.nvml.mig import NAME_MARK, Ask

_NOT_OFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT})
"""A profile that this GPU does not have, or this driver does not know."""
_MIB = 1 << 20
_GIB = 1 << 30
_MOST_PLACEMENTS = 64
"""More than any GPU has of one profile: the driver gives the count, and we allocate memory by it."""

_SUFFIXES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}
"""What a profile's number means for a driver that reports no names."""


class MigProfileReader:
    """Reads the profiles of one GPU. Cost: two or three calls for each of the 18 numbers that NVML has."""

    def __init__(self, ask: Ask, device: str, handle: Any, memory_bytes: int | None) -> None:
        self._ask = ask
        self._device = device
        self._handle = handle
        self._memory_bytes = memory_bytes

    def read(self) -> tuple[MigProfile, ...]:
        """Return the profiles that the GPU has and whose places are known, by NVML's number; each name once.

        Some drivers report places only while the GPU is in MIG mode.
        """
        found: dict[str, MigProfile] = {}
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = self._info(number)
            placements = () if info is None else tuple(sorted(set(self._placements(int(info.id)))))
            if info is None or not placements:
                continue
            profile = self._profile(number, info, placements)
            try:
                profile.check()
            except ValueError:
                continue
            found.setdefault(profile.name, profile)
        return tuple(found.values())

    def _info(self, number: int) -> Any:
        """Use the call with names, or the first one if the driver is older than that."""
        call = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
        missing = frozenset({pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, *_NOT_OFFERED})
        info = self._ask(self._device, call, self._handle, number, expected=missing)
        return info if info is not None else self._ask(self._device, call, self._handle, number, 1, expected=missing)

    def _placements(self, profile_id: int) -> Iterator[MigPlacement]:
        call = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
        count = c_uint(0)
        if self._ask(self._device, call, self._handle, profile_id, None, byref(count), expected=_NOT_OFFERED) is None:
            return
        places = (pynvml.c_nvmlGpuInstancePlacement_t * min(count.value, _MOST_PLACEMENTS))()
        if self._ask(self._device, call, self._handle, profile_id, places, byref(count)) is None:
            return
        yield from (MigPlacement(int(each.start), int(each.size)) for each in places[: count.value])

    def _profile(self, number: int, info: Any, placements: tuple[MigPlacement, ...]) -> MigProfile:
        return MigProfile(
            name=self._name(number, info),
            profile_id=int(info.id),
            compute_slices=int(info.sliceCount),
            memory_bytes=int(info.memorySizeMB) * _MIB,
            multiprocessors=int(info.multiprocessorCount),
            max_instances=int(info.instanceCount),
            placements=placements,
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
        )

    def _name(self, number: int, info: Any) -> str:
        """Return the driver's name for it, or one composed like nvidia-smi does: slices, then eighths of the memory."""
        try:
            told = str(info.name).removeprefix(NAME_MARK).strip()
        except (AttributeError, UnicodeDecodeError):
            told = ""
        if told or not self._memory_bytes:
            return told or f"{info.sliceCount}g.{math.ceil(int(info.memorySizeMB) / 1024)}gb{_SUFFIXES.get(number, '')}"
        eighths = math.ceil(int(info.memorySizeMB) * _MIB / self._memory_bytes * 8)
        gib = round(eighths / 8 * math.ceil(self._memory_bytes / _GIB))
        return f"{info.sliceCount}g.{gib}gb{_SUFFIXES.get(number, '')}"
