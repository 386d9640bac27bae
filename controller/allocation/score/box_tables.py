"""What is worked out once for one box under the figures of one policy: its pairs, its rings, what distinguishes GPUs.

Also the figures of a set that are not looked up: minimum cuts, and the rings of large boxes. class_table remembers what
sets are worth. Bandwidths are whole kB/s, one way, as collective defines them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from math import gcd, prod
from typing import Final

from dracaena.api.config.v1alpha1 import (
    NO_LINK_BANDWIDTH,
    LinkBandwidth,
)
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import (
    Box,
    connected,
    interchangeable,
    mask_of,
    ordinals_of,
)
from dracaena.controller.allocation.score.collective import (
    LEVEL_STEP,
    lightest_division,
    make_fabric,
    minimum_cut,
    nic_steps,
    pair_kb_s,
    pair_level,
)
from dracaena.controller.allocation.score.subsets import (
    least_degree_of_subsets,
    least_pair_of_subsets,
    total_of_subsets,
    with_ring,
)

STEP_BITS: Final = 3
"""Steps of a rate are 0 to 5."""
NVLINK_STEPS: Final = LinkLevel.SYS // LEVEL_STEP

STEP_SUM_BITS: Final = 16
"""Room for the steps of a total over disjoint groups: far above 5 times the GPUs of any box."""

KB_S_BITS: Final = 52
"""Room for the kB/s of a total: 61 links of 10,000 GB/s to each of some thousand GPUs are less."""

COLLECTIVE_SHIFT: Final = STEP_SUM_BITS + KB_S_BITS
"""Where the collective's kB/s start in a worth."""

MAX_STATES: Final = 1 << 16
"""Free sets of a box that differ in more than interchangeable GPUs: as many as 16 GPUs that are all unlike can have.
Beyond it damage is not counted, and sets are grown instead of compared (choices.grown)."""

FEW_STATES: Final = 1 << 12
"""Up to this many free sets, each is looked at alone; above, all subsets at once (subsets), at some 10 ms per table."""

MAX_AT_ONCE: Final = 16
"""The most GPUs whose subsets are looked at all at once: 65,536; each further GPU doubles them."""

MAX_DIVIDED: Final = 8
"""The most GPUs of a set whose divisions are all compared for the lightest cut: 127; each further GPU doubles them."""

MAX_COMPARED: Final = 3
"""Size up to which all sets are compared for their heaviest links: 560 sets of 16 GPUs; with 4 it would be 1,820."""

MAX_ENTRIES: Final = 1 << 17
"""Entries of one memo of a table; a full memo starts afresh. 65,536 sets of 16 GPUs fit, at about 100 bytes each."""


