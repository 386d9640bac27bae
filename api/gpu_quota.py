"""How much of the GPUs a namespace may hold at once: the annotation `<driver>/quota` of the Namespace, as JSON.

    {"gpus": 8, "gpusByProduct": {"NVIDIA H100 80GB HBM3": 4},
     "shareMemory": "160Gi", "shareCores": 400,
     "migSlices": 14, "migDevicesByProfile": {"1g.10gb": 4}}

What is not named is not limited. docs/quota.md is the page for admins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dracaena.api.errors import BadInputError
from dracaena.api.limits import ATTRIBUTE_VALUE_BYTES
from dracaena.api.quantity import format_bytes, parse_bytes

MOST_BYTES: Final = 16 << 10
"""Longest text that is read: a hundred limits take some 4 KiB."""

MOST_AMOUNT: Final = 1_000_000_000
"""Highest limit of what is counted in pieces: no cluster has that many."""

GPUS: Final = "gpus"
GPUS_BY_PRODUCT: Final = "gpusByProduct"
SHARE_MEMORY: Final = "shareMemory"
SHARE_CORES: Final = "shareCores"
MIG_SLICES: Final = "migSlices"
MIG_DEVICES: Final = "migDevicesByProfile"

KEYS: Final = (GPUS, GPUS_BY_PRODUCT, SHARE_MEMORY, SHARE_CORES, MIG_SLICES, MIG_DEVICES)

UNKNOWN_PRODUCT: Final = ""
"""For held whole GPUs that no slice describes: they count against each product. GPUs that are published without a
product are known to have none, and count against no product."""

_WHOLE: Final = "a whole number of at least 0"
_PROFILE: Final = re.compile(r"(?:[1-7]c\.)?[1-7]g\.[0-9]+gb(?:-me|\+[a-z0-9.]+)?")
_MOST_PROBLEMS: Final = 10


class QuotaItem(NamedTuple):
    """One thing that a quota limits."""

    key: str
    """One of KEYS."""
    name: str = ""
    """The product or the profile, for items that are counted by it."""


Amounts = Mapping[QuotaItem, int]
"""How much of each: GPUs, MIG slices and MIG devices in pieces, memory in bytes, cores in percent of one GPU."""


@dataclass(frozen=True, slots=True)
class QuotaProblem:
    """What is wrong with one part of a quota."""

    path: tuple[str, ...]
    """Keys, from the outside; empty: the whole text."""
    text: str
    """What was seen, and what was expected."""

    def __str__(self) -> str:
        return f"{'.'.join(map(_printable, self.path))}: {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True)
class Excess:
    """A pod that asks for more than its namespace may hold."""

    namespace: str
    counted: QuotaItem
    limit: int
    held: int
    wanted: int

    def __str__(self) -> str:
        holds, wants = amount_in_words(self.counted, self.held), amount_in_words(self.counted, self.wanted)
        may = f"{amount_in_words(self.counted, self.limit)} {what_in_words(self.counted)}"
        return f"namespace {self.namespace} may have {may}, holds {holds}, the pod wants {wants}"


def read_quota(text: str) -> Amounts:
    """Return the limits that a quota sets. Raises BadInputError, which names each key that is wrong."""
    limits, problems = read_leniently(text)
    if problems:
        raise BadInputError("; ".join(map(str, problems)))
    return limits


def read_leniently(text: str) -> tuple[Amounts, tuple[QuotaProblem, ...]]:
    """Return the limits that can be read, and what is wrong with the others, at most ten."""
    if len(text.encode(errors="replace")) > MOST_BYTES:
        return {}, (QuotaProblem((), f"more than {MOST_BYTES >> 10} KiB, expected a JSON object of limits"),)
    try:
        document = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return {}, (QuotaProblem((), f'not JSON ({said}), expected an object such as {{"gpus": 8}}'),)
    if not isinstance(document, _Pairs):
        return {}, (QuotaProblem((), f'{_shown(document)}, expected an object such as {{"gpus": 8}}'),)
    limits: dict[QuotaItem, int] = {}
    problems: list[QuotaProblem] = []
    for path, value in _flat(document):
        found = _limit(path, value)
        if isinstance(found, str):
            problems.append(QuotaProblem(path, found))
        elif found is not None:
            limits[QuotaItem(*path)] = found
    problems += (QuotaProblem(path, "stands twice, expected once") for path in _twice(document))
    return limits, tuple(problems[:_MOST_PROBLEMS])


def find_excess(namespace: str, limits: Amounts, held: Amounts, wanted: Amounts) -> Excess | None:
    """Return the first limit that a namespace would exceed; None: it would exceed none. Limits on products come last,
    because other GPUs may still do. A limit on what the pod does not want does not matter, even if more is held."""
    exceeded = [
        Excess(namespace, one, limits[one], held_of(held, one), count)
        for one, count in wanted.items()
        if count and one in limits and held_of(held, one) + count > limits[one]
    ]
    return min(exceeded, key=lambda one: (one.counted.key == GPUS_BY_PRODUCT, one.counted), default=None)


def held_of(held: Amounts, one: QuotaItem) -> int:
    """Return how much of one item is held."""
    count = held.get(one, 0)
    is_product = one.key == GPUS_BY_PRODUCT and one.name != UNKNOWN_PRODUCT
    return count + held.get(QuotaItem(GPUS_BY_PRODUCT, UNKNOWN_PRODUCT), 0) if is_product else count


def amount_in_words(one: QuotaItem, amount: int) -> str:
    """Return an amount with its unit, if it has one: `160Gi`, `400 %`, `8`."""
    if one.key == SHARE_MEMORY:
        return format_bytes(amount)
    return f"{amount} %" if one.key == SHARE_CORES else str(amount)


def what_in_words(one: QuotaItem) -> str:
    """Return what is counted, in words that follow an amount."""
    return {
        GPUS: "GPUs",
        GPUS_BY_PRODUCT: f"GPUs of product {one.name}",
        SHARE_MEMORY: "of memory in shares of GPUs",
        SHARE_CORES: "of the cores of a GPU in shares",
        MIG_SLICES: "MIG slices",
        MIG_DEVICES: f"MIG devices of profile {one.name}",
    }[one.key]


class _Pairs:
    """The members of a JSON object as written, including repeated names."""

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        self.members = members


def _flat(document: _Pairs) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in document.members:
        if key in (GPUS_BY_PRODUCT, MIG_DEVICES) and isinstance(value, _Pairs):
            yield from (((key, name), one) for name, one in value.members)
        else:
            yield (key,), value


def _twice(document: _Pairs) -> Iterable[tuple[str, ...]]:
    seen: set[tuple[str, ...]] = set()
    inner = (((key,), value) for key, value in document.members)
    names = ((key, name) for key, value in document.members if isinstance(value, _Pairs) for name, _ in value.members)
    for path in (*(path for path, _ in inner), *names):
        if path in seen:
            yield path
        seen.add(path)


def _limit(path: tuple[str, ...], value: Any) -> int | str:
    key, *names = path
    if key not in KEYS:
        return f"unknown, expected one of {', '.join(KEYS)}"
    if key in (GPUS_BY_PRODUCT, MIG_DEVICES):
        if not names:
            of = "product, as its GPUs publish it in productName" if key == GPUS_BY_PRODUCT else "profile"
            return f"{_shown(value)}, expected an object with a number for each {of}"
        if key == GPUS_BY_PRODUCT and not _is_product(names[0]):
            return f"no product, expected the productName of GPUs: 1 to {ATTRIBUTE_VALUE_BYTES} bytes of UTF-8"
        if key == MIG_DEVICES and _PROFILE.fullmatch(names[0]) is None:
            return "no profile, expected a name as nvidia-smi has it, such as 1g.10gb"
    if key == SHARE_MEMORY:
        return _memory(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_AMOUNT:
        return f"{_shown(value)}, expected {_WHOLE}{', in percent of one GPU' if key == SHARE_CORES else ''}"
    return value


def _is_product(name: str) -> bool:
    return _is_unicode(name) and 0 < len(name.encode()) <= ATTRIBUTE_VALUE_BYTES


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded. JSON can escape half a surrogate pair, which no encoding has."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _printable(text: str) -> str:
    return text if _is_unicode(text) else ascii(text)


def _memory(value: Any) -> int | str:
    try:
        return parse_bytes(value) if isinstance(value, str) else f'{_shown(value)}, expected a text such as "160Gi"'
    except ValueError:
        return f'{_shown(value)}, expected a whole number with a unit, such as "160Gi"'


def _shown(value: Any) -> str:
    if isinstance(value, _Pairs):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
