"""Kubernetes' resource.Quantity: "1Gi", "500m", "1e3". All arithmetic is exact.

The reference keeps a quantity either as an int64 times a power of ten or, when that does not fit, as a decimal of any
size, and lets that show: `isInteger` is true only for the first form without digits behind the point. So it is false
for "1000m", and for "1Pi". `decimal` is that difference.

Source: k8s.io/apimachinery pkg/api/resource.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import QUANTITY, Opaque, Type
from dracaena.cel.value import INT_MAX, INT_MIN

# Digits of a number, and powers of ten that an exponent may name. The reference takes exponents of 32 bits, and hangs
# on adding 1 to "1e2000000000"; no amount of anything needs more than this.
MAX_DIGITS: Final = 1_000
MAX_EXPONENT: Final = 1_000

_FINEST_SCALE: Final = 9  # digits behind the point; finer amounts are rounded away from zero, so none becomes nothing
_SAFE_DIGITS: Final = 18  # decimal digits that int64 holds whatever they are


class Notation(Enum):
    """How the quantity was written, and is written again."""

    DECIMAL_SUFFIX = "DecimalSI"
    DECIMAL_EXPONENT = "DecimalExponent"
    BINARY_SUFFIX = "BinarySI"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity(Opaque):
    """The amount `unscaled` × 10^-`scale`. Quantities are equal by amount, however they are written."""

    unscaled: int
    scale: int
    notation: Notation = Notation.DECIMAL_SUFFIX
    decimal: bool = False
    """Whether the reference would keep it as a decimal of any size."""

    cel_type: ClassVar[Type] = QUANTITY

    @staticmethod
    def parse(text: str) -> Quantity:
        """Read a quantity as Kubernetes does. Raises EvaluationError.

        Amounts finer than a billionth are rounded up to one (away from zero), binary ones above 2^63-1 are that.
        """
        return _parse(text)

    @staticmethod
    def of_int(number: int) -> Quantity:
        """A whole number, as `add(1)` makes it."""
        return Quantity(number, 0, Notation.DECIMAL_EXPONENT)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.unscaled > 0) - (self.unscaled < 0)

    def compare(self, other: Quantity) -> int:
        """-1 when this is less than the other, 0 when equal, 1 when greater."""
        mine, others = self._at_common_scale(other)
        return (mine > others) - (mine < others)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __hash__(self) -> int:
        return hash(_without_tens(self.unscaled, -self.scale))

    def add(self, other: Quantity) -> Quantity:
        """The sum. It is written like this quantity, or like the other when this is zero."""
        notation = self.notation if self.unscaled else other.notation
        if not (self.decimal or other.decimal):
            if not other.unscaled:
                return Quantity(self.unscaled, self.scale, notation)
            if not self.unscaled:
                return Quantity(other.unscaled, other.scale, notation)
        mine, others = self._at_common_scale(other)
        fits = all(INT_MIN <= number <= INT_MAX for number in (mine, others, mine + others))
        decimal = self.decimal or other.decimal or not fits
        return Quantity(mine + others, max(self.scale, other.scale), notation, decimal)

    def subtract(self, other: Quantity) -> Quantity:
        """The difference; `add` says how it is written."""
        return self.add(Quantity(-other.unscaled, other.scale, other.notation, other.decimal))

    def as_int(self) -> int | None:
        """The amount as int64, or None when the reference does not convert it (see above)."""
        if self.decimal or self.scale > 0:
            return None
        number: int = self.unscaled * 10**-self.scale
        return number if INT_MIN <= number <= INT_MAX else None

    def approximate(self) -> float:
        """The nearest double of the digits times that of the power of ten: rounded twice, as the reference does."""
        try:
            base = float(self.unscaled)
        except OverflowError:
            base = float("inf") * self.sign
        return base if self.scale == 0 else base * _power_of_ten(-self.scale)

    def __str__(self) -> str:
        """The canonical text: no digits behind the point, the largest suffix that allows it, "0" for zero."""
        if not self.unscaled:
            return "0"
        if self.notation is Notation.BINARY_SUFFIX:
            amount, one = self._at_common_scale(Quantity(1, 0))
            if amount % one == 0 and abs(amount) >= 1024 * one:
                return _binary_text(amount // one)
        return _decimal_text(self.unscaled, -self.scale, exponents=self.notation is Notation.DECIMAL_EXPONENT)

    def _at_common_scale(self, other: Quantity) -> tuple[int, int]:
        """Both amounts as multiples of the finer one's last digit."""
        scale = max(self.scale, other.scale)
        return self.unscaled * 10 ** (scale - self.scale), other.unscaled * 10 ** (scale - other.scale)


