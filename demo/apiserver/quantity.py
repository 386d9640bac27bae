"""Kubernetes quantities (``1500m``, ``80Gi``): reading, comparing and the one canonical way of writing each.

A server answers with the canonical form whatever the client wrote, so ``1024Mi`` comes back as ``1Gi``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<part>\d*))?(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?"
)
_NANO: Final = 10**9  # the smallest unit that Kubernetes keeps; finer values are rounded up to it
_MOST: Final = (2**63 - 1) * _NANO  # a larger amount, of either sign, is stored as this one
_MOST_DIGITS: Final = len(str(_MOST))
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_OUT: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_BINARY_OUT: Final = {power: suffix for suffix, power in _BINARY.items()}

MALFORMED: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount. Only `nano` (billionths of one) takes part in comparisons; `form` says how it was written."""

    nano: int
    form: str = "decimal"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def whole(self) -> int:
        """The amount in ones, fractions rounded up (away from zero), as ``Quantity.Value()`` does."""
        sign = -1 if self.nano < 0 else 1
        return sign * -(-abs(self.nano) // _NANO)

    def __str__(self) -> str:
        if self.form == "binary" and abs(self.nano) >= 1024 * _NANO and self.nano % _NANO == 0:
            return _write_binary(self.nano // _NANO)
        return _write_decimal(self.nano, exponential=self.form == "exponential")


def _write_binary(ones: int) -> str:
    power = 0
    while ones % 1024 == 0 and power < 6:
        ones, power = ones // 1024, power + 1
    return f"{ones}{_BINARY_OUT.get(power, '')}"


def _write_decimal(nano: int, *, exponential: bool) -> str:
    if nano == 0:
        return "0"
    exponent, mantissa = -9, nano
    while mantissa % 1000 == 0 and (exponential or exponent < 18):
        mantissa, exponent = mantissa // 1000, exponent + 3
    if exponential:
        return f"{mantissa}e{exponent}" if exponent else str(mantissa)
    return f"{mantissa}{_DECIMAL_OUT[exponent]}"


def parse_quantity(text: str) -> Quantity:
    """Read a quantity; ValueError with Kubernetes' wording when the text is none."""
    match = _FORM.fullmatch(text)
    if not match or not (match["whole"] or match["part"]):
        raise ValueError(MALFORMED)
    suffix, part = match["suffix"] or "", match["part"] or ""
    digits = int((match["whole"] or "") + part)
    if suffix in _BINARY:
        numerator, form = digits * 1024 ** _BINARY[suffix] * _NANO, "binary"
        exponent = -len(part)
    else:
        is_exponential = suffix not in _DECIMAL
        exponent = (int(suffix[1:]) if is_exponential else _DECIMAL[suffix]) - len(part)
        numerator, form = digits * _NANO, "exponential" if is_exponential else "decimal"
    nano = min(_scaled(numerator, exponent), _MOST)
    return Quantity(-nano if match["sign"] == "-" else nano, form)


def _scaled(numerator: int, exponent: int) -> int:
    """Return numerator × 10^exponent, rounded up; cheap for any exponent, since more than `_MOST` is all the same."""
    if exponent >= 0:
        return numerator * int(10 ** min(exponent, _MOST_DIGITS))
    return -(-numerator // int(10 ** min(-exponent, numerator.bit_length())))
