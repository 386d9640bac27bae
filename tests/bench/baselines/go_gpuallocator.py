"""NVIDIA go-gpuallocator, which the device plugin asks for its preferred allocation: best-effort, simple and static.

Best-effort: pad the free GPUs with nil to a multiple of the size, walk all partitions into sets of that size, keep the
one with the most points in total, hand out its best set. Reproduced with these properties of the published code:

* a set holds all of the padding or none; the padded one may win, and its nil crashes the caller;
* partitions are Go slices that share their arrays from the fifth set on: a remembered partition of seven sets or more
  is overwritten by the ones that are walked after it;
* links that end at an NVSwitch count nothing;
* with size 1 every GPU is worth 0 and the first one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from heapq import merge
from itertools import combinations
from math import comb
from typing import Final

from bench.baselines.answer import NOT_RUN, REFUSED, Answer, Fault, Links, granted
from bench.baselines.pair_points import Points, pair_points

NIL: Final = -1
"""Stands for the nil that pads the list."""

MOST_PARTITIONS: Final = 5_000
"""Walked in this copy without being told otherwise (a tenth of a second): 8 GPUs always, 16 only in some counts."""

Set = tuple[int, ...]


def choose_best_effort(links: Links, free: tuple[int, ...], count: int) -> Answer:
    return best_effort(pair_points(links, through_switches=False), free, (), count)


def choose_static(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Only for the machines that the policy names; any other is refused."""
    valid = _static_sets_of(links)
    return static(valid, free, (), count) if valid is not None else REFUSED


def best_effort(
    points: Points,
    available: Sequence[int],
    required: Sequence[int],
    size: int,
    most_partitions: int | None = MOST_PARTITIONS,
) -> Answer:
    """Answer a request of the best-effort policy. `most_partitions` None: however long it takes."""
    if not _is_possible(available, required, size):
        return REFUSED
    if most_partitions is not None and partition_count(len(available), size) > most_partitions:
        return NOT_RUN
    chosen = _best_set(points, available, frozenset(required), size)
    if chosen is None:
        return REFUSED
    if NIL in chosen:
        return Answer(chosen, Fault.CRASHED)
    return granted(chosen)


def simple(available: Sequence[int], required: Sequence[int], size: int) -> Answer:
    """Answer a request of the simple policy: what is required, then the lowest indices."""
    if not _is_possible(available, required, size):
        return REFUSED
    others = [gpu for gpu in available if gpu not in required]
    return granted([*required, *others[: size - len(required)]])


def static(valid: Mapping[int, Sequence[Set]], available: Sequence[int], required: Sequence[int], size: int) -> Answer:
    """Answer a request of a static policy: the first valid set of the size that is free and holds what is required."""
    if not _is_possible(available, required, size):
        return REFUSED
    for candidate in valid.get(size, ()):
        if set(required) <= set(candidate) <= set(available):
            return granted(candidate)
    return REFUSED


_BLOCKS_OF_8: Final = {1: tuple((gpu,) for gpu in range(8)), 4: ((0, 1, 2, 3), (4, 5, 6, 7)), 8: (tuple(range(8)),)}
DGX_1_PASCAL: Final[Mapping[int, Sequence[Set]]] = {**_BLOCKS_OF_8, 2: ((0, 2), (1, 3), (4, 6), (5, 7))}
DGX_1_VOLTA: Final[Mapping[int, Sequence[Set]]] = {**_BLOCKS_OF_8, 2: ((0, 3), (1, 2), (4, 7), (5, 6))}
DGX_2: Final[Mapping[int, Sequence[Set]]] = {
    size: tuple(tuple(range(start, start + size)) for start in range(0, 16, size)) for size in (1, 2, 4, 8, 16)
}


def iterate_partitions(gpus: Sequence[int], size: int) -> list[tuple[Set, ...]]:
    """Return all partitions in the order in which they are walked, NIL being padding."""
    found: list[tuple[Set, ...]] = []
    _walk(gpus, size, lambda partition: found.append(partition.sets()))
    return found


