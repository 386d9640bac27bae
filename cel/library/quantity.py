"""Kubernetes' quantity library. `sign` is called by name, `sign(q)`: the reference declares it so."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import reading_work, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import BOOL, DOUBLE, INT, QUANTITY, STRING
from dracaena.cel.values.quantity import QuantityValue


def _is_quantity(text: str) -> bool:
    try:
        QuantityValue.parse(text)
    except EvaluationError:
        return False
    return True


def _as_integer(quantity: QuantityValue) -> int:
    number = quantity.as_int()
    if number is None:
        raise EvaluationError("cannot convert value to integer")
    return number


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


_PAIR: Final = (QUANTITY, QUANTITY)

FUNCTIONS: Final = (
    Function(
        "quantity",
        (global_("string_to_quantity", (STRING,), QUANTITY, QuantityValue.parse, work=reading_work),),
        _text_cost,
    ),
    Function(
        "isQuantity", (global_("is_quantity_string", (STRING,), BOOL, _is_quantity, work=reading_work),), _text_cost
    ),
    Function("sign", (global_("quantity_sign", (QUANTITY,), INT, lambda quantity: quantity.sign),), 1),
    Function(
        "isGreaterThan",
        (member("quantity_is_greater_than", _PAIR, BOOL, lambda quantity, other: quantity.compare(other) > 0),),
        1,
    ),
    Function(
        "isLessThan",
        (member("quantity_is_less_than", _PAIR, BOOL, lambda quantity, other: quantity.compare(other) < 0),),
        1,
    ),
    Function("compareTo", (member("quantity_compare_to", _PAIR, INT, QuantityValue.compare),), 1),
    Function("asApproximateFloat", (member("quantity_get_float", (QUANTITY,), DOUBLE, QuantityValue.approximate),), 1),
    Function("asInteger", (member("quantity_get_int", (QUANTITY,), INT, _as_integer),), 1),
    Function(
        "isInteger",
        (member("quantity_is_integer", (QUANTITY,), BOOL, lambda quantity: quantity.as_int() is not None),),
        1,
    ),
    Function(
        "add",
        (
            member("quantity_add", _PAIR, QUANTITY, QuantityValue.add),
            member(
                "quantity_add_int",
                (QUANTITY, INT),
                QUANTITY,
                lambda quantity, number: quantity.add(QuantityValue.of_int(number)),
            ),
        ),
        1,
    ),
    Function(
        "sub",
        (
            member("quantity_sub", _PAIR, QUANTITY, QuantityValue.subtract),
            member(
                "quantity_sub_int",
                (QUANTITY, INT),
                QUANTITY,
                lambda quantity, number: quantity.subtract(QuantityValue.of_int(number)),
            ),
        ),
        1,
    ),
)
