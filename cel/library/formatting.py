"""`format` of CEL's string library, version 2: `"%d GPUs of %s".format([2, "a"])`.

The reference writes doubles for readers in the United States: `%f` groups thousands, `%e` writes 1.000000×10⁰³ and
always six digits after the decimal point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dracaena.cel.cost import WORK_LIMIT, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, member
from dracaena.cel.standard.conversion import double_to_string
from dracaena.cel.standard.times import duration_text, timestamp_text
from dracaena.cel.types import DYN, STRING, list_of
from dracaena.cel.value import Duration, Map, OptionalValue, Timestamp, TypeValue, UInt, type_name
from dracaena.cel.values.text import quoted

DEFAULT_PRECISION: Final = 6  # digits after the decimal point

# Digits after the decimal point that a clause may ask for. A double has at most 1,074 that are not zero.
MAX_PRECISION: Final = 1_100


class FormatError(ValueError):
    """The format string itself is wrong."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One `%…` of a format string: its letter, and the digits after the decimal point if it names them."""

    letter: str
    precision: int | None = None


_CLAUSE: Final = re.compile(r"\.([0-9]*)")
_LETTERS: Final = "sdfebxXo"


def parse_format(text: str, arguments: int) -> Iterator[str | Clause]:
    """The format string as plain text and clauses, in order. FormatError if it is wrong or needs more arguments."""
    at = clauses = 0
    while at < len(text):
        percent = text.find("%", at)
        if percent != at:
            end = percent if percent > at else len(text)
            yield text[at:end]
            at = end
        elif text.startswith("%%", at):
            yield "%"
            at += 2
        else:
            if clauses >= arguments:
                raise FormatError(f"index {clauses} out of range")
            clause, at = _read_clause(text, at + 1)
            yield clause
            clauses += 1


def _read_clause(text: str, at: int) -> tuple[Clause, int]:
    if at == len(text):
        raise FormatError("unexpected end of string")
    precision = None
    if match := _CLAUSE.match(text, at):
        at = match.end()
        if at == len(text):
            raise _clause_error("error while parsing precision: could not find end of precision specifier")
        precision = _read_precision(match.group(1))
    if text[at] not in _LETTERS:
        raise _clause_error(f'unrecognized formatting clause "{text[at]}"')
    return Clause(text[at], precision), at + 1


def _read_precision(digits: str) -> int:
    prefix = "error while parsing precision: error while converting precision to integer"
    if not digits:
        raise _clause_error(f'{prefix}: strconv.Atoi: parsing "": invalid syntax')
    if len(digits.lstrip("0")) > len(str(MAX_PRECISION)) or int(digits) > MAX_PRECISION:
        raise _clause_error(f"{prefix}: {digits[:20]} is more than {MAX_PRECISION}")
    return int(digits)


def _clause_error(reason: str) -> FormatError:
    return FormatError(f"could not parse formatting clause: {reason}")


def _format(text: str, arguments: tuple[Any, ...]) -> str:
    values = iter(arguments)
    try:
        return "".join(
            part if isinstance(part, str) else _WRITERS[part.letter](next(values), part)
            for part in parse_format(text, len(arguments))
        )
    except FormatError as error:
        raise EvaluationError(str(error)) from None


def _as_string(value: Any, _clause: Clause) -> str:
    write = _STRING_WRITERS.get(type(value))
    if write is None:
        raise _refused("s", value)
    return write(value)


def _as_decimal(value: Any, _clause: Clause) -> str:
    if type(value) is not int and type(value) is not UInt:
        raise _refused("d", value)
    return str(int(value))


def _as_fixed(value: Any, clause: Clause) -> str:
    number = _double(value, "f")
    precision = DEFAULT_PRECISION if clause.precision is None else clause.precision
    if not math.isfinite(number):
        return _non_finite(number)
    return f"{number or 0.0:,.{precision}f}"  # zero has no sign


def _as_scientific(value: Any, clause: Clause) -> str:
    number = _double(value, "e")
    if not math.isfinite(number):
        return _non_finite(number).rjust(DEFAULT_PRECISION if clause.precision is None else clause.precision)
    mantissa, _, exponent = f"{number or 0.0:.{DEFAULT_PRECISION}e}".partition("e")
    return f"{mantissa}×10{exponent.removeprefix('+').translate(_SUPERSCRIPTS)}"


_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DOUBLES_IN_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _double(value: Any, letter: str) -> float:
    if type(value) is float:
        return value
    if type(value) is str and value in _DOUBLES_IN_WORDS:
        return _DOUBLES_IN_WORDS[value]
    raise _refused(letter, value)