def partition_count(gpus: int, size: int) -> int:
    """Return the number of partitions that are walked for so many free GPUs."""
    if size == 1:
        return gpus
    missing = -gpus % size
    # The set with all of the padding holds any `size - missing` GPUs; the others are partitioned without padding.
    count, whole = (comb(gpus, size - missing), gpus + missing - size) if missing else (1, gpus)
    while whole:
        count *= comb(whole - 1, size - 1)
        whole -= size
    return count


def _is_possible(available: Sequence[int], required: Sequence[int], size: int) -> bool:
    return 0 < size <= len(available) and len(required) <= size and set(required) <= set(available)


def _static_sets_of(links: Links) -> Mapping[int, Sequence[Set]] | None:
    product = links.product or ""
    if links.gpu_count == 16 and "V100-SXM3" in product:
        return DGX_2
    if links.gpu_count == 8 and "V100-SXM2" in product:
        return DGX_1_VOLTA
    return DGX_1_PASCAL if links.gpu_count == 8 and "P100-SXM2" in product else None


class _Slice:
    """A Go slice of sets: an array that may be shared, and a length. Appending within the capacity writes into the
    shared array; at the capacity it copies into one of twice the size.
    """

    __slots__ = ("_array", "_length")

    def __init__(self, array: list[Set | None], length: int) -> None:
        self._array = array
        self._length = length

    def appended(self, value: Set) -> _Slice:
        array = self._array
        if self._length == len(array):
            array = [*array, *([None] * max(1, len(array)))]
        array[self._length] = value
        return _Slice(array, self._length + 1)

    def sets(self) -> tuple[Set, ...]:
        return tuple(value for value in self._array[: self._length] if value is not None)


def _walk(gpus: Sequence[int], size: int, visit: Callable[[_Slice], None]) -> None:
    if not 0 < size <= len(gpus):
        return
    if size == 1:
        for gpu in gpus:
            visit(_Slice([(gpu,)], 1))
        return
    missing = -len(gpus) % size
    _walk_from(_Slice([], 0), (*gpus, *[NIL] * missing), size, missing, visit)


def _walk_from(before: _Slice, left: Set, size: int, missing: int, visit: Callable[[_Slice], None]) -> None:
    """Add each set that holds the first GPU left, so that no partition is walked twice."""
    if not left:
        visit(before)
        return
    for chosen, rest in _sets_with_first(left, size, missing):
        _walk_from(before.appended(chosen), rest, size, missing, visit)


def _sets_with_first(left: Set, size: int, missing: int) -> Iterator[tuple[Set, Set]]:
    """Yield the sets that hold the first GPU left, in the order of their places, each with what it leaves.

    Padding stands at the end of what is left; a set has none of it or all.
    """
    real = range(1, len(left) - left.count(NIL))
    padding = tuple(range(real.stop, len(left)))
    others: Iterator[tuple[int, ...]] = combinations(real, size - 1)
    if padding:
        padded = ((*some, *padding) for some in combinations(real, size - 1 - missing))
        others = merge(others, padded)
    for places in others:
        taken = {0, *places}
        yield (
            (left[0], *(left[place] for place in places)),
            tuple(left[place] for place in range(len(left)) if place not in taken),
        )


def _best_set(points: Points, available: Sequence[int], required: frozenset[int], size: int) -> Set | None:
    @cache
    def weigh(chosen: Set) -> tuple[int, bool]:
        """Return the points of a set, and whether it is whole and holds what is required."""
        real = [gpu for gpu in chosen if gpu != NIL]
        return sum(points[a][b] for a, b in combinations(real, 2)), len(real) == size and required <= set(real)

    best: list[_Slice] = []
    most = -1

    def visit(partition: _Slice) -> None:
        nonlocal most
        weighed = [weigh(chosen) for chosen in partition.sets()]
        total = sum(score for score, _ in weighed)
        if total > most and any(fits for _, fits in weighed):
            most = total
            best[:] = [partition]

    _walk(available, size, visit)
    # Read only now: what was remembered may have been overwritten meanwhile.
    holding = [chosen for chosen in best[0].sets() if required <= set(chosen)] if best else []
    return max(holding, key=lambda chosen: weigh(chosen)[0], default=None)
