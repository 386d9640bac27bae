"""Kubernetes' regex library: `find` and `findAll`. `matches` is the standard's."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import quarter, size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, member
from dracaena.cel.types import INT, STRING, list_of
from dracaena.cel.values.regex import matching
from dracaena.cel.values.regex.matching import check, find_all_work, search_work


def _find(text: str, pattern: str) -> str:
    return matching.find(text, _checked(pattern))


def _find_all(text: str, pattern: str, limit: int = -1) -> tuple[str, ...]:
    return matching.find_all(text, _checked(pattern), limit)


def _checked(pattern: str) -> str:
    try:
        check(pattern)
    except EvaluationError as error:
        raise EvaluationError(f"Illegal regex: {error.message}") from None
    return pattern


def _cost(arguments: tuple[Any, ...], _result: Any) -> int:
    """One more than the size of the text, so that a costly pattern on empty text is not free."""
    return tenth(1 + size_of(arguments[0])) * quarter(size_of(arguments[1]))


FUNCTIONS: Final = (
    Function("find", (member("string_find_string", (STRING, STRING), STRING, _find, work=search_work),), _cost),
    Function(
        "findAll",
        (
            member("string_find_all_string", (STRING, STRING), list_of(STRING), _find_all, work=find_all_work),
            member("string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), _find_all, work=find_all_work),
        ),
        _cost,
    ),
)
