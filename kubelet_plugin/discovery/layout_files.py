"""What files of layouts have in common: NVIDIA's mig-parted and vgpu-device-manager write theirs in one form.

    version: v1
    <key>:
      <name of a layout>:
        - devices: all
          device-filter: ["0x233010DE"]
          …

`devices` is `all` or a list of indices. `device-filter` holds PCI IDs as NVML has them: the device in the upper half,
its vendor in the lower. All layouts of a file are checked, not only the chosen one: a mistake must not stay hidden
until a node uses it. Everything here raises BadInputError naming the place and what was expected there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from dracaena.api.errors import BadInputError

VERSION: Final = "v1"
ALL: Final = "all"
MOST_OF_A_KIND: Final = 1000
"""A larger number of parts is refused before it is used; no GPU has room for a hundred of one kind."""

_DEVICE_ID = re.compile("0x[0-9A-Fa-f]{8}")


class IndexedGpu(Protocol):
    """A GPU that an index means."""

    @property
    def index(self) -> int:
        """Its index now."""
        ...


@dataclass(frozen=True, slots=True)
class LayoutEntry:
    """Which GPUs one entry of a layout is for."""

    indices: tuple[int, ...] | None
    """None: all GPUs."""
    device_ids: tuple[int, ...]
    """PCI IDs of the GPUs that it is for; empty: any."""


E = TypeVar("E", bound=LayoutEntry)
G = TypeVar("G", bound=IndexedGpu)


def named_gpus(
    name: str,
    layouts: Mapping[str, tuple[E, ...]],
    gpus: Mapping[str, G],
    first: Mapping[int, str],
    device_ids: Mapping[str, int],
    is_one_of_all: Callable[[G], bool],
) -> Iterator[tuple[str, E, str, G]]:
    """Yield each GPU that a layout names, once: the place in the file, the entry, the GPU's permanent name, the GPU.

    `gpus` and `device_ids` are by permanent name. `first` says which GPU each index had first: an index of one that was
    lost since means no GPU, even if another one has moved up to it. `devices: all` means those that `is_one_of_all`.
    """
    if name not in layouts:
        raise BadInputError(f"there is no layout {seen(name)}; the file has {listed(sorted(layouts))}")
    by_index = {**{gpu.index: each for each, gpu in gpus.items()}, **first}
    taken: dict[str, int] = {}
    for at, entry in enumerate(layouts[name], 1):
        where = f"layout {name}: entry {at}"
        missing = next((each for each in entry.indices or () if each not in by_index), None)
        if missing is not None:
            raise BadInputError(f"{where}: this node has no GPU {missing}, it has {listed(sorted(by_index))}")
        given = gpus if entry.indices is None else [by_index[each] for each in entry.indices]
        for each in given:
            gpu = gpus.get(each)  # None: it is lost, and the remaining GPUs get their layout
            if gpu is None or (entry.indices is None and not is_one_of_all(gpu)):
                continue
            if entry.device_ids and device_ids.get(each) not in entry.device_ids:
                continue
            if each in taken:
                raise BadInputError(f"layout {name}: GPU {gpu.index} is in entries {taken[each]} and {at}")
            taken[each] = at
            yield where, entry, each, gpu


def entries_of_layouts(document: object, key: str, entry: Callable[[object, str], E]) -> Mapping[str, tuple[E, ...]]:
    """Return the entries of each layout of a file, by name. `entry` reads one, given its place in the file."""
    given = map_of(document, "the file", ("version", key))
    if given.get("version") != VERSION:
        raise BadInputError(f"version: {seen(given.get('version'))}, expected {VERSION!r}")
    found = {}
    for name, entries in map_of(given.get(key), key).items():
        where = f"{key}: {seen(name)}"
        if not name:
            raise BadInputError(f"{where}, expected the name of a layout")
        if not isinstance(entries, list):
            raise BadInputError(f"{where}: {kind(entries)}, expected a list of entries")
        found[name] = tuple(entry(each, f"{where}: entry {at}") for at, each in enumerate(entries, 1))
    return found


def indices_of(given: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """Return the indices of an entry's `devices`, None for all GPUs."""
    value = given.get("devices")
    where = f"{where}: devices"
    if value == ALL:
        return None
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise BadInputError(f"{where}: {seen(value)}, expected {ALL!r} or a list of indices")
    if len(set(value)) != len(value):
        raise BadInputError(f"{where}: {seen(value)} names a GPU twice")
    return tuple(value)


def device_ids_of(given: Mapping[str, Any], where: str) -> tuple[int, ...]:
    """Return the PCI IDs of an entry's `device-filter`; empty: any."""
    value = given.get("device-filter", [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) and _DEVICE_ID.fullmatch(each) for each in texts):
        raise BadInputError(f"{where}: device-filter: {seen(value)}, expected PCI IDs as '0x233010DE'")
    return tuple(int(each, 16) for each in texts)


def counts_of(given: Mapping[str, Any], key: str, where: str, parts: str) -> Mapping[str, int]:
    """Return how many of each kind an entry has under a key; none is 0. `parts` is what is counted."""
    value = given.get(key)
    where = f"{where}: {key}"
    found = {}
    for name, count in map_of({} if value is None else value, where).items():
        if type(count) is not int or not 0 <= count <= MOST_OF_A_KIND:
            raise BadInputError(f"{where}: {seen(name)}: {seen(count)}, expected a number of {parts}")
        if count:
            found[name] = count
    return found


def map_of(value: object, where: str, keys: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a map of texts. With `keys` no others are allowed."""
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: {kind(value)}, expected a map")
    odd = next((key for key in value if not isinstance(key, str)), None)
    if odd is not None:
        raise BadInputError(f"{where}: key {seen(odd)}, expected text")
    unknown = sorted(set(value) - set(keys)) if keys else []
    if unknown:
        raise BadInputError(f"{where}: unknown {listed(unknown)}, expected {listed(keys)}")
    return value


def kind(value: object) -> str:
    """Return what a value is, for a message."""
    return "nothing" if value is None else f"a {type(value).__name__}"


def seen(value: object) -> str:
    """Return a value for a message: short, on one line, without traversing its contents."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number beyond all bounds"
    text = repr(value) if isinstance(value, str | int | float) else kind(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def listed(names: Sequence[object]) -> str:
    """Return names for a message; of many only the first."""
    shown = ", ".join(str(name)[:60] for name in names[:20]) or "none"
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
