"""Kubernetes Quantities: exact amounts, and whole numbers of bytes in the form that the API server itself would write.

The server rewrites a quantity into its canonical form (1024Mi is stored as 1Gi). Publishing that form in the first
place lets a publisher compare what it wants with what is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

NANO: Final = 10**9
"""Parts of one: the smallest amount that Kubernetes keeps is a billionth."""

Notation = Literal["decimal", "binary", "exponential"]

_AMOUNT: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]+))?", re.ASCII)
_MAX_EXPONENT: Final = 60
"""Powers of ten that are read. 10^60 is beyond any amount, and a text of ten signs must not cost 10^999999999."""
_MAX_LENGTH: Final = 256
"""Characters that are read, for the same reason."""
_MAX_BINARY: Final = (2**63 - 1) * NANO
"""Kubernetes cuts larger amounts with a binary suffix down to this one."""
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}

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


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount. Two are equal when the amounts are; the notation is only for writing (core API,
    `resource.Quantity`)."""

    nano: int
    """Billionths of one."""
    notation: Notation = field(default="decimal", compare=False)

    def whole(self) -> int:
        """Return the amount in ones; fractions are rounded away from zero, as `Quantity.Value()` of Kubernetes does."""
        ones = -(-abs(self.nano) // NANO)
        return -ones if self.nano < 0 else ones

    def __str__(self) -> str:
        """Return the canonical text, as the API server writes it."""
        if self.notation == "binary" and abs(self.nano) >= 1024 * NANO and self.nano % NANO == 0:
            ones = self.nano // NANO
            return _largest(ones, 1024, _BINARY)
        return _decimal_text(self.nano, exponential=self.notation == "exponential")


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """Read any quantity, exactly; what is finer than a billionth is rounded away from zero.

    Raises ValueError for a text that is none. Cost: bounded for every text.
    """
    match = _AMOUNT.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text[:64]!r} is no quantity")
    sign, whole, part, binary, decimal, exponent = (group or "" for group in match.groups())
    digits = int(whole + part)
    if binary:
        amount = min(_scaled(digits * 1024 ** _BINARY.index(binary), 9 - len(part)), _MAX_BINARY)
        notation: Notation = "binary"
    else:
        power = int(exponent) if exponent else _DECIMAL_EXPONENTS[decimal]
        if power > _MAX_EXPONENT:
            raise ValueError(f"{text!r} is more than any quantity: the exponent is above {_MAX_EXPONENT}")
        amount = _scaled(digits, 9 + power - len(part))
        notation = "exponential" if exponent else "decimal"
    return Quantity(-amount if sign == "-" else amount, notation)


def _scaled(digits: int, power: int) -> int:
    """Return digits × 10^power, rounded up to a whole number."""
    if power >= 0:
        return digits * int(10**power)
    # Beyond as many places as there are digits only "is there anything" is left.
    return -(-digits // int(10 ** min(-power, 2 * _MAX_LENGTH)))


def _decimal_text(nano: int, *, exponential: bool) -> str:
    if nano == 0:
        return "0"
    power, mantissa = -9, nano
    while mantissa % 1000 == 0 and (exponential or power < 18):
        mantissa, power = mantissa // 1000, power + 3
    if exponential:
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIXES[power]}"
