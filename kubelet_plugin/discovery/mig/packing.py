"""Counts of MIG profiles → where to place them on one GPU, or None if they do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dracaena.api.mig_geometry import MigPlace, MigPlacement, MigProfile, consumption, counters

Placed = tuple[MigProfile, MigPlacement]

_Rest = tuple[tuple[str, int], ...]
"""The rest of the counters of a GPU, by name."""


def packed(counts: Mapping[str, int], profiles: Sequence[MigProfile]) -> tuple[Placed, ...] | None:
    """Return places for this many instances of each profile together, in the order of their starts; None: no room.

    Exact: all places are tried, the largest profiles first and each from its lowest start, so the same input gives the
    same answer. Raises KeyError for a profile that the GPU does not have. The search is short: a GPU has eight memory
    slices, and dead ends are remembered by what was left of the GPU.
    """
    known = {profile.name: profile for profile in profiles}
    wanted = [known[name] for name, count in sorted(counts.items()) if count > 0]
    there = counters(profiles)
    # Checked before the list is made: a file may name any number.
    if any(counts[each.name] > min(each.max_instances, len(each.placements)) for each in wanted):
        return None
    wanted.sort(key=lambda each: (-max(place.size for place in each.placements), -each.compute_slices, each.name))
    demands = [profile for profile in wanted for _ in range(counts[profile.name])]
    return _PackingSearch(demands, there).run()


class _PackingSearch:
    """One search, depth first. Instances of one profile are taken in the order of their starts."""

    def __init__(self, demands: Sequence[MigProfile], there: Mapping[str, int]) -> None:
        self._demands = demands
        self._there = there
        self._in_vain: set[tuple[int, int, _Rest]] = set()

    def run(self) -> tuple[Placed, ...] | None:
        found = self._from(0, -1, Counter(self._there))
        return None if found is None else tuple(sorted(found, key=lambda each: each[1]))

    def _from(self, at: int, after: int, left: Counter[str]) -> list[Placed] | None:
        """Place what is left of the demands; `after` is the start of the last instance of the same profile."""
        if at == len(self._demands):
            return []
        state = (at, after, tuple(sorted(left.items())))
        if state in self._in_vain:
            return None
        profile = self._demands[at]
        same_next = at + 1 < len(self._demands) and self._demands[at + 1] is profile
        for placement in profile.placements:
            if placement.start <= after:
                continue
            takes = consumption(MigPlace("", profile, placement), self._there)
            if any(left[name] < amount for name, amount in takes.items()):
                continue
            rest = left.copy()
            rest.subtract(takes)
            found = self._from(at + 1, placement.start if same_next else -1, rest)
            if found is not None:
                return [(profile, placement), *found]
        self._in_vain.add(state)
        return None
