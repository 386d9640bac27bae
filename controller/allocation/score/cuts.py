"""The best cut: where the parts that a pod wants come out of several GPUs, exactly.

A GPU's loss is the worth that it no longer has afterwards, whatever the order of the cuts, and losses add up over GPUs.
So the best cut for each number of parts of each demand is worked out for each GPU alone, and then over one GPU after
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dracaena.api.partitions import Left
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.score.partitions import PartitionTable

MAX_CUTS: Final = 20_000
"""Cuts looked at for one GPU, or over all: seven parts of one profile are 128 cuts of an H100, some thousands over
eight GPUs. Claims for dozens of parts of several profiles have more; the best one found so far is then taken, and
finding none proves nothing."""

MOST_KNOWN_CUTS: Final = 100_000
"""Cuts remembered in total, some 700 bytes each: 70 MB; beyond that, everything is forgotten. For one GPU, 8 to 14
different requests have 250 to 1,470 cuts."""

Wanted = tuple[int, ...]
"""Number of parts of each demand."""


@dataclass(frozen=True, slots=True)
class CutGpu:
    """A GPU that parts may be cut out of."""

    table: PartitionTable
    left: Left
    allowed: tuple[int, ...]
    """For each demand a mask of the places that it may have."""
    is_fresh: bool = False
    """Whether no claim uses the GPU, and it could be given whole."""


class CutKey(NamedTuple):
    """The key that sorts cuts, best first; a sum over GPUs."""

    fresh: int
    """GPUs that no claim used before."""
    loss: int
    """Of worth (PartitionTable.worth)."""
    left: int
    """Memory slices left on the GPUs that are cut: the fuller GPU comes first."""

    def plus(self, other: CutKey) -> CutKey:
        """Return the sum of both."""
        return CutKey(self.fresh + other.fresh, self.loss + other.loss, self.left + other.left)


Picks = tuple[tuple[int, int, int], ...]
"""GPU, demand and place of each part, ascending."""


class Cut(NamedTuple):
    """One way to serve all demands; sorts best first."""

    key: CutKey
    picks: Picks


class BestCut(NamedTuple):
    """The best cut, as far as it was found."""

    cut: Cut | None
    """None when there is none."""
    cut_off: bool
    """Whether cuts were left out (MAX_CUTS): there may be a better one, or one where none was found."""


class _Given(NamedTuple):
    """What one GPU can give."""

    offers: Mapping[Wanted, tuple[int, int, tuple[tuple[int, int], ...]]]
    """Number of parts of each demand → the loss, what is left, and demand and place of each part."""
    cut_off: bool


NOTHING: Final = Cut(CutKey(0, 0, 0), ())
"""The cut that serves a demand for no parts."""


class Cuts:
    """Ways to cut, for any number of requests. Remembers what each state of a GPU can give. One thread at a time."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._known: dict[tuple[object, ...], _Given] = {}
        self._bests: dict[tuple[tuple[CutGpu | None, ...], Wanted, bool], BestCut] = {}
        self._cut_count = 0

    def best(self, gpus: tuple[CutGpu | None, ...], wanted: Wanted, *, apart: bool = False) -> BestCut:
        """Return the best cut for the wanted parts of each demand; None stands for a GPU that gives none. `apart`:
        no two parts out of one GPU. Exact up to MAX_CUTS. Of equal cuts, the first by GPUs, demands and places. Cost: a
        look-up if the same was asked before.
        """
        key = gpus, wanted, apart
        if key not in self._bests:
            best = self._best(gpus, wanted, apart=apart)
            self._count(1 + len(gpus))  # the key holds the GPUs
            self._bests[key] = best
        return self._bests[key]

    def _best(self, gpus: Sequence[CutGpu | None], wanted: Wanted, *, apart: bool) -> BestCut:
        found: dict[Wanted, Cut] = {tuple(0 for _ in wanted): NOTHING}
        cut_off = False
        for number, gpu in enumerate(gpus):
            if gpu is None:
                continue
            more: dict[Wanted, Cut] = dict(found)
            gives = self._of_gpu(gpu, wanted, most=1 if apart else None)
            cut_off |= gives.cut_off
            for before, cut in found.items():
                for given, (loss, left, parts) in gives.offers.items():
                    after = tuple(map(int.__add__, before, given))
                    if any(one > most for one, most in zip(after, wanted, strict=True)):
                        continue
                    self._effort.charge(SET_STEPS, Work.SETS)
                    if len(more) >= MAX_CUTS and after not in more and after != wanted:
                        cut_off = True
                        continue
                    key = cut.key.plus(CutKey(int(gpu.is_fresh), loss, left))
                    joined = Cut(key, (*cut.picks, *((number, demand, place) for demand, place in parts)))
                    if after not in more or joined < more[after]:
                        more[after] = joined
            found = more
        return BestCut(found.get(wanted), cut_off)

    def _of_gpu(self, gpu: CutGpu, wanted: Wanted, most: int | None) -> _Given:
        """Return what a GPU can give, at most `most` parts (None: any number)."""
        key = (gpu.table, gpu.left, gpu.allowed, wanted, most)
        known = self._known.get(key)
        if known is None:
            known = self._cut_out(gpu, wanted, most)
            self._count(1 + len(known.offers))
            self._known[key] = known
        return known

    def _count(self, cuts: int) -> None:
        """Count cuts that will be remembered."""
        if self._cut_count + cuts > MOST_KNOWN_CUTS:
            self._known.clear()
            self._bests.clear()
            self._cut_count = 0
        self._cut_count += cuts

    def _cut_out(self, gpu: CutGpu, wanted: Wanted, most: int | None) -> _Given:
        table, nothing = gpu.table, tuple(0 for _ in wanted)
        worth, slices = table.worth(gpu.left), table.geometry.slices
        states: dict[tuple[Wanted, Left], tuple[tuple[int, int], ...]] = {(nothing, gpu.left): ()}
        layer = dict(states)
        best: dict[Wanted, tuple[int, int, tuple[tuple[int, int], ...]]] = {}
        cut_off = False
        while layer and not cut_off and (most is None or most > 0):
            following: dict[tuple[Wanted, Left], tuple[tuple[int, int], ...]] = {}
            for (given, left), parts in layer.items():
                if given == wanted:
                    continue
                if cut_off:
                    break
                for move in table.moves(left):
                    self._effort.charge(SET_STEPS, Work.SETS)
                    for demand, allowed in enumerate(gpu.allowed):
                        if allowed >> move.place & 1 and given[demand] < wanted[demand]:
                            after = (*given[:demand], given[demand] + 1, *given[demand + 1 :])
                            cut = tuple(sorted((*parts, (demand, move.place))))
                            state = after, move.left
                            if state not in following or cut < following[state]:
                                following[state] = cut
                cut_off = len(states) + len(following) > MAX_CUTS
            states |= following
            layer = following
            most = None if most is None else most - 1
        for (given, left), parts in states.items():
            if parts:
                offer = worth - table.worth(left), sum(left[:slices]), parts
                if given not in best or offer < best[given]:
                    best[given] = offer
        return _Given(best, cut_off)
