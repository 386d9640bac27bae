"""Reads quantities in documents of the API."""

from __future__ import annotations

from dracaena.api.quantity import Quantity, parse_quantity
from dracaena.validation.field import Field

_MOST_BITS = 500
"""Bits of a whole number that is read: more than the 60 digits of the largest quantity."""


def check_quantity(field: Field) -> Quantity | None:
    """Read a quantity, a text or a number; null is 0. None, with a finding, if it is not a quantity."""
    value = field.value
    if value is None:
        return Quantity(0)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        field.error("wrong type", "a quantity such as 4, 500m or 16Gi")
        return None
    try:
        return parse_quantity(_written(value))
    except ValueError:
        field.error("not a quantity", "a number with a suffix or none: 4, 500m, 16Gi")
        return None


def _written(value: str | float) -> str:
    if isinstance(value, int):
        return str(value) if value.bit_length() <= _MOST_BITS else ""
    return value.strip() if isinstance(value, str) else repr(value)
