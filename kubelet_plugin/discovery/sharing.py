"""The setting `sharing` and the GPUs of a machine → which GPUs several claims may have at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.machine import Gpu, Machine

ALL_GPUS: Final = "all"

LEAST_MEMORY_BYTES: Final = 2 << 20
"""The least share and one step more: what the API wants of a range with a step (resource.k8s.io/v1, validRange)."""


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """What a setting comes to on one machine."""

    uuids: frozenset[str] = frozenset()
    problems: Mapping[str, str] = field(default_factory=dict)
    """Word of the setting, or UUID of a GPU that cannot be shared → what is wrong, as a sentence. What is unclear is
    shared by nobody."""


NO_INDICES: Final[Mapping[int, str]] = {}


def shared_gpus(setting: str, machine: Machine, first: Mapping[int, str] = NO_INDICES) -> SharedGpus:
    """Read a setting: `all`, or indices, UUIDs and product names with commas between them; empty: none.

    A product name stands for all GPUs of that name, whatever its case. With `all`, GPUs that are divided are passed
    over; one that is named and cannot be shared is a problem.

    `first` tells which UUID each index had first: it stands for that GPU from then on. NVML counts the GPUs that are
    there, so when one is lost, those behind it move up, and nobody meant to share them. That is a problem as well.
    """
    words = [word for part in setting.split(",") if (word := part.strip().lower())]
    uuids: set[str] = set()
    problems: dict[str, str] = {}
    for word in words:
        if word == ALL_GPUS and len(words) > 1:
            problems[word] = "`all` stands beside other words: leave out one or the other"
            continue
        found = [gpu for gpu in machine.gpus if word == ALL_GPUS or word in _names(gpu, first)]
        moved = next((gpu for gpu in machine.gpus if word == str(gpu.index) and gpu not in found), None)
        if moved is not None:
            problems[word] = (
                f"index {word} was GPU {first[moved.index]} when the plugin started and is GPU {moved.uuid} now, which "
                "is not shared by it: name UUIDs"
            )
        elif not found and word != ALL_GPUS:
            problems[word] = f"{word!r} is no index, UUID or product name of a GPU of this node{_has(machine)}"
        for gpu in found:
            if gpu.mig_enabled and word == ALL_GPUS:
                continue
            obstacle = _obstacle(gpu)
            if obstacle is None:
                uuids.add(gpu.uuid)
            else:
                problems[gpu.uuid] = obstacle
    return SharedGpus(frozenset(uuids), problems)


def _names(gpu: Gpu, first: Mapping[int, str]) -> Iterator[str]:
    if first.get(gpu.index, gpu.uuid) == gpu.uuid:
        yield str(gpu.index)
    yield from (str(index) for index, uuid in first.items() if uuid == gpu.uuid)
    yield gpu.uuid.lower()
    yield from () if gpu.product_name is None else (gpu.product_name.lower(),)


def _has(machine: Machine) -> str:
    if not machine.gpus:
        return ", which has none"
    known = sorted({gpu.product_name for gpu in machine.gpus if gpu.product_name is not None})
    return f" (indices {', '.join(str(gpu.index) for gpu in machine.gpus)}; {', '.join(known) or 'names not known'})"


def _obstacle(gpu: Gpu) -> str | None:
    if gpu.mig_enabled:
        return f"GPU {gpu.uuid} is divided into MIG devices, so it cannot be shared"
    if gpu.memory_bytes is None:
        return f"it is not known how much memory GPU {gpu.uuid} has, so it cannot be shared by memory"
    if gpu.memory_bytes < LEAST_MEMORY_BYTES:
        return f"GPU {gpu.uuid} has {gpu.memory_bytes} bytes of memory, too few to be shared"
    return None
