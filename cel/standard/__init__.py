"""The standard functions and operators of CEL, and optional values."""

from typing import Final

from dracaena.cel.function import Function
from dracaena.cel.standard import arithmetic, collections, comparison, conversion, optionals, text, times

STANDARD: Final[tuple[Function, ...]] = (
    *arithmetic.FUNCTIONS,
    *comparison.FUNCTIONS,
    *collections.FUNCTIONS,
    *conversion.FUNCTIONS,
    *text.FUNCTIONS,
    *times.FUNCTIONS,
    *optionals.FUNCTIONS,
)
