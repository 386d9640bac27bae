"""One figure for every subset of up to 16 things at once: all 65,536 in a few milliseconds.

A subset is a lane of one big integer, lane number = its mask, so one addition or comparison of integers works on all
subsets. Used for boxes of 16 unlike GPUs, where looking at each subset alone would take seconds. Lanes keep their top
bit free: comparisons borrow from it. If the figure is yes or no, a bit is enough: a collection of subsets.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final

_TYPE_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""array's type code by bytes of a lane."""


def least_pair_of_subsets(values: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return for each subset the least value of a pair in it, given as a symmetric matrix; 0 below two members.

    Cost: O(2ⁿ) in few big steps.
    """
    size = len(values)
    distinct = sorted({values[a][b] for a in range(size) for b in range(a)})
    rank = {value: place for place, value in enumerate(distinct)}
    lanes = _Lanes(len(distinct))
    nothing = len(distinct)  # above every rank: the value of a subset without a pair
    found, count = nothing, 1
    for highest in range(size):
        # For every subset of the lower members: its least pair, and the least pair of the highest member with one of
        # it.
        to_highest, width = nothing, 1
        for other in range(highest):
            least = lanes.minimum(to_highest, lanes.same(rank[values[highest][other]], width), width)
            to_highest |= lanes.shifted(least, width)
            width *= 2
        found |= lanes.shifted(lanes.minimum(found, to_highest, count), count)
        count *= 2
    return tuple(map((*distinct, 0).__getitem__, lanes.unpacked(found, count)))


def least_degree_of_subsets(weights: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return for each subset the least total weight of one member's pairs with the others; 0 below two members.

    Cost: O(n·2ⁿ) in few big steps.
    """
    size = len(weights)
    outside = max((sum(row) for row in weights), default=0) + 1  # above every degree
    lanes = _Lanes(2 * outside)
    found = lanes.same(outside, 1 << size)
    for member in range(size):
        degrees, count = outside, 1
        for other in range(size):
            more = lanes.same(weights[member][other], count)
            if other == member:
                degrees |= lanes.shifted(degrees - lanes.same(outside, count), count)
            else:
                degrees |= lanes.shifted(degrees + more, count)
            count *= 2
        # Subsets without the member have at least `outside` here.
        found = lanes.minimum(found, degrees, count)
    degrees_of = lanes.unpacked(found, 1 << size)
    degrees_of[0] = 0
    return degrees_of


def total_of_subsets(weights: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return for each subset the total weight of its pairs, given as a symmetric matrix.

    Cost: O(2ⁿ) in few big steps.
    """
    size = len(weights)
    lanes = _Lanes(sum(map(sum, weights)))
    found, count = 0, 1
    for highest in range(size):
        to_highest, width = 0, 1
        for other in range(highest):
            to_highest |= lanes.shifted(to_highest + lanes.same(weights[highest][other], width), width)
            width *= 2
        found |= lanes.shifted(found + to_highest, count)
        count *= 2
    return lanes.unpacked(found, count)


def best_pairing_of_subsets(worths: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return for each subset the greatest total worth of disjoint pairs in it, given as a symmetric matrix.

    Cost: O(n²·2ⁿ) in few big steps.
    """
    size = len(worths)
    lanes = _Lanes(max((max(row) for row in worths), default=0) * (size // 2))
    found, count = 0, 1
    for highest in range(size):
        best = found
        for other in range(highest):
            paired = lanes.with_member(found, other, highest, worths[highest][other])
            best = lanes.maximum(best, paired, count)
        found |= lanes.shifted(best, count)
        count *= 2
    return lanes.unpacked(found, count)


def with_ring(near: Sequence[int]) -> bytes:
    """Return which subsets form a ring in which all neighbours are near each other; two members stand side by side.

    `near`: for each member the mask of those near it. In the result a subset has bit `mask & 7` of byte `mask >> 3`.
    Exact: paths grow by one member at a time, from the lowest member of each subset at once; a collection of subsets
    is one integer, bit number = mask. Cost: O(n³) big steps.
    """
    size = len(near)
    every = range(size)
    without = [repeated((1 << (1 << member)) - 1, 2 << member, size) for member in every]
    lowest_is = [repeated(1 << (1 << member), 2 << member, size) for member in every]
    may_grow, may_close = [], []
    for member in every:
        lower = closing = 0
        for other in range(member):
            lower |= lowest_is[other]
            closing |= lowest_is[other] if near[member] >> other & 1 else 0
        may_grow.append(lower & without[member])
        may_close.append(closing)
    found = 0
    # For each member, the subsets that form a path from their lowest member to this one.
    ending = [1 << (1 << member) for member in every]
    for _ in every[1:]:
        longer = []
        for member in every:
            near_ends = 0
            for other in every:
                if near[member] >> other & 1:
                    near_ends |= ending[other]
            longer.append((near_ends & may_grow[member]) << (1 << member))
            found |= longer[-1] & may_close[member]
        ending = longer
    return found.to_bytes(max(1, (1 << size) // 8), "little")


def repeated(bits: int, width: int, size: int) -> int:
    """Return a pattern of `width` bits repeated, with one bit for each subset of `size` members."""
    while width < 1 << size:
        bits |= bits << width
        width *= 2
    return bits


class _Lanes:
    """Arithmetic on integers of equal lanes that hold 0 to `most`."""

    def __init__(self, most: int) -> None:
        self._bytes = next(width for width in _TYPE_CODES if most < 1 << 8 * width - 1)
        self._bits = 8 * self._bytes
        self._most_of_lane = (1 << self._bits) - 1
        self._ones: dict[int, int] = {}
        self._alternating: dict[tuple[int, int], tuple[int, int]] = {}

    def same(self, value: int, count: int) -> int:
        """Return `count` lanes of one value."""
        ones = self._ones.get(count)
        if ones is None:
            ones = int.from_bytes((1).to_bytes(self._bytes, "little") * count, "little")
            self._ones[count] = ones
        return ones * value

    def shifted(self, lanes: int, count: int) -> int:
        """Return the lanes moved up by `count` places."""
        return lanes << count * self._bits

    def with_member(self, lanes: int, member: int, size: int, more: int = 0) -> int:
        """Return for each subset of `size` with a member the value of the subset without it, plus `more`; else 0."""
        without, whole = self._without(member, size)
        return self.shifted((lanes & whole) + without * more, 1 << member)

    def _without(self, member: int, size: int) -> tuple[int, int]:
        """Return 1, and all bits set, for each subset of `size` without a member, else 0."""
        key = (member, size)
        if key not in self._alternating:
            found, count = self.same(1, 1 << member), 2 << member
            while count < 1 << size:
                found |= self.shifted(found, count)
                count *= 2
            self._alternating[key] = found, found * self._most_of_lane
        return self._alternating[key]

    def minimum(self, one: int, other: int, count: int) -> int:
        """Return the lesser of each two lanes."""
        return one ^ (one ^ other) & self._not_less(one, other, count)

    def maximum(self, one: int, other: int, count: int) -> int:
        """Return the greater of each two lanes."""
        return other ^ (one ^ other) & self._not_less(one, other, count)

    def _not_less(self, one: int, other: int, count: int) -> int:
        """Return all bits but the top one set in each lane where `one` is not less than the other, else 0."""
        top = self.same(1 << self._bits - 1, count)
        not_less = ((one | top) - other) & top
        return not_less - (not_less >> self._bits - 1)

    def unpacked(self, lanes: int, count: int) -> array[int]:
        """Return the lanes as numbers."""
        found = array(_TYPE_CODES[self._bytes])
        assert found.itemsize == self._bytes
        found.frombytes(lanes.to_bytes(count * self._bytes, "little"))
        if sys.byteorder == "big":
            found.byteswap()
        return found