_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SUFFIX_OF_EXPONENT: Final = {exponent: suffix for suffix, exponent in _SUFFIXES.items()}
_BINARY_SUFFIX_NAMES: Final = ("", *_BINARY_SUFFIXES)

_PARTS: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")

_WRONG_FORM: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_WRONG_NUMBER: Final = "unable to parse numeric part of quantity"
_WRONG_SUFFIX: Final = "unable to parse quantity's suffix"


def _parse(text: str) -> Quantity:
    match = _PARTS.fullmatch(text) if text else None
    if match is None:
        raise EvaluationError(_WRONG_FORM)
    sign, whole, fraction, suffix = match.group(1), match.group(2), match.group(3) or "", match.group(4)
    base, exponent, notation = _read_suffix(suffix)
    digits = (whole.lstrip("0") or "0") + fraction
    if len(digits) > MAX_DIGITS:
        raise EvaluationError(_WRONG_NUMBER)
    unscaled = int(digits) << (exponent if base == 2 else 0)
    scale = len(fraction) - (exponent if base == 10 else 0)
    if _is_tried_as_int(digits, fraction, base, exponent) and scale <= _FINEST_SCALE and unscaled <= INT_MAX:
        return Quantity(-unscaled if sign == "-" else unscaled, scale, notation)
    if not whole and not fraction:
        raise EvaluationError(
            _WRONG_NUMBER
        )  # the reference takes "." and "Ki" for zero, but not where it needs a decimal
    return _decimal_form(-1 if sign == "-" else 1, unscaled, scale, notation)


def _read_suffix(suffix: str) -> tuple[int, int, Notation]:
    """Base, exponent and notation of a suffix."""
    if suffix in _SUFFIXES:
        return 10, _SUFFIXES[suffix], Notation.DECIMAL_SUFFIX
    if suffix in _BINARY_SUFFIXES:
        return 2, _BINARY_SUFFIXES[suffix], Notation.BINARY_SUFFIX
    match = _EXPONENT.fullmatch(suffix)
    if match is None or len(suffix) > MAX_DIGITS or abs(int(match.group(1))) > MAX_EXPONENT:
        raise EvaluationError(_WRONG_SUFFIX)
    return 10, int(match.group(1)), Notation.DECIMAL_EXPONENT


def _is_tried_as_int(digits: str, fraction: str, base: int, exponent: int) -> bool:
    """Whether the reference tries int64 first: few enough digits that they are likely to fit."""
    if base == 10:
        return len(digits) <= _SAFE_DIGITS
    return not fraction and 15 - len(digits) - exponent * 3 // 10 - 1 >= 0


def _decimal_form(sign: int, unscaled: int, scale: int, notation: Notation) -> Quantity:
    """A decimal of any size, rounded and capped."""
    if unscaled:
        if scale > _FINEST_SCALE:
            unscaled = -(-unscaled // 10 ** (scale - _FINEST_SCALE))
        else:
            unscaled *= 10 ** (_FINEST_SCALE - scale)
        scale = _FINEST_SCALE
    if notation is Notation.BINARY_SUFFIX:
        if unscaled > INT_MAX * 10**scale:
            unscaled, scale = INT_MAX, 0
        elif 0 < unscaled < 10**scale:
            notation = Notation.DECIMAL_SUFFIX
    return Quantity(sign * unscaled, scale, notation, decimal=True)


def _power_of_ten(exponent: int) -> float:
    """10^exponent as the product (below one: the quotient) of two doubles, as Go's math.Pow10 makes it."""
    if exponent < -323:
        return 0.0
    if exponent > 308:
        return float("inf")
    large, small = abs(exponent) // 32 * 32, abs(exponent) % 32
    if exponent < 0:
        return float(f"1e-{large}") / float(f"1e{small}")
    return float(f"1e{large}") * float(f"1e{small}")


def _without_tens(number: int, exponent: int) -> tuple[int, int]:
    """The same amount with all factors of ten in the exponent."""
    if not number:
        return 0, 0
    while number % 10 == 0:
        number //= 10
        exponent += 1
    return number, exponent


def _decimal_text(number: int, exponent: int, *, exponents: bool) -> str:
    number, exponent = _without_tens(number, exponent)
    shown = exponent // 3 * 3
    if not exponents:
        shown = min(shown, max(_SUFFIX_OF_EXPONENT))
    number *= 10 ** (exponent - shown)
    if not exponents:
        return f"{number}{_SUFFIX_OF_EXPONENT[shown]}"
    return f"{number}e{shown}" if shown else str(number)


def _binary_text(number: int) -> str:
    times = 0
    while number % 1024 == 0 and times < len(_BINARY_SUFFIXES):
        number //= 1024
        times += 1
    return f"{number}{_BINARY_SUFFIX_NAMES[times]}"
