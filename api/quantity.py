"""Whole numbers of bytes as Kubernetes Quantities, in the form that the API server itself would write.

The server rewrites a quantity into its canonical form (1024Mi is stored as 1Gi). Publishing that form in the first
place lets a publisher compare what it wants with what is stored.
"""

from __future__ import annotations

import re

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_FACTORS: dict[str, int] = {suffix: 1024**power for power, suffix in enumerate(_BINARY)} | {
    suffix: 1000**power for power, suffix in enumerate(_DECIMAL)
}
_QUANTITY = re.compile(r"([0-9]{1,19})([A-Za-z]{0,2})", re.ASCII)


def format_bytes(count: int) -> str:
    """Return the canonical quantity of exactly this many bytes: 80Gi, 81559Mi, or a plain or decimal number."""
    if count % 1024 == 0:
        return _largest(count, 1024, _BINARY)
    return _largest(count, 1000, _DECIMAL)


def parse_bytes(text: str) -> int:
    """Return the bytes of a quantity that is a whole number with a suffix. Raises ValueError for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{text!r} is no whole number of bytes")
    return int(match[1]) * _FACTORS[match[2]]


def _largest(count: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while count and count % base == 0 and power < len(suffixes) - 1:
        count //= base
        power += 1
    return f"{count}{suffixes[power]}"
