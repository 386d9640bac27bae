"""Which part of the pod's set each request gets.

The pod as a whole gets the best-linked set there is: its containers talk to each other more than to others. Only then
does each request get the part of it that is linked best; what counts is the sum over all requests. A policy's demands
(box.SetRule) apply to the part of each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.score.box import SetRule, mask_of, ordinals_of, refined, representatives

MAX_SPLITS: Final = 10_000
"""Ways to divide one set that splits() looks at: 8! / 2 and more sort in milliseconds; who needs more gets another
set."""

MAX_PARTS: Final = 30_000
"""Parts of one set that split() looks at before it takes what it has: some 150 ms. Three requests of 12 unlike GPUs
together never reach it, four different ones of 16 would take seconds."""


@dataclass(frozen=True, slots=True)
class RequestShare:
    """What one request gets of the set."""

    count: int
    rule: SetRule


class Worths(Protocol):
    """What a part of a set is worth (class_table.ClassTable)."""

    @property
    def twins(self) -> tuple[int, ...]:
        """Masks of GPUs of which any two can change places."""

    def worth(self, mask: int) -> int:
        """Return what a set is worth."""

    def most_worth(self, count: int) -> int:
        """Return the most that any set of `count` GPUs is worth."""


class Splitter:
    """Divides sets among the same shares. Remembers what it found, across the sets. One thread at a time."""

    def __init__(self, table: Worths, shares: Sequence[RequestShare], effort: Effort | None = None) -> None:
        """Each part that is looked at is charged to `effort`."""
        self._effort = effort or Effort()
        self._table = table
        self._shares = tuple(shares)
        # GPUs that are alike to every share: any of them stands for the others.
        self._kinds = refined(table.twins, sorted({share.rule.eligible for share in shares}))
        self._known: dict[tuple[int, int], tuple[int, tuple[int, ...]] | None] = {}
        self._looked_at = 0
        self._most_from = _most_from(table, shares)

    def split(self, mask: int) -> tuple[int, ...] | None:
        """Return the part of each share, in order, or None when no way follows all rules.

        The counts of the shares add up to the set. The sum of the parts' worths is the greatest possible; of equal
        ways, the first in the order of ordinals. Equal shares cost one way. After MAX_PARTS parts of the set it is the
        best way found so far, as the best-linked parts of the earlier shares are looked at first: legal and always the
        same, but maybe not the greatest sum. Only if none was found by then does the search go on to the first legal
        way.
        """
        if self._looked_at > MAX_PARTS:
            self._known.clear()  # not all of it is the best
        self._looked_at = 0
        found = self._best(mask, 0)
        return found[1] if found is not None else None

    def splits(self, mask: int) -> Iterator[tuple[int, ...]]:
        """Yield every way that follows all rules, best first; at most MAX_SPLITS of them are looked at."""
        found: list[tuple[int, tuple[int, ...]]] = []
        for total, parts in self._splits(mask, 0):
            found.append((total, parts))
            if len(found) == MAX_SPLITS:
                break
        yield from (parts for _, parts in sorted(found, key=lambda split: -split[0]))

    def _splits(self, left: int, place: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        if place == len(self._shares):
            yield 0, ()
            return
        share = self._shares[place]
        for chosen in combinations(ordinals_of(left & share.rule.eligible), share.count):
            self._effort.charge(SET_STEPS, Work.SETS)
            part = mask_of(chosen)
            if share.rule.allows(part):
                for total, parts in self._splits(left & ~part, place + 1):
                    yield self._table.worth(part) + total, (part, *parts)

    def _best(self, left: int, place: int) -> tuple[int, tuple[int, ...]] | None:
        """Return (sum of worths, parts) for the shares from `place` on."""
        if place == len(self._shares):
            return 0, ()
        if (left, place) not in self._known:
            self._known[left, place] = self._search(left, place)
        return self._known[left, place]

    def _search(self, left: int, place: int) -> tuple[int, tuple[int, ...]] | None:
        best: tuple[int, tuple[int, ...]] | None = None
        best_ordinals: tuple[int, ...] = ()
        rule, most_of_others = self._shares[place].rule, self._most_from[place + 1]
        # The best-linked parts first, so that the search ends early; of equal ones, the first by ordinals.
        for worth, part in sorted(self._worths(left, place), key=_greatest):
            if best is not None and (worth + most_of_others < best[0] or self._looked_at > MAX_PARTS):
                break
            self._looked_at += 1
            ordinals = ordinals_of(part)
            if best is not None and worth + most_of_others == best[0] and ordinals > best_ordinals:
                continue
            if not rule.allows(part):
                continue
            rest = self._best(left & ~part, place + 1)
            if rest is None:
                continue
            total = worth + rest[0]
            if best is None or total > best[0] or (total == best[0] and ordinals < best_ordinals):
                best, best_ordinals = (total, (part, *rest[1])), ordinals
        return best

    def _worths(self, left: int, place: int) -> Iterator[tuple[int, int]]:
        for part in self._parts(left, place):
            self._effort.charge(SET_STEPS, Work.SETS)
            yield self._table.worth(part), part

    def _parts(self, left: int, place: int) -> Iterator[int]:
        """Yield the parts that this share may take.

        The last share takes what is left. When all shares from here on are equal, some part has the lowest ordinal: it
        may as well be this one.
        """
        share = self._shares[place]
        if place == len(self._shares) - 1:
            yield left
        elif len(set(self._shares[place:])) == 1:
            lowest = left & -left
            others = representatives(self._kinds, left & ~lowest, share.count - 1)
            yield from (lowest | other for other in others)
        else:
            yield from representatives(self._kinds, left & share.rule.eligible, share.count)


def _greatest(part: tuple[int, int]) -> tuple[int, tuple[int, ...]]:
    """Sort (worth, mask) by descending worth, then by ordinals."""
    return -part[0], ordinals_of(part[1])


def _most_from(table: Worths, shares: Sequence[RequestShare]) -> list[int]:
    """Return for each place an upper bound of the total worth of all shares from it on; last, 0 for none."""
    most = [0]
    for share in reversed(shares):
        most.append(most[-1] + table.most_worth(share.count))
    return most[::-1]


def most_served(counts: Sequence[int], eligible: Sequence[int], free: int) -> int:
    """Return how many GPUs can be given out when each share takes up to its count of the free GPUs eligible for it.

    A maximum matching, by augmenting paths. Cost: O(GPUs² × shares).
    """
    holders: list[list[int]] = [[] for _ in counts]

    def place(ordinal: int, tried: set[int]) -> bool:
        for share, mask in enumerate(eligible):
            if mask >> ordinal & 1 and share not in tried:
                tried.add(share)
                if len(holders[share]) < counts[share]:
                    holders[share].append(ordinal)
                    return True
                for position, other in enumerate(holders[share]):
                    if place(other, tried):
                        holders[share][position] = ordinal
                        return True
        return False

    return sum(place(ordinal, set()) for ordinal in ordinals_of(free))
