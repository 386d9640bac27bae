"""The GPUs of a machine that the setting `gpus` gives to several claims → which of them they may have at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.discovery.gpu_list import NO_INDICES, GpuList, GpuRole

LEAST_MEMORY_BYTES: Final = 2 << 20
"""The least share plus one step: what the API requires of a range with a step (resource.k8s.io/v1, validRange)."""


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """What the list means on one machine."""

    uuids: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    """Word of the list, or UUID of a GPU that cannot be shared → what is wrong, as a sentence. Such GPUs are not
    shared."""


def shared_gpus(gpu_list: GpuList, machine: Machine, first: Mapping[int, str] = NO_INDICES) -> SharedGpus:
    """Read a list as GpuList.listed() does. `all` skips divided GPUs; a GPU that is named but cannot be shared is a
    problem.
    """
    listed = gpu_list.listed(GpuRole.SHARED, machine, first)
    problems, uuids = dict(listed.problems), set()
    for gpu in listed.gpus:
        if gpu.mig_enabled and gpu.uuid not in listed.named:
            continue
        obstacle = _obstacle(gpu)
        if obstacle is None:
            uuids.add(gpu.uuid)
        else:
            problems[gpu.uuid] = obstacle
    return SharedGpus(frozenset(uuids), problems)


def _obstacle(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return f"GPU {gpu.uuid} is divided into MIG devices, so it cannot be shared"
    if gpu.memory_bytes is None:
        return f"it is not known how much memory GPU {gpu.uuid} has, so it cannot be shared by memory"
    if gpu.memory_bytes < LEAST_MEMORY_BYTES:
        return f"GPU {gpu.uuid} has {gpu.memory_bytes} bytes of memory, too few to be shared"
    return None
