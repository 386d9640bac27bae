"""`+ - * / %` and unary minus. Whole numbers never wrap around: overflow is an error."""

from __future__ import annotations

import math
from typing import Any

from dracaena.cel import types
from dracaena.cel.cost import tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_
from dracaena.cel.types import list_of
from dracaena.cel.value import INT_MAX, INT_MIN, UINT_MAX, Duration, Timestamp, UInt, checked_int, checked_uint

# Timestamps lie between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z.
_SECOND = 1_000_000_000
TIMESTAMP_MIN = -62_135_596_800 * _SECOND
TIMESTAMP_MAX = 253_402_300_800 * _SECOND - 1


def checked_timestamp(nanoseconds: int) -> Timestamp:
    """The timestamp, or EvaluationError if it is outside the years 1 to 9999."""
    if TIMESTAMP_MIN <= nanoseconds <= TIMESTAMP_MAX:
        return Timestamp(nanoseconds)
    raise EvaluationError("timestamp overflow")


def checked_duration(nanoseconds: int) -> Duration:
    """The duration, or EvaluationError if int64 cannot hold its nanoseconds."""
    return Duration(checked_int(nanoseconds, "duration overflow"))


def _add_int(left: int, right: int) -> int:
    total = left + right
    if INT_MIN <= total <= INT_MAX:
        return total
    raise EvaluationError("integer overflow")


def _subtract_int(left: int, right: int) -> int:
    return checked_int(left - right)


def _multiply_int(left: int, right: int) -> int:
    return checked_int(left * right)


def _divide_int(left: int, right: int) -> int:
    """Division towards zero."""
    if right == 0:
        raise EvaluationError("division by zero")
    quotient = abs(left) // abs(right)
    return checked_int(quotient if (left < 0) is (right < 0) else -quotient)


def _modulo_int(left: int, right: int) -> int:
    """The remainder has the sign of the dividend."""
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("integer overflow")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _add_uint(left: UInt, right: UInt) -> UInt:
    return checked_uint(int(left) + int(right))


def _subtract_uint(left: UInt, right: UInt) -> UInt:
    return checked_uint(int(left) - int(right))


def _multiply_uint(left: UInt, right: UInt) -> UInt:
    product = int(left) * int(right)
    if product > UINT_MAX:
        raise EvaluationError("unsigned integer overflow")
    return UInt(product)


def _divide_uint(left: UInt, right: UInt) -> UInt:
    if right == 0:
        raise EvaluationError("division by zero")
    return UInt(int(left) // int(right))


def _modulo_uint(left: UInt, right: UInt) -> UInt:
    if right == 0:
        raise EvaluationError("modulus by zero")
    return UInt(int(left) % int(right))


def _divide_double(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _plus(left: Any, right: Any) -> Any:
    return left + right


def _joint_size(left: Any, right: Any) -> int:
    return len(left) + len(right)


def _joint_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(_sizes(arguments))


def _sizes(arguments: tuple[Any, ...]) -> int:
    return sum(len(each) if isinstance(each, str | bytes) else 1 for each in arguments)


_LIST = list_of(types.A)

FUNCTIONS = (
    Function(
        "_+_",
        (
            global_("add_bytes", (types.BYTES, types.BYTES), types.BYTES, _plus, cost=_joint_cost, work=_joint_size),
            global_("add_double", (types.DOUBLE, types.DOUBLE), types.DOUBLE, _plus),
            global_(
                "add_duration_duration",
                (types.DURATION, types.DURATION),
                types.DURATION,
                lambda a, b: checked_duration(a.nanoseconds + b.nanoseconds),
            ),
            global_(
                "add_duration_timestamp",
                (types.DURATION, types.TIMESTAMP),
                types.TIMESTAMP,
                lambda a, b: checked_timestamp(a.nanoseconds + b.nanoseconds),
            ),
            global_(
                "add_timestamp_duration",
                (types.TIMESTAMP, types.DURATION),
                types.TIMESTAMP,
                lambda a, b: checked_timestamp(a.nanoseconds + b.nanoseconds),
            ),
            global_("add_int64", (types.INT, types.INT), types.INT, _add_int),
            global_("add_list", (_LIST, _LIST), _LIST, _plus, work=_joint_size),
            global_(
                "add_string", (types.STRING, types.STRING), types.STRING, _plus, cost=_joint_cost, work=_joint_size
            ),
            global_("add_uint64", (types.UINT, types.UINT), types.UINT, _add_uint),
        ),
    ),
    Function(
        "_-_",
        (
            global_("subtract_double", (types.DOUBLE, types.DOUBLE), types.DOUBLE, lambda a, b: a - b),
            global_(
                "subtract_duration_duration",
                (types.DURATION, types.DURATION),
                types.DURATION,
                lambda a, b: checked_duration(a.nanoseconds - b.nanoseconds),
            ),
            global_("subtract_int64", (types.INT, types.INT), types.INT, _subtract_int),
            global_(
                "subtract_timestamp_duration",
                (types.TIMESTAMP, types.DURATION),
                types.TIMESTAMP,
                lambda a, b: checked_timestamp(a.nanoseconds - b.nanoseconds),
            ),
            global_(
                "subtract_timestamp_timestamp",
                (types.TIMESTAMP, types.TIMESTAMP),
                types.DURATION,
                lambda a, b: checked_duration(a.nanoseconds - b.nanoseconds),
            ),
            global_("subtract_uint64", (types.UINT, types.UINT), types.UINT, _subtract_uint),
        ),
    ),
    Function(
        "_*_",
        (
            global_("multiply_double", (types.DOUBLE, types.DOUBLE), types.DOUBLE, lambda a, b: a * b),
            global_("multiply_int64", (types.INT, types.INT), types.INT, _multiply_int),
            global_("multiply_uint64", (types.UINT, types.UINT), types.UINT, _multiply_uint),
        ),
    ),
    Function(
        "_/_",
        (
            global_("divide_double", (types.DOUBLE, types.DOUBLE), types.DOUBLE, _divide_double),
            global_("divide_int64", (types.INT, types.INT), types.INT, _divide_int),
            global_("divide_uint64", (types.UINT, types.UINT), types.UINT, _divide_uint),
        ),
    ),
    Function(
        "_%_",
        (
            global_("modulo_int64", (types.INT, types.INT), types.INT, _modulo_int),
            global_("modulo_uint64", (types.UINT, types.UINT), types.UINT, _modulo_uint),
        ),
    ),
    Function(
        "-_",
        (
            global_("negate_double", (types.DOUBLE,), types.DOUBLE, lambda a: -a),
            global_("negate_int64", (types.INT,), types.INT, lambda a: checked_int(-a)),
        ),
    ),
)
