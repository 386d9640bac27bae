"""Sizes and factors of Kubernetes' cost model: what a unit is, and how many units a value counts for.

Facts from the reference (k8s.io/apiserver pkg/cel/library/cost.go and cel-go common/cost.go): one unit is one step, a
traversing text costs a tenth of a unit per character, a pattern a quarter of a unit per character.
"""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel.types import Opaque
from dracaena.cel.value import Map, OptionalValue

LIST_COST: Final = 10  # units for creating a list
MAP_COST: Final = 30  # units for creating a map

# What one evaluation may do, whatever its cost says, in steps of 0.1 to 0.2 µs: characters and elements that are built,
# values that are compared, nodes of the tree in each turn of a loop. So no evaluation takes more than some 0.2 s or
# 16 MB. The most that a sensible selector takes, a loop over all 32 attributes of a device with a pattern of 100
# instructions in it, is 20,000.
WORK_LIMIT: Final = 1_000_000
# Steps of evaluating one node of the tree: measured 0.3 µs.
NODE_WORK: Final = 2

# Steps of one value of a list or map that is counted first and then compared or copied: measured 0.6 µs.
WALK_WORK: Final = 4


def size_of(value: Any) -> int:
    """Size of a value as the cost model sees it: characters, bytes, elements, entries; 1 for everything else."""
    kind = type(value)
    if kind is str or kind is bytes or kind is tuple or kind is Map:
        return len(value)
    if kind is OptionalValue:
        return size_of(value.value) if value.has_value else 1
    if isinstance(value, Opaque):
        return value.cel_size()
    return 1


def tenth(size: int) -> int:
    """Cost of walking text of this size once: a tenth of a unit each, rounded up."""
    return -(-size // 10)


def quarter(size: int) -> int:
    """Cost of a pattern of this size: a quarter of a unit each, rounded up."""
    return -(-size // 4)


def reading_work(text: Any, *_more: Any) -> int:
    """Work of parsing a value from text, such as a version or an address: measured 5 µs, and 0.3 µs per character."""
    return 30 + 2 * size_of(text)


def traversal_cost(value: Any) -> int:
    """Cost of walking a whole value: a tenth of a unit per byte of text in UTF-8 (rounded down), 1 per other leaf."""
    kind = type(value)
    if kind is str:
        return len(value.encode()) // 10
    if kind is bytes:
        return len(value) // 10
    if kind is tuple:
        return sum(map(traversal_cost, value))
    if kind is Map:
        return sum(traversal_cost(key) + traversal_cost(item) for key, item in value.items())
    return 1


# Characters of text that count as one element when a value is walked: comparing text is fast.
_TEXT_PER_STEP: Final = 64


def tree_size(value: Any, most: int = WORK_LIMIT) -> int:
    """Number of values in a value, each counted as often as it occurs; counting stops once it exceeds `most`.

    A list that contains one list a thousand times takes a thousand times as long to compare, but no more memory. Use
    this in `Overload.work` for functions that compare elements which may be lists or maps themselves.
    """
    kind = type(value)
    if kind is not tuple and kind is not Map and kind is not OptionalValue:
        return 1 + (len(value) // _TEXT_PER_STEP if kind is str or kind is bytes else 0)
    size = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        size += 1
        kind = type(each)
        if kind is tuple:
            if size + len(each) > most:
                return most + 1
            waiting.extend(each)
        elif kind is Map:
            if size + 2 * len(each) > most:
                return most + 1
            waiting.extend(each)
            waiting.extend(each.values())
        elif kind is OptionalValue and each.has_value:
            waiting.append(each.value)
        elif kind is str or kind is bytes:
            size += len(each) // _TEXT_PER_STEP
        if size > most:
            return size
    return size
