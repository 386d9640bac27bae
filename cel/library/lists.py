"""Functions on lists: CEL's extension library, version 3, and Kubernetes' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.cel import types
from dracaena.cel.cost import LIST_COST, NODE_WORK, size_of, traversal_cost, tree_size
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload, global_, member
from dracaena.cel.types import BOOL, DYN, INT, A, Type, list_of
from dracaena.cel.value import NUMBERS, Duration, Timestamp, UInt, checked_int, checked_uint, equal

_List = tuple[Any, ...]
_LIST: Final = list_of(A)

# The types whose values have an order, by their names in the overloads of Kubernetes and of the extension library.
_ORDERED: Final = (
    ("int", "int", types.INT),
    ("uint", "uint", types.UINT),
    ("double", "double", types.DOUBLE),
    ("bool", "bool", types.BOOL),
    ("duration", "google.protobuf.Duration", types.DURATION),
    ("timestamp", "google.protobuf.Timestamp", types.TIMESTAMP),
    ("string", "string", types.STRING),
    ("bytes", "bytes", types.BYTES),
)
_ORDERED_KINDS: Final = NUMBERS | {bool, str, bytes, Duration, Timestamp}


def _key(value: Any) -> Any:
    return value.nanoseconds if isinstance(value, Duration | Timestamp) else value


def _greater(left: Any, right: Any) -> bool:
    """Whether the first is greater. Never for types that do not compare, nor for NaN: the reference skips them."""
    if type(left) is not type(right) and not (type(left) in NUMBERS and type(right) in NUMBERS):
        return False
    return bool(_key(left) > _key(right))


def _check_ordered(elements: _List, function: str) -> None:
    if not all(type(element) in _ORDERED_KINDS for element in elements):
        raise EvaluationError(f"no such overload: {function}(list)")


# Kubernetes


def _is_sorted(elements: _List) -> bool:
    _check_ordered(elements, "isSorted")
    return not any(map(_greater, elements, elements[1:]))


def _largest(elements: _List) -> Any:
    return _preferred(elements, "max", lambda best, element: _greater(element, best))


def _smallest(elements: _List) -> Any:
    return _preferred(elements, "min", _greater)


def _preferred(elements: _List, function: str, is_worse: Callable[[Any, Any], bool]) -> Any:
    _check_ordered(elements, function)
    if not elements:
        raise EvaluationError(f"{function} called on empty list")
    best = elements[0]
    for element in elements[1:]:
        if is_worse(best, element):
            best = element
    return best


def _add(left: Any, right: Any) -> Any:
    if type(left) is not type(right):
        raise EvaluationError("no such overload")
    if type(left) is Duration:
        return Duration(checked_int(left.nanoseconds + right.nanoseconds))
    if type(left) is UInt:
        return checked_uint(int(left) + int(right))
    return left + right if type(left) is float else checked_int(left + right)


_ZEROS: Final[dict[type, Any]] = {int: 0, UInt: UInt(0), float: 0.0, Duration: Duration(0)}


def _sum_from(zero: Any) -> Callable[[_List], Any]:
    def total(elements: _List) -> Any:
        # The overload is a guess if the checker did not know the elements; then the first element decides.
        result = _ZEROS.get(type(elements[0])) if elements else zero
        if result is None:
            raise EvaluationError("no such overload: sum(list)")
        for element in elements:
            result = _add(result, element)
        return result

    return total


def _index_of(elements: _List, wanted: Any) -> int:
    return next((at for at, element in enumerate(elements) if equal(element, wanted)), -1)


def _last_index_of(elements: _List, wanted: Any) -> int:
    return next((at for at in range(len(elements) - 1, -1, -1) if equal(elements[at], wanted)), -1)


# Extension library


def _slice(elements: _List, start: int, end: int) -> _List:
    asked = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        raise EvaluationError(f"{asked}, negative indexes not supported")
    if start > end:
        raise EvaluationError(f"{asked}, start index must be less than or equal to end index")
    if end > len(elements):
        raise EvaluationError(f"{asked}, list is length {len(elements)}")
    return elements[start:end]


def _flatten(elements: _List, depth: int = 1) -> _List:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    waiting = [(iter(elements), depth)]
    while waiting:
        source, levels = waiting[-1]
        for element in source:
            if levels and isinstance(element, tuple):
                waiting.append((iter(element), levels - 1))
                break
            flat.append(element)
        else:
            waiting.pop()
    return tuple(flat)


def _sort(elements: _List) -> _List:
    return _sort_by(elements, elements)


def _sort_by(elements: _List, keys: _List) -> _List:
    """The elements in the order of their keys; elements of equal keys stay as they are."""
    if len(elements) != len(keys):
        raise EvaluationError(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got "
            f"{len(elements)} and {len(keys)} elements respectively"
        )
    if keys and type(keys[0]) not in _ORDERED_KINDS:
        raise EvaluationError("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        raise EvaluationError("list elements must have the same type")
    return tuple(elements[at] for at in sorted(range(len(elements)), key=lambda at: _key(keys[at])))


def _range(count: int) -> _List:
    return tuple(range(count))


def _reverse(elements: _List) -> _List:
    return elements[::-1]


def _distinct(elements: _List) -> _List:
    """Each value once, at its first place."""
    found: list[Any] = []
    for element in elements:
        if not any(equal(element, other) for other in found):
            found.append(element)
    return tuple(found)


# Costs


def _walk_cost(arguments: _List, _result: Any) -> int:
    return traversal_cost(arguments[0])


def _result_cost(_arguments: _List, result: Any) -> int:
    return 1 + LIST_COST + size_of(result)


def _flatten_cost(arguments: _List, _result: Any) -> int:
    depth = arguments[1] if len(arguments) > 1 and type(arguments[1]) is int else 1
    return 1 + LIST_COST + max(0, depth) * size_of(arguments[0])


def _compare_all_cost(elements: Any) -> int:
    """Every element with every other, twice; a tenth more for text. If the call failed, there may be no list."""
    pairs = size_of(elements) ** 2
    text = type(elements) is tuple and len(elements) > 0 and type(elements[0]) in (str, bytes)
    return 1 + LIST_COST + (pairs * 21 // 10 if text else pairs * 2)


def _flatten_work(elements: _List, _depth: int = 1) -> int:
    return tree_size(elements)


def _distinct_work(elements: _List) -> int:
    return len(elements) * tree_size(elements)


def _walk_work(elements: _List) -> int:
    return NODE_WORK * len(elements)


def _find_work(elements: _List, wanted: Any) -> int:
    return NODE_WORK * len(elements) * tree_size(wanted)


def _of_ordered(id_: str, result: Type | None, call: Callable[[_List], Any]) -> tuple[Overload, ...]:
    """Overloads for lists of each ordered type; without a result type they return an element."""
    return tuple(
        member(id_.format(name), (list_of(element),), result or element, call, work=_walk_work)
        for name, _, element in _ORDERED
    )


def _sum_overloads() -> tuple[Overload, ...]:
    kinds = (("int", types.INT), ("uint", types.UINT), ("double", types.DOUBLE), ("duration", types.DURATION))
    return tuple(
        member(f"list_{name}_sum_{name}", (list_of(element),), element, _sum_from(zero), work=_walk_work)
        for (name, element), zero in zip(kinds, _ZEROS.values(), strict=True)
    )


FUNCTIONS: Final = (
    Function("isSorted", _of_ordered("list_{0}_is_sorted_bool", BOOL, _is_sorted), _walk_cost),
    Function("sum", _sum_overloads(), _walk_cost),
    Function("max", _of_ordered("list_{0}_max_{0}", None, _largest), _walk_cost),
    Function("min", _of_ordered("list_{0}_min_{0}", None, _smallest), _walk_cost),
    Function("indexOf", (member("list_a_index_of_int", (_LIST, A), INT, _index_of, work=_find_work),), _walk_cost),
    Function(
        "lastIndexOf",
        (member("list_a_last_index_of_int", (_LIST, A), INT, _last_index_of, work=_find_work),),
        _walk_cost,
    ),
    Function("slice", (member("list_slice", (_LIST, INT, INT), _LIST, _slice, cost=_result_cost),)),
    Function(
        "flatten",
        (
            member("list_flatten", (list_of(_LIST),), _LIST, _flatten, cost=_flatten_cost, work=_flatten_work),
            member(
                "list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten, cost=_flatten_cost, work=_flatten_work
            ),
        ),
    ),
    Function(
        "sort",
        tuple(
            member(
                f"list_{name}_sort",
                (list_of(element),),
                list_of(element),
                _sort,
                cost=lambda arguments, _: _compare_all_cost(arguments[0]),
            )
            for _, name, element in _ORDERED
        ),
    ),
    Function(
        "@sortByAssociatedKeys",
        tuple(
            member(
                f"list_{name}_sortByAssociatedKeys",
                (_LIST, list_of(element)),
                _LIST,
                _sort_by,
                cost=lambda arguments, _: _compare_all_cost(arguments[1]),
            )
            for _, name, element in _ORDERED
        ),
    ),
    Function(
        "lists.range",
        (global_("lists_range", (INT,), list_of(INT), _range, cost=_result_cost, work=lambda count: max(0, count)),),
    ),
    Function("reverse", (member("list_reverse", (_LIST,), _LIST, _reverse, cost=_result_cost),)),
    Function(
        "distinct",
        (
            member(
                "list_distinct",
                (_LIST,),
                _LIST,
                _distinct,
                cost=lambda arguments, _: _compare_all_cost(arguments[0]),
                work=_distinct_work,
            ),
        ),
    ),
)
