"""The best disjoint groups of one size inside many sets of GPUs at once, for boxes of up to 16 GPUs.

A collection of sets is one big integer: bit number = mask of a set. For 16 GPUs that is 8 kB, so finding all sets that
contain two disjoint groups, or some set of a collection, takes a few big steps, where checking each set takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import combinations
from math import gcd
from operator import add
from typing import Final

from dracaena.controller.allocation.score.box import ordinals_of
from dracaena.controller.allocation.score.subsets import best_pairing_of_subsets, repeated

MAX_GPUS: Final = 16
"""The most GPUs whose subsets fit into a collection: 65,536; each further GPU doubles them."""


@dataclass(frozen=True, slots=True)
class _EqualGroups:
    worth: int
    masks: Sequence[int]
    collection: int


class Groups:
    """All groups of one size of a box. Exact worths are computed only when upper bounds require them."""

    def __init__(self, bounds: Iterable[tuple[int, int]], worth: Callable[[int], int]) -> None:
        """`bounds`: (upper bound of its worth, mask) of each group; `worth` returns, and remembers, its exact worth."""
        self.worth = worth
        self._bounded: dict[int, list[int]] = {}
        for most, mask in bounds:
            self._bounded.setdefault(most, []).append(mask)
        self._highest_first = sorted(self._bounded, reverse=True)

    def __len__(self) -> int:
        return sum(map(len, self._bounded.values()))

    def inside(self, within: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield (bound, groups that are subsets of a set), the highest bound first. Lazy."""
        outside = ~within
        for most in self._highest_first:
            inside = [mask for mask in self._bounded[most] if not mask & outside]
            if inside:
                yield most, inside

    def best_inside(self, free: int) -> int:
        """Return the worth of the best group that is a subset of `free`; 0 when there is none."""
        best = 0
        for most, masks in self.inside(free):
            for mask in masks:
                if most <= best:
                    return best
                best = max(best, self.worth(mask))
        return best

    def totals(self, sets: Sequence[int], count: int) -> Iterator[tuple[int, list[int]]]:
        """Yield (total, sets): the greatest total worth of `count` disjoint groups inside each set, greatest first.

        Every set is large enough for that many groups. Each set comes once, those of one total in the given order; some
        totals come without sets, so that a caller that looks for a certain total need not wait for the next set.
        """
        within = 0
        for each in sets:
            within |= each
        wanted = collection_of(sets)
        left = list(sets)
        for total, unions in _Unions(self, within).best_first(count):
            hits = supersets_within(unions, within) & wanted
            if not hits:
                yield total, []
                continue
            wanted ^= hits
            has = members(hits)
            yield total, [each for each in left if has[each >> 3] >> (each & 7) & 1]
            if not wanted:
                return
            left = [each for each in left if not has[each >> 3] >> (each & 7) & 1]


class SortedGroups:
    """Groups of one size by upper bounds of their worth, for boxes where each is looked at alone."""

    def __init__(self, bounds: Iterable[tuple[int, int]]) -> None:
        """`bounds`: (upper bound of its worth, mask) of each group."""
        self.best_first = sorted(bounds, reverse=True)
        self.most = self.best_first[0][0] if self.best_first else 0
        self.by_lowest: dict[int, list[tuple[int, int]]] = {}
        for group in self.best_first:
            self.by_lowest.setdefault(group[1] & -group[1], []).append(group)

    def best_inside(self, free: int, worth: Callable[[int], int]) -> int:
        """Return the worth of the best group that is a subset of `free`; 0 when there is none."""
        best, taken = 0, ~free
        for most, group in self.best_first:
            if most <= best:
                break
            if not group & taken:
                best = max(best, worth(group))
        return best


