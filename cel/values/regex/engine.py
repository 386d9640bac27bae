"""RE2 itself (google-re2): linear in time, bounded in memory, silent. Only this file imports it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import re2

from dracaena.cel.values.regex.pattern import Pattern

# Memory of one pattern, in bytes: its program, and the states that RE2 remembers while it searches. RE2 gives up a
# program of more than a twelfth of this (87,381 instructions), which takes it 25 ms at most; a DNS name takes 20, and
# 63 letters of any script (`\\pL{1,63}`) 76,000.
MOST_MEMORY_BYTES: Final = 1 << 20
# Compiled patterns that are kept, so 32 MiB in all. Many selectors use the same few.
_REMEMBERED: Final = 32


class TooLargeError(ValueError):
    """The pattern takes more than MOST_MEMORY_BYTES."""


def _options(most_memory_bytes: int) -> re2.Options:
    options = re2.Options()
    options.max_mem = most_memory_bytes
    options.log_errors = False  # RE2 would write to standard error
    return options


_OPTIONS: Final = _options(MOST_MEMORY_BYTES)
# For a pattern of ours that walks all of Unicode: forty times as fast as with 1 MiB, and not kept.
_ROOMY: Final = _options(8 << 20)


@lru_cache(maxsize=_REMEMBERED)
def _ready(pattern: str) -> Any:
    return _compiled(pattern, _OPTIONS)


def _compiled(pattern: str, options: re2.Options) -> Any:
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        if b"too large" in reason:
            raise TooLargeError(pattern) from None
        raise ValueError(reason.decode(errors="replace")) from None
    finally:
        re2.purge()  # the module has its own memory of 128 patterns, which ours makes superfluous


def search(pattern: Pattern, text: str) -> str | None:
    """The leftmost match, or None. Raises TooLargeError, and ValueError for what RE2 refuses."""
    ready = _ready(pattern.text)
    found = ready.match(text) if pattern.walks else ready.search(text)
    return None if found is None else str(found[int(pattern.walks)])


def spans(pattern: Pattern, text: str) -> Iterator[tuple[int, int]]:
    """Where the matches are, from left to right; empty ones may occur twice. Raises as `search` does."""
    ready = _ready(pattern.text)
    return _walked(ready, text) if pattern.walks else (found.span() for found in ready.finditer(text))


def _walked(ready: Any, text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while at <= len(text) and (found := ready.match(text, at)) is not None:
        begin, end = found.span(1)
        yield begin, end
        at = end if end > at else at + 1


def runs(pattern: str, text: str) -> list[tuple[int, int]]:
    """Where the matches are, for a pattern and a text of ours that are used once: nothing is kept."""
    return [found.span() for found in _compiled(pattern, _ROOMY).finditer(text)]


def program_size(pattern: str) -> int:
    """How many instructions RE2 needs for a pattern in its own syntax. Raises as `search` does."""
    return int(_ready(pattern).programsize)