class BoxTables:
    """Figures of all pairs and of all GPUs. One thread at a time."""

    def __init__(self, box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> None:
        self.box = box
        self.figures = figures
        self.fabric = make_fabric(box, figures)
        self.twins = interchangeable(box)
        """Masks of GPUs of which any two can change places without changing anything else; every GPU is in one."""
        states = prod(twins.bit_count() + 1 for twins in self.twins)
        self.comparable = states <= MAX_STATES
        self.many_unlike = states > FEW_STATES and box.gpu_count <= MAX_AT_ONCE
        """Whether thousands of sets can be free: figures are then computed for all at once (subsets, groups)."""
        self._slowest_pcie = _slowest_first(self._pcie_rates)
        self._heaviest_of: dict[int, int] = {}

    def _most_ring_kb_s(self, mask: int) -> int:
        enough = 2 if mask.bit_count() > 2 else 1
        for rate, near in self._hops[:-1]:
            neighbours = ((near[ordinal] & mask).bit_count() for ordinal in ordinals_of(mask))
            if all(count >= enough for count in neighbours) and connected(near, mask):
                return rate
        return self._hops[-1][0]

    def _nvlink_rate(self, mask: int, most: int) -> int:
        """Return the rate over NVLinks alone; 0 if they do not connect the set."""
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
        """Whether the least sum of one GPU's links is certainly the minimum cut of `count` GPUs.

        Cutting off t GPUs, at most half of them, cuts their links minus twice those among them: at least t·least -
        2·heaviest(t), because no t GPUs of the box have heavier links among them.
        """
        return all((t - 1) * least >= 2 * self._heaviest(t) for t in range(2, count // 2 + 1))

    @cached_property
    def _degree_of(self) -> Sequence[int] | None:
        """Least degree of every set in _degree_unit, on boxes that need most sets; None on others."""
        if self._pcie_of is None or self.box.switched:
            return None
        return least_degree_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _nvlinks_within(self) -> Sequence[int] | None:
        """Total of the NVLinks inside every set in _degree_unit, on boxes with _degree_of."""
        if self._degree_of is None:
            return None
        return total_of_subsets([[kb_s // self._degree_unit for kb_s in row] for row in self.fabric.nvlink_kb_s])

    @cached_property
    def _degree_unit(self) -> int:
        return gcd(*(kb_s for row in self.fabric.nvlink_kb_s for kb_s in row)) or 1

    @cached_property
    def _pcie_of(self) -> Sequence[int] | None:
        """PCIe rate of every set, on boxes that need most sets; None on others."""
        return least_pair_of_subsets(self._pcie_rates) if self.many_unlike else None

    @cached_property
    def pairs_kb_s(self) -> tuple[tuple[int, ...], ...]:
        """What each pair reaches over its better network; 0 on the diagonal."""
        ordinals = range(self.box.gpu_count)
        return tuple(tuple(pair_kb_s(self.fabric, a, b) if a != b else 0 for b in ordinals) for a in ordinals)

    @cached_property
    def _hops(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each rate that some pair has, fastest first: the peers of each GPU at this rate or faster."""
        pairs, ordinals = self.pairs_kb_s, range(self.box.gpu_count)
        return tuple(
            (rate, tuple(mask_of(b for b in ordinals if b != a and pairs[a][b] >= rate) for a in ordinals))
            for rate in sorted({pairs[a][b] for a, b in combinations(ordinals, 2)}, reverse=True)
        )

    @cached_property
    def _rings(self) -> tuple[tuple[int, bytes], ...] | None:
        """For each rate of _hops but the last: which sets have a ring of such hops, mask by mask (subsets.with_ring);
        None on boxes of too many GPUs. At the last rate all sets have a ring.
        """
        if self.box.gpu_count > MAX_AT_ONCE:
            return None
        return tuple((rate, with_ring(near)) for rate, near in self._hops[:-1])

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
        """Return the most that the NVLinks among `count` GPUs of the box can weigh."""
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

    @cached_property
    def _shared_twins(self) -> tuple[int, ...]:
        return tuple(twins for twins in self.twins if twins & (twins - 1))

    @cached_property
    def _numa_masks(self) -> tuple[int, ...]:
        numa_nodes = self.box.topology.numa_nodes
        return tuple(
            mask_of(ordinal for ordinal, known in enumerate(numa_nodes) if known == numa_node)
            for numa_node in sorted(set(numa_nodes), key=lambda known: -1 if known is None else known)
        )

    @cached_property
    def _nic_steps(self) -> tuple[int, ...]:
        return tuple(nic_steps(self.box, ordinal) for ordinal in range(self.box.gpu_count))

    @cached_property
    def _pair_levels(self) -> tuple[tuple[int, ...], ...]:
        ordinals = range(self.box.gpu_count)
        return tuple(tuple(int(pair_level(self.fabric, a, b)) if a != b else 0 for b in ordinals) for a in ordinals)


def _slowest_first(rates: Sequence[Sequence[int]]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return (rate, GPUs with such a pair, mask of each GPU's peers) for each rate that some pair has."""
    ordinals = range(len(rates))
    found = []
    for rate in sorted({rates[a][b] for a, b in combinations(ordinals, 2)}):
        rows = tuple(mask_of(b for b in ordinals if b != a and rates[a][b] == rate) for a in ordinals)
        found.append((rate, mask_of(a for a in ordinals if rows[a]), rows))
    return tuple(found)
