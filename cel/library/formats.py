"""Kubernetes' library of named formats: `format.dns1123Label().validate(name)`."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import quarter, size_of, tenth
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import NAMED_FORMAT, STRING, list_of, optional_of
from dracaena.cel.value import NONE, OptionalValue
from dracaena.cel.values.named_format import NAMED_FORMATS, NamedFormat


def _named(name: str) -> OptionalValue:
    found = NAMED_FORMATS.get(name)
    return NONE if found is None else OptionalValue(found)


def _validate(named: NamedFormat, text: str) -> OptionalValue:
    problems = named.problems(text)
    return OptionalValue(tuple(problems)) if problems else NONE


def _validate_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    named, text = arguments
    return tenth(1 + size_of(text)) * quarter(named.pattern_size) if isinstance(named, NamedFormat) else 1


def _constant(name: str, named: NamedFormat) -> Function:
    return Function(f"format.{name}", (global_(f"format.{name}", (), NAMED_FORMAT, lambda: named),))


FUNCTIONS: Final = (
    Function("format.named", (global_("format-named", (STRING,), optional_of(NAMED_FORMAT), _named),), 1),
    *(_constant(name, named) for name, named in NAMED_FORMATS.items()),
    Function(
        "validate",
        (member("format-validate", (NAMED_FORMAT, STRING), optional_of(list_of(STRING)), _validate),),
        _validate_cost,
    ),
)
