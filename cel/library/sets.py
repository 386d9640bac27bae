"""CEL's extension library for lists as sets: equal elements count once, and order does not matter."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.cost import size_of, tree_size
from dracaena.cel.function import CostFunction, Function, global_
from dracaena.cel.types import BOOL, A, list_of
from dracaena.cel.value import equal

_LISTS: Final = (list_of(A), list_of(A))

_List = tuple[Any, ...]


def _holds(elements: _List, wanted: Any) -> bool:
    return any(equal(element, wanted) for element in elements)


def _contains(elements: _List, others: _List) -> bool:
    return all(_holds(elements, other) for other in others)


def _equivalent(elements: _List, others: _List) -> bool:
    return _contains(elements, others) and _contains(others, elements)


def _intersects(elements: _List, others: _List) -> bool:
    return any(_holds(others, element) for element in elements)


def _work(elements: _List, others: _List) -> int:
    """Every element of one list may be compared with every one of the other, to its last leaf, in both directions."""
    return 2 * (len(elements) * tree_size(others) + len(others) * tree_size(elements))


def _cost(directions: int) -> CostFunction:
    def cost(arguments: _List, _result: Any) -> int:
        return 1 + directions * size_of(arguments[0]) * size_of(arguments[1])

    return cost


FUNCTIONS: Final = (
    Function(
        "sets.contains",
        (global_("list_sets_contains_list", _LISTS, BOOL, _contains, cost=_cost(1), work=_work),),
    ),
    Function(
        "sets.equivalent",
        (global_("list_sets_equivalent_list", _LISTS, BOOL, _equivalent, cost=_cost(2), work=_work),),
    ),
    Function(
        "sets.intersects",
        (global_("list_sets_intersects_list", _LISTS, BOOL, _intersects, cost=_cost(1), work=_work),),
    ),
)
