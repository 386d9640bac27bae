"""Kubernetes' resource.Quantity as CEL shows it: what `dracaena.api.quantity` reads, with the form in which it is kept.

The reference keeps a quantity either as an int64 times a power of ten or, if that does not fit, as a decimal of any
size, and this is visible: `isInteger` is true only for the first form without digits after the decimal point. So it is
false for "1000m" and for "1Pi". `scale` and `is_decimal` record the form.

Source: k8s.io/apimachinery pkg/api/resource.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dracaena.api.quantity import NANO, NANO_SCALE, Quantity, QuantityError, read_quantity
from dracaena.cel.errors import EvaluationError
from dracaena.cel.types import QUANTITY, Opaque, Type
from dracaena.cel.value import INT_MAX, INT_MIN


@dataclass(frozen=True, slots=True, eq=False)
class QuantityValue(Opaque):
    """An exact amount. Quantities are equal by amount, however they are written."""

    amount: Quantity
    scale: int
    """The reference would keep a whole number × 10^-`scale`."""
    is_decimal: bool = False
    """Whether the reference would keep it as a decimal of any size."""

    cel_type: ClassVar[Type] = QUANTITY

    @staticmethod
    def parse(text: str) -> QuantityValue:
        """Read a quantity as Kubernetes does. Raises EvaluationError; `read_quantity` says how it rounds."""
        try:
            return QuantityValue(*read_quantity(text))
        except QuantityError as error:
            raise EvaluationError(str(error)) from None

    @staticmethod
    def of_int(number: int) -> QuantityValue:
        """A whole number, as `add(1)` makes it."""
        return QuantityValue(Quantity(number * NANO, "exponential"), 0)

    @property
    def sign(self) -> int:
        """-1, 0 or 1."""
        return (self.amount.nano > 0) - (self.amount.nano < 0)

    def compare(self, other: QuantityValue) -> int:
        """-1 if this is less than the other, 0 if equal, 1 if greater."""
        return (self.amount > other.amount) - (self.amount < other.amount)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuantityValue) and self.amount == other.amount

    def __hash__(self) -> int:
        return hash(self.amount)

    def add(self, other: QuantityValue) -> QuantityValue:
        """The sum. It is written like this quantity, or like the other if this is zero."""
        notation = (self if self.amount.nano else other).amount.notation
        total = Quantity(self.amount.nano + other.amount.nano, notation)
        if not (self.is_decimal or other.is_decimal):
            if not other.amount.nano:
                return QuantityValue(total, self.scale)
            if not self.amount.nano:
                return QuantityValue(total, other.scale)
        scale = max(self.scale, other.scale)
        numbers = (_at_scale(amount, scale) for amount in (self.amount, other.amount, total))
        fits = all(INT_MIN <= number <= INT_MAX for number in numbers)
        return QuantityValue(total, scale, self.is_decimal or other.is_decimal or not fits)

    def subtract(self, other: QuantityValue) -> QuantityValue:
        """The difference; `add` says how it is written."""
        return self.add(
            QuantityValue(Quantity(-other.amount.nano, other.amount.notation), other.scale, other.is_decimal)
        )

    def as_int(self) -> int | None:
        """The amount as int64, or None if the reference does not convert it (see above)."""
        if self.is_decimal or self.scale > 0:
            return None
        number = self.amount.nano // NANO
        return number if INT_MIN <= number <= INT_MAX else None

    def approximate(self) -> float:
        """The nearest double of the digits times that of the power of ten: rounded twice, as the reference does."""
        try:
            base = float(_at_scale(self.amount, self.scale))
        except OverflowError:
            base = float("inf") * self.sign
        return base if self.scale == 0 else base * _power_of_ten(-self.scale)

    def __str__(self) -> str:
        """The canonical text."""
        return str(self.amount)


def _at_scale(amount: Quantity, scale: int) -> int:
    """The amount in units of 10^-`scale`, which divide it."""
    if scale > NANO_SCALE:
        return amount.nano * int(10 ** (scale - NANO_SCALE))
    return amount.nano // int(10 ** (NANO_SCALE - scale))


def _power_of_ten(exponent: int) -> float:
    """10^exponent as the product (below one: the quotient) of two doubles, as Go's math.Pow10 computes it."""
    if exponent < -323:
        return 0.0
    if exponent > 308:
        return float("inf")
    large, small = abs(exponent) // 32 * 32, abs(exponent) % 32
    if exponent < 0:
        return float(f"1e-{large}") / float(f"1e{small}")
    return float(f"1e{large}") * float(f"1e{small}")
