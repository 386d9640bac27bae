"""Conversions between types, and `type`, `dyn`. Numbers are read from text as Go's strconv does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn

from dracaena.cel import types
from dracaena.cel.cost import reading_work, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload, global_
from dracaena.cel.standard import times
from dracaena.cel.standard.arithmetic import checked_timestamp
from dracaena.cel.types import Type
from dracaena.cel.value import INT_MAX, INT_MIN, UINT_MAX, Duration, Timestamp, TypeValue, UInt, checked_uint, type_name

_INT_TEXT = re.compile(r"[+-]?[0-9]+")
_UINT_TEXT = re.compile(r"[0-9]+")
_DIGITS = r"[0-9]+(?:_[0-9]+)*"  # an underscore may separate digits
_HEX_DIGITS = r"[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
_DECIMAL_TEXT = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_TEXT = re.compile(rf"[+-]?0[xX]_?(?:{_HEX_DIGITS}\.?(?:{_HEX_DIGITS})?|\.{_HEX_DIGITS})[pP][+-]?{_DIGITS}")
_NO_NUMBER = re.compile(r"[+-]?inf(?:inity)?|nan", re.IGNORECASE)

# Digits of the longest number that fits: longer text need not be read, and Python refuses 4,300 digits.
_MOST_DIGITS = 400


def _refuse(value: Any, target: str) -> NoReturn:
    raise EvaluationError(f"type conversion error from '{type_name(value)}' to '{target}'")


def _whole(text: str, pattern: re.Pattern[str], smallest: int, largest: int, target: str) -> int:
    if pattern.fullmatch(text) and len(text.lstrip("+-0")) <= _MOST_DIGITS:
        number = int(text[0].strip("0123456789") + (text.lstrip("+-0") or "0"))
        if smallest <= number <= largest:
            return number
    _refuse(text, target)


def _string_to_int(text: str) -> int:
    return _whole(text, _INT_TEXT, INT_MIN, INT_MAX, "int")


def _string_to_uint(text: str) -> UInt:
    return UInt(_whole(text, _UINT_TEXT, 0, UINT_MAX, "uint"))


def _double_to_int(number: float) -> int:
    """The part before the decimal point. The limits themselves are refused because they are not exact doubles."""
    if not math.isfinite(number) or not float(INT_MIN) < number < float(INT_MAX):
        raise EvaluationError("integer overflow")
    return int(number)


def _double_to_uint(number: float) -> UInt:
    if not math.isfinite(number) or not 0 <= number < float(UINT_MAX):
        raise EvaluationError("unsigned integer overflow")
    return UInt(number)


def _uint_to_int(number: UInt) -> int:
    if number > INT_MAX:
        raise EvaluationError("integer overflow")
    return int(number)


def _string_to_double(text: str) -> float:
    if _NO_NUMBER.fullmatch(text):
        return float(text)
    try:
        if _DECIMAL_TEXT.fullmatch(text):
            number = float(text)
        elif _HEX_TEXT.fullmatch(text):
            number = float.fromhex(text.replace("_", ""))
        else:
            _refuse(text, "double")
    except OverflowError:
        _refuse(text, "double")
    return number if math.isfinite(number) else _refuse(text, "double")


def double_to_string(number: float) -> str:
    """The shortest text that reads back as the number, with an exponent below 1e-4 and from 1e+06 (Go's %g)."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    sign, digits, exponent = _shortest(number)
    if digits == "0":
        return f"{sign}0"
    if exponent < -4 or exponent >= _FIRST_EXPONENT:
        point = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}{'.' + fraction if fraction else ''}"


_FIRST_EXPONENT = 6  # from here on text has an exponent; below, all digits are written


def _shortest(number: float) -> tuple[str, str, int]:
    """Sign, shortest digits and decimal exponent of the first digit."""
    digits = Decimal(repr(abs(number))).normalize()
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    return sign, "".join(map(str, digits.as_tuple().digits)), digits.adjusted()


_BOOL_TEXTS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _string_to_bool(text: str) -> bool:
    found = _BOOL_TEXTS.get(text)
    return _refuse(text, "bool") if found is None else found


