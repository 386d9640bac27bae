"""Connected groups among the GPUs of one machine: what the tree and the group attributes are made of."""

from __future__ import annotations

from collections.abc import Iterable


def lowest_in_group(count: int, joins: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return for each of `count` ordinals the lowest ordinal that it is connected to, itself included.

    Two ordinals are in one group exactly if their results are equal. Cost: near linear in the number of joins.
    """
    parent = list(range(count))

    def lowest(ordinal: int) -> int:
        while parent[ordinal] != ordinal:
            parent[ordinal] = ordinal = parent[parent[ordinal]]
        return ordinal

    for a, b in joins:
        low, high = sorted((lowest(a), lowest(b)))
        parent[high] = low
    return tuple(lowest(ordinal) for ordinal in range(count))
