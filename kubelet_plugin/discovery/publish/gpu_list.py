"""A setting that lists GPUs, and the GPUs of a machine → which of them it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dracaena.api.machine import Gpu, Machine

ALL_GPUS: Final = "all"
NO_INDICES: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True)
class ListedGpus:
    """What a list means on one machine."""

    gpus: tuple[Gpu, ...]
    """In the order of the words, each once."""
    is_all: bool
    """Whether the list is `all`, so that no GPU is named."""
    problems: Mapping[str, str]
    """Word → what is wrong with it, as a sentence."""


def listed_gpus(setting: str, machine: Machine, first: Mapping[int, str], done: str) -> ListedGpus:
    """Read a list: `all`, or comma-separated indices, UUIDs and product names; empty: none.

    A product name means all GPUs of that name, ignoring case. `done` says what happens to them, such as `shared`.

    `first` says which UUID each index had first: the index means that GPU from then on. NVML numbers the present GPUs,
    so when one is lost, those after it move up although the setting did not mean them. That is a problem as well.
    """
    words = [word for part in setting.split(",") if (word := part.strip().lower())]
    listed: dict[str, Gpu] = {}
    problems: dict[str, str] = {}
    for word in words:
        if word == ALL_GPUS and len(words) > 1:
            problems[word] = "`all` is combined with other words: leave out one or the other"
            continue
        found = [gpu for gpu in machine.gpus if word == ALL_GPUS or word in _names(gpu, first)]
        moved = next((gpu for gpu in machine.gpus if word == str(gpu.index) and gpu not in found), None)
        if moved is not None:
            problems[word] = (
                f"index {word} was GPU {first[moved.index]} when the plugin started and is GPU {moved.uuid} now, which "
                f"is not {done} by it: name UUIDs"
            )
        elif not found and word != ALL_GPUS:
            problems[word] = f"{word!r} is not an index, UUID or product name of a GPU of this node{_has(machine)}"
        listed.update((gpu.uuid, gpu) for gpu in found)
    return ListedGpus(tuple(listed.values()), words == [ALL_GPUS], problems)


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