def _bytes_to_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def _bool_to_string(value: bool) -> str:  # noqa: FBT001
    return "true" if value else "false"


def _type(value: Any) -> TypeValue:
    return TypeValue(type_name(value))


def _same(value: Any) -> Any:
    return value


def _int_to_duration(number: int) -> Duration:
    _refuse(number, "google.protobuf.Duration")


def _int_to_timestamp(seconds: int) -> Timestamp:
    return checked_timestamp(seconds * 1_000_000_000)


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


def _from(id_: str, source: Type, target: Type, convert: Callable[[Any], Any], **more: Any) -> Overload:
    return global_(id_, (source,), target, convert, **more)


FUNCTIONS = (
    Function("type", (_from("type", types.A, types.type_of_type(types.A), _type),)),
    Function("dyn", (_from("to_dyn", types.A, types.DYN, _same),)),
    Function(
        "bool",
        (
            _from("bool_to_bool", types.BOOL, types.BOOL, _same),
            _from("string_to_bool", types.STRING, types.BOOL, _string_to_bool, work=reading_work),
        ),
    ),
    Function(
        "bytes",
        (
            _from("bytes_to_bytes", types.BYTES, types.BYTES, _same),
            _from("string_to_bytes", types.STRING, types.BYTES, str.encode, cost=_text_cost),
        ),
    ),
    Function(
        "double",
        (
            _from("double_to_double", types.DOUBLE, types.DOUBLE, _same),
            _from("int64_to_double", types.INT, types.DOUBLE, float),
            _from("string_to_double", types.STRING, types.DOUBLE, _string_to_double, work=reading_work),
            _from("uint64_to_double", types.UINT, types.DOUBLE, float),
        ),
    ),
    Function(
        "duration",
        (
            _from("duration_to_duration", types.DURATION, types.DURATION, _same),
            _from("int64_to_duration", types.INT, types.DURATION, _int_to_duration),
            _from("string_to_duration", types.STRING, types.DURATION, times.duration_of, work=reading_work),
        ),
    ),
    Function(
        "int",
        (
            _from("int64_to_int64", types.INT, types.INT, _same),
            _from("double_to_int64", types.DOUBLE, types.INT, _double_to_int),
            _from("duration_to_int64", types.DURATION, types.INT, lambda value: value.nanoseconds),
            _from("string_to_int64", types.STRING, types.INT, _string_to_int, work=reading_work),
            _from("timestamp_to_int64", types.TIMESTAMP, types.INT, lambda value: value.nanoseconds // 1_000_000_000),
            _from("uint64_to_int64", types.UINT, types.INT, _uint_to_int),
        ),
    ),
    Function(
        "string",
        (
            _from("string_to_string", types.STRING, types.STRING, _same),
            _from("bool_to_string", types.BOOL, types.STRING, _bool_to_string),
            _from("bytes_to_string", types.BYTES, types.STRING, _bytes_to_string, cost=_text_cost),
            _from("double_to_string", types.DOUBLE, types.STRING, double_to_string),
            _from("duration_to_string", types.DURATION, types.STRING, times.duration_text),
            _from("int64_to_string", types.INT, types.STRING, str),
            _from("timestamp_to_string", types.TIMESTAMP, types.STRING, times.timestamp_text),
            _from("uint64_to_string", types.UINT, types.STRING, lambda number: str(int(number))),
        ),
    ),
    Function(
        "timestamp",
        (
            _from("timestamp_to_timestamp", types.TIMESTAMP, types.TIMESTAMP, _same),
            _from("int64_to_timestamp", types.INT, types.TIMESTAMP, _int_to_timestamp),
            _from("string_to_timestamp", types.STRING, types.TIMESTAMP, times.timestamp_of, work=reading_work),
        ),
    ),
    Function(
        "uint",
        (
            _from("uint64_to_uint64", types.UINT, types.UINT, _same),
            _from("double_to_uint64", types.DOUBLE, types.UINT, _double_to_uint),
            _from("int64_to_uint64", types.INT, types.UINT, checked_uint),
            _from("string_to_uint64", types.STRING, types.UINT, _string_to_uint, work=reading_work),
        ),
    ),
)
