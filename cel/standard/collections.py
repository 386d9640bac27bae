"""`in`, `size`, and the declarations of indexing."""

from __future__ import annotations

from typing import Any

from dracaena.cel import types
from dracaena.cel.cost import NODE_WORK, WALK_WORK, size_of, tree_size
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, global_, member
from dracaena.cel.types import list_of, map_of, optional_of
from dracaena.cel.value import Map, equal

_LIST = list_of(types.A)
_MAP = map_of(types.A, types.B)


def in_list(element: Any, elements: tuple[Any, ...]) -> bool:
    """Whether the list contains a value equal to the element."""
    return any(equal(element, each) for each in elements)


def _search_cost(arguments: tuple[Any, ...], _result: Any) -> int:
    return size_of(arguments[1])


def search_work(element: Any, elements: tuple[Any, ...]) -> int:
    """Work of comparing an element with all elements of a list."""
    large = type(element) is tuple or type(element) is Map or size_of(element) > _SHORT_TEXT
    return WALK_WORK * tree_size(elements) if large else NODE_WORK * len(elements)


_SHORT_TEXT = 64  # characters; comparing that many takes no longer than comparing numbers


def _in_map(key: Any, map_: Map) -> bool:
    return key in map_


def _declared_only(*_arguments: Any) -> Any:
    raise EvaluationError("no such overload")


FUNCTIONS = (
    Function(
        "@in",
        (
            global_("in_list", (types.A, _LIST), types.BOOL, in_list, cost=_search_cost, work=search_work),
            global_("in_map", (types.A, _MAP), types.BOOL, _in_map),
        ),
    ),
    Function(
        "size",
        (
            global_("size_bytes", (types.BYTES,), types.INT, len),
            member("bytes_size", (types.BYTES,), types.INT, len),
            global_("size_list", (_LIST,), types.INT, len),
            member("list_size", (_LIST,), types.INT, len),
            global_("size_map", (_MAP,), types.INT, len),
            member("map_size", (_MAP,), types.INT, len),
            global_("size_string", (types.STRING,), types.INT, len),
            member("string_size", (types.STRING,), types.INT, len),
        ),
    ),
    # Indexing is evaluated by the planner; the declarations are for the checker.
    Function(
        "_[_]",
        (
            global_("index_list", (_LIST, types.INT), types.A, _declared_only),
            global_("index_map", (_MAP, types.A), types.B, _declared_only),
            global_("optional_list_index_int", (optional_of(_LIST), types.INT), optional_of(types.A), _declared_only),
            global_("optional_map_index_value", (optional_of(_MAP), types.A), optional_of(types.B), _declared_only),
        ),
    ),
    Function(
        "_[?_]",
        (
            global_("list_optindex_optional_int", (_LIST, types.INT), optional_of(types.A), _declared_only),
            global_(
                "optional_list_optindex_optional_int",
                (optional_of(_LIST), types.INT),
                optional_of(types.A),
                _declared_only,
            ),
            global_("map_optindex_optional_value", (_MAP, types.A), optional_of(types.B), _declared_only),
            global_(
                "optional_map_optindex_optional_value",
                (optional_of(_MAP), types.A),
                optional_of(types.B),
                _declared_only,
            ),
        ),
    ),
)
