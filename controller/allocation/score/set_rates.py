"""The bandwidth of sets of GPUs of one class of nodes, remembered.

A memo of objectives.collective: nothing here but speed. kB/s and steps of one set stand in one number, so that greater
is better (objectives.Collective.steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from math import gcd, prod
from typing import Final

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, LinkBandwidth
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import KB_S_PER_GB_S, Box, interchangeable, mask_of, ordinals_of
from dracaena.controller.allocation.score.objectives import LEVEL_STEP, lightest_division, make_fabric, minimum_cut
from dracaena.controller.allocation.score.subsets import (
    least_degree_of_subsets,
    least_pair_of_subsets,
    total_of_subsets,
)

STEP_BITS: Final = 3
"""Steps of a rate are 0 to 5."""
NVLINK_STEPS: Final = LinkLevel.SYS // LEVEL_STEP

MAX_STATES: Final = 1 << 16
"""Free sets of a box that differ in more than interchangeable GPUs: as many as 16 GPUs can have that are all unlike.
Beyond it damage is not counted, and sets are grown instead of compared (candidates.grown)."""

FEW_STATES: Final = 1 << 12
"""Up to as many free sets each is looked at alone; above, all subsets at once (subsets), at some 10 ms a table."""

MAX_AT_ONCE: Final = 16
"""GPUs whose subsets are looked at all at once: 65,536; each GPU more doubles them."""

MAX_DIVIDED: Final = 8
"""GPUs of a set of which all ways to divide it are compared for the lightest cut: 127; each GPU more doubles them."""

MAX_COMPARED: Final = 3
"""GPUs of which all sets are compared for their heaviest links: 560 of 16 GPUs, 1,820 if it were 4."""

MAX_ENTRIES: Final = 1 << 17
"""Entries of one memo of a table; a full one starts afresh. 65,536 sets of 16 GPUs fit, at about 100 bytes each."""


class SetRates:
    """Rates of the sets of one box under the figures of one policy. One thread at a time."""

    def __init__(self, box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> None:
        self.box = box
        self.figures = figures
        self.fabric = make_fabric(box, figures)
        self.twins = interchangeable(box)
        """Masks of GPUs of which any two can change places and nothing else changes; every GPU is in one."""
        states = prod(twins.bit_count() + 1 for twins in self.twins)
        self.comparable = states <= MAX_STATES
        self.many_unlike = states > FEW_STATES and box.gpu_count <= MAX_AT_ONCE
        """Whether thousands of sets can be free: figures are then computed for all at once (subsets, groups)."""
        self._slowest_pcie = _slowest_first(self._pcie_rates)
        self._rates: dict[int, int] = {}
        self._heaviest_of: dict[int, int] = {}

    def rate(self, mask: int) -> int:
        """Return `kB/s << STEP_BITS | steps` of a collective over two or more GPUs.

        Cost: O(k³) for a set whose minimum cut is not obvious, then a look-up.
        """
        known = self._rates.get(mask)
        if known is not None:
            return known
        over_pcie, over_nvlink = self._pcie_rate(mask), self._most_nvlink_rate(mask)
        if over_nvlink <= over_pcie:
            return over_pcie
        if len(self._rates) >= MAX_ENTRIES:
            self._rates.clear()
        known = self._rates[mask] = max(over_pcie, self._nvlink_rate(mask, over_nvlink))
        return known

    def most_rate(self, mask: int) -> int:
        """Return a number that rate(mask) does not exceed, at a fraction of its cost: no cut is lighter than the links
        of one GPU.
        """
        known = self._rates.get(mask)
        return max(self._pcie_rate(mask), self._most_nvlink_rate(mask)) if known is None else known

    def kb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective; 0 for fewer than two GPUs."""
        return self.rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def most_kb_s(self, mask: int) -> int:
        """Return a bandwidth that the one of a set does not exceed; 0 for fewer than two GPUs."""
        return self.most_rate(mask) >> STEP_BITS if mask & (mask - 1) else 0

    def gb_s(self, mask: int) -> int:
        """Return the bandwidth of a collective in whole GB/s; 0 for fewer than two GPUs."""
        return self.kb_s(mask) // KB_S_PER_GB_S

    def _nvlink_rate(self, mask: int, most: int) -> int:
        """Return the rate over NVLinks alone, 0 where they do not connect the set."""
        if self.box.switched & mask:
            return most
        ordinals = ordinals_of(mask)
        if self._is_least_cut(len(ordinals), most >> STEP_BITS):
            return most
        if self._nvlinks_within is not None and len(ordinals) <= MAX_DIVIDED:
            least = self._degree_unit * lightest_division(self._nvlinks_within, mask)
        else:
            nvlinks = self.fabric.nvlink_kb_s
            least = minimum_cut([[nvlinks[a][b] for b in ordinals] for a in ordinals])
        return least << STEP_BITS | NVLINK_STEPS if least else 0

    def _is_least_cut(self, count: int, least: int) -> bool:
        """Whether the least sum of one GPU's links is the minimum cut of `count` GPUs for sure.

        Cutting off t GPUs, at most half of them, cuts their links less twice those among them: at least
        t·least - 2·heaviest(t), where no t GPUs of the box have heavier links among them.
        """
        return all((t - 1) * least >= 2 * self._heaviest(t) for t in range(2, count // 2 + 1))

    def _most_nvlink_rate(self, mask: int) -> int:
        """Return the least total of one GPU's NVLinks to the others, behind switches the narrowest uplink; 0: none."""
        if mask & ~self.fabric.nvlink_group[(mask & -mask).bit_length() - 1]:
            return 0
        if self._degree_of is not None:
            least = self._degree_of[mask] * self._degree_unit
        elif self.box.switched & mask:
            nvlinks = self.fabric.nvlink_kb_s
            least = min(nvlinks[a][b] for a, b in combinations(ordinals_of(mask), 2))
        else:
            rows, ordinals = self.fabric.nvlink_kb_s, ordinals_of(mask)
            least = min(sum(map(rows[ordinal].__getitem__, ordinals)) for ordinal in ordinals)
        return least << STEP_BITS | NVLINK_STEPS if least else 0

    def _pcie_rate(self, mask: int) -> int:
        if self._pcie_of is not None:
            return self._pcie_of[mask]
        ordinals = ordinals_of(mask)
        for rate, somewhere, rows in self._slowest_pcie:
            if somewhere & mask:
                for ordinal in ordinals:
                    if rows[ordinal] & mask:
                        return rate
        return 0

    @cached_property
    def _degree_of(self) -> Sequence[int] | None:
        """Least degree of every set in _degree_unit, on boxes where most sets are asked for; None on others."""
        if self._pcie_of is None or self.box.switched:
            return None
        return least_degree_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _nvlinks_within(self) -> Sequence[int] | None:
        """Total of the NVLinks inside every set in _degree_unit, where there is _degree_of."""
        if self._degree_of is None:
            return None
        return total_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _degree_unit(self) -> int:
        return gcd(*(kb_s for row in self.fabric.nvlink_kb_s for kb_s in row)) or 1

    @cached_property
    def _pcie_of(self) -> Sequence[int] | None:
        """PCIe rate of every set, on boxes where most sets are asked for; None on others."""
        return least_pair_of_subsets(self._pcie_rates) if self.many_unlike else None

    @cached_property
    def _pcie_rates(self) -> tuple[tuple[int, ...], ...]:
        fabric, ordinals = self.fabric, range(self.box.gpu_count)
        return tuple(
            tuple(
                fabric.pcie_kb_s[a][b] << STEP_BITS | (LinkLevel.SYS - fabric.levels[a][b]) // LEVEL_STEP
                for b in ordinals
            )
            for a in ordinals
        )

    def _heaviest(self, count: int) -> int:
        """Return what the NVLinks among `count` GPUs of the box weigh at most."""
        known = self._heaviest_of.get(count)
        if known is None:
            rows = self.fabric.nvlink_kb_s
            if count <= MAX_COMPARED and self.many_unlike:
                sets = combinations(range(self.box.gpu_count), count)
                known = max(sum(rows[a][b] for a, b in combinations(ordinals, 2)) for ordinals in sets)
            else:
                known = count * (count - 1) // 2 * max(map(max, rows), default=0)
            self._heaviest_of[count] = known
        return known


def _slowest_first(rates: Sequence[Sequence[int]]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return, for each rate of a pair that there is, (rate, GPUs that have such a pair, mask of each GPU's peers)."""
    ordinals = range(len(rates))
    found = []
    for rate in sorted({rates[a][b] for a, b in combinations(ordinals, 2)}):
        rows = tuple(mask_of(b for b in ordinals if b != a and rates[a][b] == rate) for a in ordinals)
        found.append((rate, mask_of(a for a in ordinals if rows[a]), rows))
    return tuple(found)