def _non_finite(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _as_binary(value: Any, _clause: Clause) -> str:
    if type(value) is not int and type(value) is not UInt and type(value) is not bool:
        raise _refused("b", value)
    return f"{value:b}"


def _as_octal(value: Any, _clause: Clause) -> str:
    if type(value) is not int and type(value) is not UInt:
        raise _refused("o", value)
    return f"{value:o}"


def _as_hexadecimal(value: Any, clause: Clause) -> str:
    if type(value) is str or type(value) is bytes:
        digits = (value.encode() if isinstance(value, str) else value).hex()
    elif type(value) is int or type(value) is UInt:
        digits = f"{value:x}"
    else:
        raise _refused("x", value)
    return digits.upper() if clause.letter == "X" else digits


def refusal(letter: str, type_name_: str) -> str:
    """The message for a clause with a value of a type that it cannot format."""
    return f"error during formatting: {_WRITES[letter]}, was given {type_name_}"


def _refused(letter: str, value: Any) -> EvaluationError:
    return EvaluationError(refusal(letter, type_name(value)))


_HEXADECIMAL: Final = "only integers, byte buffers, and strings can be formatted as hex"
_WRITES: Final = {
    "s": "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and "
    "timestamps",
    "d": "decimal clause can only be used on integers",
    "f": "fixed-point clause can only be used on doubles",
    "e": "scientific clause can only be used on doubles",
    "b": "only integers and bools can be formatted as binary",
    "o": "octal clause can only be used on integers",
    "x": _HEXADECIMAL,
    "X": _HEXADECIMAL,
}

_WRITERS: Final[dict[str, Callable[[Any, Clause], str]]] = {
    "s": _as_string,
    "d": _as_decimal,
    "f": _as_fixed,
    "e": _as_scientific,
    "b": _as_binary,
    "o": _as_octal,
    "x": _as_hexadecimal,
    "X": _as_hexadecimal,
}


def _bytes_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        reason = 'could not convert argument "invalid UTF-8 in bytes, cannot convert to string" to string'
        raise EvaluationError(f"error during formatting: {reason}") from None


def _list_text(elements: tuple[Any, ...]) -> str:
    return "[" + ", ".join(map(_literal, elements)) + "]"


def _map_text(entries: Map) -> str:
    """Entries in the order of their keys as they are written."""
    texts = sorted(((_literal(key), _literal(value)) for key, value in entries.items()), key=lambda entry: entry[0])
    return "{" + ", ".join(f"{key}:{value}" for key, value in texts) + "}"


def _literal(value: Any) -> str:
    """A value inside a list or map: as it is written in CEL."""
    write = _LITERAL_WRITERS.get(type(value))
    if write is None:
        raise EvaluationError(f"error during formatting: no formatting function for {type_name(value)}")
    return write(value)


def _double_literal(number: float) -> str:
    return f"{number:.{DEFAULT_PRECISION}f}" if math.isfinite(number) else f'"{double_to_string(number)}"'


_STRING_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    str: lambda value: value,
    bool: lambda value: "true" if value else "false",
    bytes: _bytes_text,
    int: str,
    UInt: lambda value: str(int(value)),
    float: double_to_string,
    type(None): lambda _value: "null",
    TypeValue: lambda value: value.name,
    Timestamp: timestamp_text,
    Duration: duration_text,
    tuple: _list_text,
    Map: _map_text,
}

_LITERAL_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    **_STRING_WRITERS,
    str: quoted,
    bytes: lambda value: f"b{quoted(_bytes_text(value))}",
    float: _double_literal,
    Timestamp: lambda value: f"timestamp({quoted(timestamp_text(value))})",
    Duration: lambda value: f"duration({quoted(duration_text(value))})",
}

_SCALAR_SIZE: Final = 40  # characters of the longest text of a value that is not a string, bytes, double, list or map
_DOUBLE_SIZE: Final = 1_500  # characters of the longest double: its digits before the point, with commas, and after it


def _work(text: str, arguments: tuple[Any, ...]) -> int:
    """Upper bound of the result's characters; counting stops once there are more than an evaluation may create."""
    size = len(text)
    waiting = list(arguments)
    while waiting and size <= WORK_LIMIT:
        value = waiting.pop()
        if isinstance(value, tuple | Map):
            size += 2 * len(value)
            if size <= WORK_LIMIT:
                waiting.extend(value)
                waiting.extend(value.values() if isinstance(value, Map) else ())
        elif isinstance(value, OptionalValue):
            size += _SCALAR_SIZE
        elif isinstance(value, str | bytes):
            size += 2 * len(value)
        else:
            size += _DOUBLE_SIZE if isinstance(value, float) else _SCALAR_SIZE
    return size


def _cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


FUNCTIONS: Final = (
    Function("format", (member("string_format", (STRING, list_of(DYN)), STRING, _format, cost=_cost, work=_work),)),
)
