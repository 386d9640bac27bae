"""Optional values: creating them, reading them, choosing between them."""

from __future__ import annotations

from typing import Any

from dracaena.cel import types
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import list_of, optional_of
from dracaena.cel.value import NONE, Duration, Map, OptionalValue, Timestamp

_OPTIONAL = optional_of(types.A)
_LIST = list_of(types.A)

# The reference's zero timestamp is Go's, the first moment of the year 1.
_ZERO_TIMESTAMP = -62_135_596_800_000_000_000


def _is_zero(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, Timestamp):
        return value.nanoseconds == _ZERO_TIMESTAMP
    if isinstance(value, Duration):
        return value.nanoseconds == 0
    return isinstance(value, bool | int | float | str | bytes | tuple | Map) and not value


def _of_non_zero(value: Any) -> OptionalValue:
    return NONE if _is_zero(value) else OptionalValue(value)


def _has_value(optional: OptionalValue) -> bool:
    return optional.has_value


def _value(optional: OptionalValue) -> Any:
    return optional.value


def _or(first: OptionalValue, second: OptionalValue) -> OptionalValue:
    return first if first.has_value else second


def _or_value(optional: OptionalValue, default: Any) -> Any:
    return optional.value if optional.has_value else default


def _unwrap(optionals: tuple[Any, ...]) -> tuple[Any, ...]:
    for each in optionals:
        if not isinstance(each, OptionalValue):
            raise EvaluationError(f"value {each} is not optional")
    return tuple(each.value for each in optionals if each.has_value)


def _first(elements: tuple[Any, ...]) -> OptionalValue:
    return OptionalValue(elements[0]) if elements else NONE


def _last(elements: tuple[Any, ...]) -> OptionalValue:
    return OptionalValue(elements[-1]) if elements else NONE


FUNCTIONS = (
    Function("optional.of", (global_("optional_of", (types.A,), _OPTIONAL, OptionalValue),)),
    Function("optional.ofNonZeroValue", (global_("optional_ofNonZeroValue", (types.A,), _OPTIONAL, _of_non_zero),)),
    Function("optional.none", (global_("optional_none", (), _OPTIONAL, lambda: NONE),)),
    Function("value", (member("optional_value", (_OPTIONAL,), types.A, _value),)),
    Function("hasValue", (member("optional_hasValue", (_OPTIONAL,), types.BOOL, _has_value),)),
    # The planner evaluates the second argument of these two only if it is needed.
    Function("or", (member("optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL, _or),)),
    Function("orValue", (member("optional_orValue_value", (_OPTIONAL, types.A), types.A, _or_value),)),
    Function("optional.unwrap", (global_("optional_unwrap", (list_of(_OPTIONAL),), _LIST, _unwrap),)),
    Function("unwrapOpt", (member("optional_unwrapOpt", (list_of(_OPTIONAL),), _LIST, _unwrap),)),
    Function("first", (member("list_first", (_LIST,), _OPTIONAL, _first),)),
    Function("last", (member("list_last", (_LIST,), _OPTIONAL, _last),)),
)
