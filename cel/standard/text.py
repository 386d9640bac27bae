"""`contains`, `startsWith`, `endsWith` and `matches`."""

from __future__ import annotations

from typing import Any

from dracaena.cel import types
from dracaena.cel.cost import quarter, size_of, tenth
from dracaena.cel.function import Function, global_, member
from dracaena.cel.values.regex.matching import search, search_work

_TWO_STRINGS = (types.STRING, types.STRING)


def _text_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0]))


def _contains_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return tenth(size_of(arguments[0])) * tenth(size_of(arguments[1]))


def _matches_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    """One more than the size of the text, so that a costly pattern on empty text is not free."""
    return tenth(1 + size_of(arguments[0])) * quarter(size_of(arguments[1]))


FUNCTIONS = (
    Function(
        "contains",
        (member("contains_string", _TWO_STRINGS, types.BOOL, lambda text, part: part in text, cost=_contains_cost),),
    ),
    Function("endsWith", (member("ends_with_string", _TWO_STRINGS, types.BOOL, str.endswith, cost=_text_cost),)),
    Function("startsWith", (member("starts_with_string", _TWO_STRINGS, types.BOOL, str.startswith, cost=_text_cost),)),
    Function(
        "matches",
        (
            global_("matches", _TWO_STRINGS, types.BOOL, search, work=search_work),
            member("matches_string", _TWO_STRINGS, types.BOOL, search, cost=_matches_cost, work=search_work),
        ),
    ),
)
