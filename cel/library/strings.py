"""CEL's extension library for strings, version 2: all but `format`. Positions count characters (code points)."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import size_of, tenth, traversal_cost
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import INT, STRING, list_of
from dracaena.cel.value import type_name

_STRINGS: Final = list_of(STRING)

_LOWER: Final = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_UPPER: Final = {ord(letter): letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"}

# Unicode's White_Space. Python's strip() also strips U+001C to U+001F, which do not belong to it.
_SPACES: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

_QUOTES: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise _out_of_range(position)
    return text[position : position + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    """Where `part` begins at or after `start`, or -1. The empty part is found at `start` wherever that is."""
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    """Where `part` begins at or before `start`, or -1; also -1 if `start` is not within the text."""
    if start is None:
        return text.rfind(part)
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start)
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    return text.replace(old, new, max(count, -1))


def _replace_work(text: str, old: str, new: str, count: int = -1) -> int:
    times = text.count(old)
    return len(text) + len(new) * (times if count < 0 else min(count, times))


def _split(text: str, separator: str, count: int = -1) -> tuple[str, ...]:
    """At most `count` parts, the last with the whole rest; the empty separator splits after every character."""
    if count == 0:
        return ()
    if separator:
        return tuple(text.split(separator, max(count - 1, -1)))
    if count < 0 or count >= len(text):
        return tuple(text)
    return (*text[: count - 1], text[count - 1 :])


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
    elif start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    for position in (start, end):
        if not 0 <= position <= len(text):
            raise _out_of_range(position)
    return text[start:end]


def _join(parts: tuple[Any, ...], separator: str = "") -> str:
    for part in parts:
        if type(part) is not str:
            raise EvaluationError(f"join: invalid input: {type_name(part)}")
    return separator.join(parts)


def _join_work(parts: tuple[Any, ...], separator: str = "") -> int:
    return sum(len(part) for part in parts if type(part) is str) + len(separator) * len(parts)


def _quote(text: str) -> str:
    return f'"{text.translate(_QUOTES)}"'


def _out_of_range(position: int) -> EvaluationError:
    return EvaluationError(f"index out of range: {position}")


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


def _text_and_result_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(2 * size_of(arguments[0]))


def _join_cost(_arguments: tuple[Any, ...], result: Any) -> int:
    return tenth(2 * size_of(result))


def _index_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return traversal_cost(arguments[0])


FUNCTIONS: Final = (
    Function("charAt", (member("string_char_at_int", (STRING, INT), STRING, _char_at),)),
    Function(
        "indexOf",
        (
            member("string_index_of_string", (STRING, STRING), INT, _index_of),
            member("string_index_of_string_int", (STRING, STRING, INT), INT, _index_of),
        ),
        _index_cost,
    ),
    Function(
        "lastIndexOf",
        (
            member("string_last_index_of_string", (STRING, STRING), INT, _last_index_of),
            member("string_last_index_of_string_int", (STRING, STRING, INT), INT, _last_index_of),
        ),
        _index_cost,
    ),
    Function(
        "lowerAscii",
        (member("string_lower_ascii", (STRING,), STRING, lambda text: text.translate(_LOWER)),),
        _text_cost,
    ),
    Function(
        "upperAscii",
        (member("string_upper_ascii", (STRING,), STRING, lambda text: text.translate(_UPPER)),),
        _text_cost,
    ),
    Function(
        "replace",
        (
            member("string_replace_string_string", (STRING, STRING, STRING), STRING, _replace, work=_replace_work),
            member(
                "string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace, work=_replace_work
            ),
        ),
        _text_and_result_cost,
    ),
    Function(
        "split",
        (
            member("string_split_string", (STRING, STRING), _STRINGS, _split),
            member("string_split_string_int", (STRING, STRING, INT), _STRINGS, _split),
        ),
        _text_and_result_cost,
    ),
    Function(
        "substring",
        (
            member("string_substring_int", (STRING, INT), STRING, _substring),
            member("string_substring_int_int", (STRING, INT, INT), STRING, _substring),
        ),
        _text_cost,
    ),
    Function("trim", (member("string_trim", (STRING,), STRING, lambda text: text.strip(_SPACES)),), _text_cost),
    Function(
        "join",
        (
            member("list_join", (_STRINGS,), STRING, _join, work=_join_work),
            member("list_join_string", (_STRINGS, STRING), STRING, _join, work=_join_work),
        ),
        _join_cost,
    ),
    Function("strings.quote", (global_("strings_quote", (STRING,), STRING, _quote, cost=_text_cost),)),
)