class Pairings:
    """The best disjoint pairs inside each set of up to MAX_GPUS, all worked out at once."""

    def __init__(self, gpu_count: int, rate: Callable[[int], tuple[int, int]], most_steps: int) -> None:
        """`rate`: the kB/s of a pair, given as a mask, and its steps, which are at most `most_steps`."""
        ordinals = range(gpu_count)
        rates = [[rate(1 << a | 1 << b) if a != b else (0, 0) for b in ordinals] for a in ordinals]
        # Above the steps that all pairs together can have: tightly packed worths are half the work.
        self._steps = most_steps * (gpu_count // 2) + 1
        self._unit = gcd(*(kb_s for row in rates for kb_s, _ in row)) or 1
        self._worths = best_pairing_of_subsets(
            [[kb_s // self._unit * self._steps + steps for kb_s, steps in row] for row in rates]
        )

    def best(self, free: int) -> tuple[int, int]:
        """Return the sums of the kB/s and of the steps of the best pairs inside a set."""
        units, steps = divmod(self._worths[free], self._steps)
        return units * self._unit, steps


def best_halves(
    free: int, size: int, most_worths: Callable[[Sequence[int]], list[int]], worth: Callable[[int], int]
) -> int:
    """Return the greatest total worth of two groups that a set is divided into. `most_worths` returns upper bounds of
    the worths of sets, `worth` the worth of one."""
    lowest = free & -free
    bits = [1 << ordinal for ordinal in ordinals_of(free ^ lowest)]
    halves = [lowest | other for other in map(sum, combinations(bits, size - 1))]
    bounds = map(add, most_worths(halves), most_worths([free ^ half for half in halves]))
    best = 0
    for most, half in sorted(zip(bounds, halves, strict=True), reverse=True):
        if most <= best:
            break
        best = max(best, worth(half) + worth(free ^ half))
    return best


class _Unions:
    """Unions of disjoint groups that are subsets of one set, as collections by the worths of the groups."""

    def __init__(self, groups: Groups, within: int) -> None:
        self._by_worth = _by_worth(groups, within)
        self._inside: list[_EqualGroups] = []
        self._known: dict[tuple[int, ...], int] = {}

    def best_first(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield (total, unions of `count` groups that have this total), the greatest total first."""
        heap: list[tuple[int, tuple[int, ...]]] = []
        seen: set[tuple[int, ...]] = set()

        def push(places: tuple[int, ...]) -> None:
            if places not in seen and self._is_place(max(places)):
                seen.add(places)
                heappush(heap, (-sum(self._inside[place].worth for place in places), places))

        push((0,) * count)
        while heap:
            total, unions, found = heap[0][0], 0, []
            while heap and heap[0][0] == total:
                found.append(heappop(heap)[1])
                unions |= self._of(found[-1])
            yield -total, unions
            # Only now: a caller that has found all it looked for needs no groups of lower worth, whose exact worths
            # cost most.
            for places in found:
                for moved, place in enumerate(places):
                    if moved == count - 1 or place < places[moved + 1]:  # places never fall
                        push((*places[:moved], place + 1, *places[moved + 1 :]))

    def _is_place(self, place: int) -> bool:
        """Whether there are groups of that many different worths."""
        while len(self._inside) <= place:
            groups = next(self._by_worth, None)
            if groups is None:
                return False
            self._inside.append(groups)
        return True

    def _of(self, places: tuple[int, ...]) -> int:
        """Return the unions of disjoint groups, one of each place."""
        if len(places) == 1:
            return self._inside[places[0]].collection
        known = self._known.get(places)
        if known is None:
            fewest = min(places, key=lambda place: len(self._inside[place].masks))
            others = list(places)
            others.remove(fewest)
            alike = places[0] == places[-1]
            known = _joined(self._inside[fewest].masks, self._of(tuple(others)), alike=alike)
            self._known[places] = known
        return known


def _by_worth(groups: Groups, within: int) -> Iterator[_EqualGroups]:
    """Yield the groups inside a set by their exact worths, best first. Lazy."""
    exact: dict[int, list[int]] = {}
    for most, masks in groups.inside(within):
        for worth in sorted((worth for worth in exact if worth > most), reverse=True):
            found = exact.pop(worth)
            yield _EqualGroups(worth, found, collection_of(found))
        for mask in masks:
            exact.setdefault(groups.worth(mask), []).append(mask)
    for worth in sorted(exact, reverse=True):
        yield _EqualGroups(worth, exact[worth], collection_of(exact[worth]))


def _joined(groups: Sequence[int], sets: int, *, alike: bool) -> int:
    """Return the unions of each group with each set of a collection that is disjoint from it.

    `alike`: the sets are unions of the same groups, so in each union some group has the highest member: only sets below
    that member, which are small numbers, are joined.
    """
    unions = 0
    for group in groups if sets else ():
        disjoint = sets & _up_to(group.bit_length() - 1) if alike else sets
        for ordinal in ordinals_of(group):
            disjoint &= _without(ordinal)
        unions |= disjoint << group
    return unions


@cache
def _without(ordinal: int) -> int:
    """Return the collection of all sets of up to MAX_GPUS without a GPU."""
    return repeated((1 << (1 << ordinal)) - 1, 2 << ordinal, MAX_GPUS)


@cache
def _up_to(ordinal: int) -> int:
    """Return the collection of all sets of GPUs below an ordinal."""
    return (1 << (1 << ordinal)) - 1


def collection_of(masks: Iterable[int]) -> int:
    """Return the collection of some sets."""
    found = bytearray(1 << MAX_GPUS - 3)
    for mask in masks:
        found[mask >> 3] |= 1 << (mask & 7)
    return int.from_bytes(found, "little")


def members(collection: int) -> bytes:
    """Return a collection byte by byte: bit `mask & 7` of byte `mask >> 3`."""
    return collection.to_bytes(1 << MAX_GPUS - 3, "little")


def supersets_within(collection: int, mask: int) -> int:
    """Return the collection of all sets that contain a set of a collection and otherwise only members of `mask`."""
    for ordinal in ordinals_of(mask):
        collection |= (collection & _without(ordinal)) << (1 << ordinal)
    return collection
