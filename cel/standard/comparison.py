"""`== != < <= > >=` and `!`. Numbers of different types are compared by value."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dracaena.cel import types
from dracaena.cel.cost import size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload, global_
from dracaena.cel.types import Opaque, Type
from dracaena.cel.value import equal


def _number_comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare_numbers(left: float, right: float) -> bool:
        if left != left or right != right:
            raise EvaluationError("NaN values cannot be ordered")
        return compare(float(left), float(right))

    return compare_numbers


def _time_comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare_times(left: Any, right: Any) -> bool:
        return compare(left.nanoseconds, right.nanoseconds)

    return compare_times


def _smaller_size(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(min(size_of(arguments[0]), size_of(arguments[1])))


def _comparison(name: str, id_: str, compare: Callable[[Any, Any], bool]) -> Function:
    numbers = _number_comparison(compare)
    overloads = [
        global_(f"{id_}_bool", (types.BOOL, types.BOOL), types.BOOL, compare),
        global_(f"{id_}_int64", (types.INT, types.INT), types.BOOL, compare),
        global_(f"{id_}_int64_double", (types.INT, types.DOUBLE), types.BOOL, numbers),
        global_(f"{id_}_int64_uint64", (types.INT, types.UINT), types.BOOL, compare),
        global_(f"{id_}_uint64", (types.UINT, types.UINT), types.BOOL, compare),
        global_(f"{id_}_uint64_double", (types.UINT, types.DOUBLE), types.BOOL, numbers),
        global_(f"{id_}_uint64_int64", (types.UINT, types.INT), types.BOOL, compare),
        global_(f"{id_}_double", (types.DOUBLE, types.DOUBLE), types.BOOL, numbers),
        global_(f"{id_}_double_int64", (types.DOUBLE, types.INT), types.BOOL, numbers),
        global_(f"{id_}_double_uint64", (types.DOUBLE, types.UINT), types.BOOL, numbers),
        global_(f"{id_}_string", (types.STRING, types.STRING), types.BOOL, compare, cost=_smaller_size),
        global_(f"{id_}_bytes", (types.BYTES, types.BYTES), types.BOOL, compare, cost=_smaller_size),
        global_(f"{id_}_timestamp", (types.TIMESTAMP, types.TIMESTAMP), types.BOOL, _time_comparison(compare)),
        global_(f"{id_}_duration", (types.DURATION, types.DURATION), types.BOOL, _time_comparison(compare)),
    ]
    return Function(name, tuple(overloads))


def equality_cost(left: Any, right: Any) -> int:
    """Cost of `==` and `!=`: a tenth of the smaller size."""
    return tenth(min(size_of(left), size_of(right)))


def _equals_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    """Values of Kubernetes' own types cost 1, whatever their size."""
    return 1 if isinstance(arguments[0], Opaque) else equality_cost(*arguments)


_SAME: tuple[Type, ...] = (types.A, types.A)


def _unequal(left: Any, right: Any) -> bool:
    return not equal(left, right)


FUNCTIONS = (
    Function("_==_", (global_("equals", _SAME, types.BOOL, equal),), cost=_equals_cost),
    Function("_!=_", (global_("not_equals", _SAME, types.BOOL, _unequal),), cost=_smaller_size),
    _comparison("_<_", "less", operator.lt),
    _comparison("_<=_", "less_equals", operator.le),
    _comparison("_>_", "greater", operator.gt),
    _comparison("_>=_", "greater_equals", operator.ge),
    Function("!_", (Overload("logical_not", (types.BOOL,), types.BOOL, operator.not_),)),
    # The planner evaluates the conditional itself; the declaration is for the checker.
    Function(
        "_?_:_",
        (global_("conditional", (types.BOOL, types.A, types.A), types.A, lambda c, a, b: a if c else b),),
    ),
)
