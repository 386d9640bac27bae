"""Compact strings: one row of a matrix as an attribute value, one symbol per entry.

The first character is the version of the form. Version 1: the symbols `0`-`9`, `A`-`Z`, `a`-`z` are 0 to 61, `?` is
unknown, `-` is the device itself. There was no version 0. A reader knows its own version and the one before, so readers
learn a new version one release before writers use it.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dracaena.api.limits import ATTRIBUTE_VALUE_BYTES
from dracaena.api.links import MAX_NVLINKS, LinkLevel

WRITTEN_VERSION = "1"
MAX_ENTRIES = ATTRIBUTE_VALUE_BYTES - 1
"""One character each in an attribute's text, minus the one for the version."""
UNKNOWN_SYMBOL = "?"
SELF_SYMBOL = "-"

_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_VALUES = {symbol: value for value, symbol in enumerate(_DIGITS)}
_LEVELS = tuple(LinkLevel)
assert len(_DIGITS) == MAX_NVLINKS + 1  # MAX_NVLINKS is what one symbol can say


class CompactError(ValueError):
    """A compact string that cannot be read: what was seen, what was expected."""

    def __init__(self, seen: str, expected: str) -> None:
        self.seen = seen
        self.expected = expected
        super().__init__(f"{seen}, expected {expected}")


SELF: Final = -1
"""The entry of the device itself."""
Entry = int | None
"""A number of 0 to 61, None for unknown, or SELF."""


def encode(entries: Iterable[Entry]) -> str:
    """Return the string for these entries. It may be longer than an attribute allows."""
    return WRITTEN_VERSION + "".join(_symbol(entry) for entry in entries)


def decode(text: str) -> tuple[Entry, ...]:
    """Return the entries. Raises CompactError for an unknown version (naming it) or symbol."""
    read = _READERS.get(text[:1])
    if read is None:
        raise CompactError(f"form version {text[:1]!r}", f"one of {', '.join(sorted(_READERS))}")
    return read(text[1:])


def level_number(level: LinkLevel | None) -> int | None:
    """Return the place of a level among all levels, near to far: PSB is 0, PIX 1, … SYS 5."""
    return None if level is None else _LEVELS.index(level)


def level_of_number(number: int | None) -> LinkLevel | None:
    """Inverse of level_number. Raises CompactError for a number that is no level."""
    if number is None:
        return None
    if number >= len(_LEVELS):
        raise CompactError(f"level {number}", f"0 to {len(_LEVELS) - 1}")
    return _LEVELS[number]


def _symbol(entry: Entry) -> str:
    if entry is None:
        return UNKNOWN_SYMBOL
    return SELF_SYMBOL if entry == SELF else _DIGITS[entry]


def _read_1(symbols: str) -> tuple[Entry, ...]:
    return tuple(_entry(symbol) for symbol in symbols)


def _entry(symbol: str) -> Entry:
    if symbol == UNKNOWN_SYMBOL:
        return None
    if symbol == SELF_SYMBOL:
        return SELF
    if symbol not in _VALUES:
        raise CompactError(f"symbol {symbol!r}", f"0-9, A-Z, a-z, {UNKNOWN_SYMBOL} or {SELF_SYMBOL}")
    return _VALUES[symbol]


_READERS: Mapping[str, Callable[[str], tuple[Entry, ...]]] = {"1": _read_1}
"""The written version and the one before it, each with its own reader."""
