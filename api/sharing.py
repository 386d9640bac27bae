"""How the shares of one GPU are kept apart: by `sharing.strategy` and `sharing.interval` of the GpuConfigs that apply
to each of them.

Shares of two modes never meet on one GPU: MPS needs the GPU's compute mode for itself, and a GPU has one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dracaena.api.attributes import CORES_CAPACITY, MEMORY_CAPACITY
from dracaena.api.json_text import deeper_than
from dracaena.api.quantity import NANO, Quantity, parse_quantity

NO_MODE: Final = "none"
"""Mode of a share for which no GpuConfig names a strategy."""

_WITH_INTERVAL: Final = "TimeSlicing"
_DEFAULT_INTERVAL: Final = "Default"
_MPS: Final = "MPS"
_BEST_EFFORT: Final = "BestEffort"
"""The strategy whose shares also have an interval, and the interval if none is named."""

UNREADABLE_MODE: Final = "unreadable"
"""Mode of a share whose config cannot be read: no other share joins it."""

_MOST_LEVELS: Final = 32
"""Lists and objects within one another: as many as a config may have."""

_KIND: Final = "GpuConfig"


class _Sharing(msgspec.Struct, omit_defaults=True):
    strategy: str | None = None
    enforcement: str | None = None
    interval: str | None = None


class _Parameters(msgspec.Struct):
    kind: str = ""
    sharing: _Sharing | None = None


_DECODER: Final = msgspec.json.Decoder(_Parameters)

GpuConfigs = Iterable[tuple[Sequence[str], msgspec.Raw]]
"""Configs of our driver in order: the requests that each is for (none: all), and its parameters."""


def _said(parameters: msgspec.Raw) -> _Sharing:
    """Return what the parameters of a config of ours say about the mode. Never raises.

    It reads what the API server stored for an allocation as leniently as it can: the author of the config gets errors
    elsewhere.
    """
    text = bytes(parameters)
    if deeper_than(text, _MOST_LEVELS):
        return _Sharing(UNREADABLE_MODE)
    try:
        read = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Sharing(UNREADABLE_MODE)
    return _Sharing() if read.kind != _KIND or read.sharing is None else read.sharing


def mode_of(request: str, configs: GpuConfigs) -> str:
    """Return the mode of a request, `request` or `request/subrequest`: `MPS`, `TimeSlicing`, `TimeSlicing Long`.

    Strategy and interval each come from the last GpuConfig for the request that names one.
    """
    said = _last_said(request, configs)
    strategy, interval = said.strategy or NO_MODE, said.interval or _DEFAULT_INTERVAL
    return strategy if strategy != _WITH_INTERVAL or interval == _DEFAULT_INTERVAL else f"{strategy} {interval}"


def requires_mps(request: str, configs: GpuConfigs) -> bool:
    """Return whether a request has MPS or fails: its strategy is MPS, and no GpuConfig does without if need be."""
    said = _last_said(request, configs)
    return said.strategy == _MPS and said.enforcement != _BEST_EFFORT


def _last_said(request: str, configs: GpuConfigs) -> _Sharing:
    """Return what holds for a request: each field as the last GpuConfig for it says that names one."""
    names = {request, request.partition("/")[0]}
    found = _Sharing()
    for requests, parameters in configs:
        if not requests or names & set(requests):
            said = _said(parameters)
            found = _Sharing(
                said.strategy or found.strategy, said.enforcement or found.enforcement, said.interval or found.interval
            )
    return found


def said_of_mode(parameters: msgspec.Raw) -> msgspec.Raw | None:
    """Return the least parameters that say the same about the mode and its enforcement; None if these say nothing."""
    said = _said(parameters)
    return None if said == _Sharing() else msgspec.Raw(msgspec.json.encode(_Parameters(_KIND, said)))


def mode_parameters(mode: str) -> msgspec.Raw:
    """Return the least parameters in which mode_of() finds this mode."""
    return msgspec.Raw(msgspec.json.encode(_Parameters(_KIND, _Sharing(mode))))


MIB_NANO: Final = (1 << 20) * NANO
_GIB_NANO: Final = (1 << 30) * NANO


def in_words(name: str, nano: int) -> str:
    """Return an amount of a capacity, in billionths, in words: `20 GiB of memory`, `30 % of the cores`."""
    if name == CORES_CAPACITY:
        return f"{nano / NANO:g} % of the cores"
    return f"{size_in_words(nano)} of memory" if name == MEMORY_CAPACITY else f"{Quantity(nano)} of {name}"


def amounts_in_words(consumed: Mapping[str, str]) -> str:
    """Return what a share takes according to its claim's status: `20 GiB of memory and 30 % of the cores`; zero amounts
    are left out, and unreadable amounts are repeated as written."""
    words = []
    for name in sorted(consumed, reverse=True):
        try:
            nano = parse_quantity(consumed[name]).nano
        except ValueError:
            words.append(f"{consumed[name]} of {name}")
            continue
        if nano:
            words.append(in_words(name, nano))
    return " and ".join(words) or "nothing"


def taken_in_words(shares: Iterable[Mapping[str, str]], capacity: Mapping[str, str]) -> str:
    """Return what shares together take of a GPU: `30 of 80 GiB, 40 % of the cores`. Unreadable amounts are left out."""
    amounts = list(shares)
    memory, cores = (sum(_nano(one.get(name, "0")) for one in amounts) for name in (MEMORY_CAPACITY, CORES_CAPACITY))
    every = _nano(capacity.get(MEMORY_CAPACITY, "0"))
    taken, whole = size_in_words(memory), size_in_words(every)
    if taken.split()[1] == whole.split()[1]:
        taken = taken.split()[0]
    return f"{taken} of {whole}, {in_words(CORES_CAPACITY, cores)}"


def is_all_memory(consumed: Mapping[str, str], capacity: Mapping[str, str]) -> bool:
    """Return whether a share takes all of a GPU's memory that can be given out: whole MiB."""
    left = _nano(capacity.get(MEMORY_CAPACITY, "0")) - _nano(consumed.get(MEMORY_CAPACITY, "0"))
    return left < MIB_NANO


def memory_percent(consumed: Mapping[str, str], capacity: Mapping[str, str]) -> int:
    """Return how much of a GPU's memory a share takes, in percent, rounded; 0 if the GPU reports none."""
    every = _nano(capacity.get(MEMORY_CAPACITY, "0"))
    return round(100 * _nano(consumed.get(MEMORY_CAPACITY, "0")) / every) if every > 0 else 0


def _nano(text: str) -> int:
    try:
        return parse_quantity(text).nano
    except ValueError:
        return 0


def size_in_words(nano: int) -> str:
    """Return bytes, in billionths, to a tenth of a GiB or MiB: `79.6 GiB`, `512 MiB`."""
    unit, name = (_GIB_NANO, "GiB") if nano >= _GIB_NANO else (MIB_NANO, "MiB")
    return f"{nano / unit:.1f}".removesuffix(".0") + f" {name}"
