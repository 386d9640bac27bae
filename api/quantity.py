"""Kubernetes quantities ("1Gi", "500m", "1e3"): one parser, exact amounts, canonical text.

The API server rewrites a quantity into its canonical form (1024Mi is stored as 1Gi). Publishing that form in the first
place lets a publisher compare what it wants with what is stored.

`read_quantity` reads a text as Kubernetes does; CEL's quantities and the demo's API server build on it.
`parse_quantity` is stricter and is what the rest of this project uses.

Source: k8s.io/apimachinery pkg/api/resource.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple

NANO: Final = 10**9
"""Parts of one: the smallest amount that Kubernetes keeps is a billionth."""
NANO_SCALE: Final = 9
"""Digits after the decimal point that Kubernetes keeps. Finer amounts are rounded away from zero, so none becomes 0."""

MAX_DIGITS: Final = 1_000
"""Digits of a number, not counting leading zeros, that are read. No amount of anything needs more."""
MAX_EXPONENT: Final = 1_000
"""Powers of ten, either way, that an exponent may name. Kubernetes accepts 32-bit exponents and hangs when it adds 1 to
"1e2000000000"."""

Notation = Literal["decimal", "binary", "exponential"]
"""How a quantity was written, and is written again: DecimalSI, BinarySI and DecimalExponent in Kubernetes."""

_MAX_LENGTH: Final = 256
"""Characters that `parse_quantity` reads: it remembers what it has read, and must not remember long texts."""
_MAX_AMOUNT: Final = 10**60
"""The largest amount that `parse_quantity` accepts: beyond any real amount, and far below the limit of a double."""

INT64_MAX: Final = 2**63 - 1
_SAFE_DIGITS: Final = 18
"""Decimal digits that int64 holds whatever they are."""
_DECIMAL_EXPONENTS: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENTS.items()}
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY_EXPONENTS: Final = {suffix: 10 * power for power, suffix in enumerate(_BINARY_SUFFIXES) if power}

_FORM: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")
_WITH_DIGIT: Final = re.compile(r"[+-]?\.?[0-9]")
_WHOLE_BYTES: Final = re.compile(r"[0-9]{1,19}(?:[KMGTPE]i|[kMGTPE])?")

# The error messages of Kubernetes.
_WRONG_FORM: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_NUMBER: Final = "unable to parse numeric part of quantity"
_WRONG_SUFFIX: Final = "unable to parse quantity's suffix"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount. Two are equal if their amounts are; the notation is only for writing (core API,
    `resource.Quantity`)."""

    nano: int
    """Billionths of one."""
    notation: Notation = field(default="decimal", compare=False)

    def whole(self) -> int:
        """Return the amount in ones; fractions are rounded away from zero, as `Quantity.Value()` of Kubernetes does."""
        ones = -(-abs(self.nano) // NANO)
        return -ones if self.nano < 0 else ones

    def __str__(self) -> str:
        """Return the canonical text: no digits after the point, the largest suffix that allows it, "0" for zero."""
        if self.notation == "binary" and abs(self.nano) >= 1024 * NANO and self.nano % NANO == 0:
            return _binary_text(self.nano // NANO)
        return _decimal_text(self.nano, exponential=self.notation == "exponential")


class StoredQuantity(NamedTuple):
    """A quantity, and the form in which Kubernetes keeps it in memory. CEL's `isInteger` reveals that form."""

    quantity: Quantity
    scale: int
    """What is kept is a whole number × 10^-scale."""
    is_decimal: bool
    """Whether it is kept as a decimal of any size, because the text is too long to be tried as int64."""


class QuantityError(ValueError):
    """A text that is not a quantity; the message is in Kubernetes' words."""


def read_quantity(text: str) -> StoredQuantity:
    """Read any quantity as Kubernetes does, exactly.

    Amounts finer than a billionth are rounded up to one (away from zero); binary amounts above 2^63-1 become that. A
    suffix alone is 0. Raises QuantityError for a text that is not a quantity, and for one beyond MAX_DIGITS or
    MAX_EXPONENT. Cost: one pass over the text; the arithmetic is bounded by these two.
    """
    match = _FORM.fullmatch(text) if text else None
    if match is None:
        raise QuantityError(_WRONG_FORM)
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    base, exponent, notation = _read_suffix(suffix)
    digits = (whole.lstrip("0") or "0") + fraction
    if len(digits) > MAX_DIGITS:
        raise QuantityError(_WRONG_NUMBER)
    unscaled = int(digits) << (exponent if base == 2 else 0)
    scale = len(fraction) - (exponent if base == 10 else 0)
    is_int = _is_tried_as_int(digits, fraction, base, exponent) and scale <= NANO_SCALE and unscaled <= INT64_MAX
    nano = _rounded_up(unscaled, NANO_SCALE - scale)
    if not is_int:
        if not whole and not fraction:
            # Kubernetes takes "." and "Ki" for zero, but not where it needs a decimal.
            raise QuantityError(_WRONG_NUMBER)
        if unscaled:
            scale = NANO_SCALE
        if notation == "binary":
            if nano > INT64_MAX * NANO:
                nano, scale = INT64_MAX * NANO, 0
            elif 0 < nano < NANO:
                notation = "decimal"
    return StoredQuantity(Quantity(-nano if sign == "-" else nano, notation), scale, not is_int)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity:
    """Read a quantity that says how much: with a digit, in at most 256 characters, at most 10^60 either way.

    Raises ValueError for anything else. Rounding and cost are those of `read_quantity`.
    """
    if len(text) > _MAX_LENGTH or _WITH_DIGIT.match(text) is None:
        raise ValueError(f"{text[:64]!r} is not a quantity")
    try:
        quantity = read_quantity(text).quantity
    except QuantityError:
        raise ValueError(f"{text[:64]!r} is not a quantity") from None
    if abs(quantity.nano) > _MAX_AMOUNT * NANO:
        raise ValueError(f"{text[:64]!r} is more than any quantity: above 1e60")
    return quantity


def format_bytes(count: int) -> str:
    """Return the canonical quantity of exactly this many bytes: 80Gi, 81559Mi, or a plain or decimal number."""
    return str(Quantity(count * NANO, "decimal" if count % 1024 else "binary"))


def parse_bytes(text: str) -> int:
    """Return the bytes of a quantity that is a whole number with a suffix. Raises ValueError for anything else."""
    if _WHOLE_BYTES.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return parse_quantity(text).whole()


def _read_suffix(suffix: str) -> tuple[int, int, Notation]:
    """Return base, exponent and notation of a suffix."""
    if suffix in _DECIMAL_EXPONENTS:
        return 10, _DECIMAL_EXPONENTS[suffix], "decimal"
    if suffix in _BINARY_EXPONENTS:
        return 2, _BINARY_EXPONENTS[suffix], "binary"
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(suffix) > MAX_DIGITS or abs(int(match[1])) > MAX_EXPONENT:
        raise QuantityError(_WRONG_SUFFIX)
    return 10, int(match[1]), "exponential"


def _is_tried_as_int(digits: str, fraction: str, base: int, exponent: int) -> bool:
    """Whether Kubernetes tries int64 first: few enough digits that they are likely to fit."""
    if base == 10:
        return len(digits) <= _SAFE_DIGITS
    return not fraction and 15 - len(digits) - exponent * 3 // 10 - 1 >= 0


def _rounded_up(number: int, power: int) -> int:
    """Return number × 10^power, rounded up to a whole number."""
    if power >= 0:
        return number * int(10**power)
    return -(-number // int(10**-power))


def _decimal_text(nano: int, *, exponential: bool) -> str:
    if nano == 0:
        return "0"
    power, mantissa = -NANO_SCALE, nano
    while mantissa % 1000 == 0 and (exponential or power < 18):
        mantissa, power = mantissa // 1000, power + 3
    if exponential:
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_SUFFIXES[power]}"


def _binary_text(ones: int) -> str:
    power = 0
    while ones % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        ones, power = ones // 1024, power + 1
    return f"{ones}{_BINARY_SUFFIXES[power]}"
