"""What sets of GPUs of one box can carry: each pair, the rate of a collective and the best ring, for every set.

Bandwidths are whole kB/s, one way; who compares sets of GPUs quantises them (order.Score). NVLink and PCIe are two
networks: a collective runs over the better of both. What stays free is worth what its best groups are worth; that needs
more memory and stands in class_table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import gcd, prod
from operator import add
from typing import Final

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, LinkBandwidth
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import (
    KB_S_PER_GB_S,
    LEVEL_PERCENT,
    Box,
    connected,
    interchangeable,
    mask_of,
    ordinals_of,
)
from dracaena.controller.allocation.score.subsets import (
    least_degree_of_subsets,
    least_pair_of_subsets,
    total_of_subsets,
    with_ring,
)

LEVEL_STEP: Final = 10
"""Between two neighbouring values of LinkLevel."""
UNKNOWN_NIC_STEPS: Final = LinkLevel.SYS // LEVEL_STEP
"""An unknown distance to a NIC, or no NIC: as far as it can be, so that an unknown one is never preferred."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """What each pair of a box is worth, under the figures of a policy. Made by make_fabric."""

    box: Box
    pcie_kb_s: tuple[tuple[int, ...], ...]
    """Of each pair over PCIe, 0 on the diagonal."""
    nvlink_kb_s: tuple[tuple[int, ...], ...]
    """Of each pair over NVLink: all its direct links, or behind switches the uplink; 0 where there are none."""
    levels: tuple[tuple[LinkLevel, ...], ...]
    """PCIe level of each pair, assumed where unknown."""
    nvlink_group: tuple[int, ...]
    """Mask of the GPUs that NVLinks connect to each GPU, itself included."""


def make_fabric(box: Box, figures: LinkBandwidth = NO_LINK_BANDWIDTH) -> Fabric:
    """Look every pair up. `figures` override the built-in rates; the slower GPU of a pair decides. Cost: O(GPUs²)."""
    count = box.gpu_count
    pcie = [[0] * count for _ in range(count)]
    nvlink = [[0] * count for _ in range(count)]
    levels = [[LinkLevel.PSB] * count for _ in range(count)]
    joins = []
    for a, b in combinations(range(count), 2):
        levels[a][b] = levels[b][a] = box.topology.level_or_assumed(a, b)
        pcie[a][b] = pcie[b][a] = _pcie_kb_s(box, a, b, figures)
        if links := box.topology.link(a, b).nvlinks:
            nvlink[a][b] = nvlink[b][a] = links * _nvlink_kb_s(box, a, b, figures)
            joins.append((a, b))
    lowest = lowest_in_group(count, joins)
    groups = {name: mask_of(ordinal for ordinal in range(count) if lowest[ordinal] == name) for name in set(lowest)}
    return Fabric(
        box=box,
        pcie_kb_s=tuple(map(tuple, pcie)),
        nvlink_kb_s=tuple(map(tuple, nvlink)),
        levels=tuple(map(tuple, levels)),
        nvlink_group=tuple(groups[name] for name in lowest),
    )


@dataclass(frozen=True, slots=True, order=True)
class Collective:
    """The rate of a collective over a set of GPUs, and what bounds it. Greater is better."""

    kb_s: int
    steps: int
    """5 where NVLinks carry it, else 5 minus the steps from PSB to the level of the pair that bounds it."""


NO_COLLECTIVE: Final = Collective(0, LinkLevel.SYS // LEVEL_STEP)
"""Of one GPU or none: nothing is bound by any level."""


def collective(fabric: Fabric, mask: int) -> Collective:
    """Return the rate at which a collective over a set of GPUs can run.

    NVLink: in a mesh the global minimum cut of the set's own link graph, which is the rate at which spanning trees can
    be packed into it (Edmonds); behind switches the narrowest uplink. PCIe: the slowest pair, because a ring crosses
    each branch of the tree once each way. The better of both. Cost: O(k³) for k GPUs of one NVLink mesh, else O(k²).
    """
    return max(pcie_collective(fabric, mask), nvlink_collective(fabric, mask)) if mask & (mask - 1) else NO_COLLECTIVE


def pcie_collective(fabric: Fabric, mask: int) -> Collective:
    """Return what bounds a collective of two or more GPUs over PCIe: of the slowest pairs the farthest."""
    return min(
        Collective(fabric.pcie_kb_s[a][b], (LinkLevel.SYS - fabric.levels[a][b]) // LEVEL_STEP)
        for a, b in combinations(ordinals_of(mask), 2)
    )


def nvlink_collective(fabric: Fabric, mask: int) -> Collective:
    """Return the rate of a collective of two or more GPUs over NVLinks alone; nothing when they are not connected."""
    ordinals = ordinals_of(mask)
    if mask & ~fabric.nvlink_group[ordinals[0]]:
        return Collective(0, 0)
    if fabric.box.switched & mask:
        kb_s = min(fabric.nvlink_kb_s[a][b] for a, b in combinations(ordinals, 2))
    else:
        kb_s = minimum_cut([[fabric.nvlink_kb_s[a][b] for b in ordinals] for a in ordinals])
    return Collective(kb_s, LinkLevel.SYS // LEVEL_STEP) if kb_s else Collective(0, 0)


def pair_kb_s(fabric: Fabric, a: int, b: int) -> int:
    """Return what a pair reaches by its better way."""
    return max(fabric.nvlink_kb_s[a][b], fabric.pcie_kb_s[a][b])


def pair_level(fabric: Fabric, a: int, b: int) -> LinkLevel:
    """Return the level of a pair for its reader: PSB, the nearest, where NVLinks join it."""
    return LinkLevel.PSB if fabric.box.topology.link(a, b).nvlinks else fabric.levels[a][b]


def nic_steps(box: Box, ordinal: int) -> int:
    """Return the distance of a GPU to its nearest NIC: PSB 0, PIX 1, PXB 2, PHB 3, NODE 4, SYS or unknown 5."""
    level = box.nic_levels[ordinal]
    return UNKNOWN_NIC_STEPS if level is None else level // LEVEL_STEP


def minimum_cut(weights: Sequence[Sequence[int]]) -> int:
    """Return the weight of the lightest cut of a graph given as a symmetric matrix (Stoer and Wagner, 1997).

    0 for a graph that is not connected. Needs at least two vertices. Cost: O(n³).
    """
    rows = [list(row) for row in weights]
    vertices = list(range(len(rows)))
    lightest: int | None = None
    while len(vertices) > 1:
        last, before, cut = _last_phase(rows, vertices)
        lightest = cut if lightest is None else min(lightest, cut)
        if lightest == 0:
            return 0
        vertices.remove(last)
        for vertex in vertices:
            rows[before][vertex] += rows[last][vertex]
            rows[vertex][before] = rows[before][vertex]
    assert lightest is not None
    return lightest


def lightest_division(within: Sequence[int], mask: int) -> int:
    """Return the weight of the lightest cut of a set: what is inside of it less what is inside of its two sides.

    `within`: the weight inside of every set. Cost: O(2ᵏ) look-ups, for 8 GPUs half of what minimum_cut takes.
    """
    lowest = mask & -mask
    sides, left = [0], mask ^ lowest
    while left:
        bit = left & -left
        sides += [side | bit for side in sides]
        left ^= bit
    # In this order the side that a side leaves to the lowest GPU stands as far from the other end.
    here = [within[side] for side in sides]
    there = [within[side | lowest] for side in reversed(sides)]
    heaviest: int = max(map(add, here[1:], there[1:]))
    return within[mask] - heaviest


def _last_phase(rows: list[list[int]], vertices: list[int]) -> tuple[int, int, int]:
    """Add vertices in the order of their weight to those already in; return the last, the one before, and the last's
    weight, which is the lightest cut between these two.
    """
    before = last = vertices[0]
    weight = 0
    pending = {vertex: rows[last][vertex] for vertex in vertices[1:]}
    while pending:
        before = last
        last = max(pending, key=pending.__getitem__)
        weight = pending.pop(last)
        row = rows[last]
        for vertex in pending:
            pending[vertex] += row[vertex]
    return last, before, weight


def _nvlink_kb_s(box: Box, a: int, b: int, figures: LinkBandwidth) -> int:
    if figures.nvlink is not None:
        return kb_s(figures.nvlink)
    return min(box.gpus[a].nvlink_kb_s, box.gpus[b].nvlink_kb_s)


def _pcie_kb_s(box: Box, a: int, b: int, figures: LinkBandwidth) -> int:
    level = box.topology.level_or_assumed(a, b)
    figure = level_figure(figures, level)
    if figure is not None:
        return kb_s(figure)
    return min(box.gpus[a].pcie_kb_s, box.gpus[b].pcie_kb_s) * LEVEL_PERCENT[level] // 100


def level_figure(figures: LinkBandwidth, level: LinkLevel) -> float | None:
    """Return what a policy says about a level, in GB/s."""
    match level:
        case LinkLevel.PSB:
            return figures.psb
        case LinkLevel.PIX:
            return figures.pix
        case LinkLevel.PXB:
            return figures.pxb
        case LinkLevel.PHB:
            return figures.phb
        case LinkLevel.NODE:
            return figures.node
        case LinkLevel.SYS:
            return figures.sys


def kb_s(gb_s: float) -> int:
    """Return a figure of a policy in whole kB/s."""
    return round(gb_s * KB_S_PER_GB_S)


STEP_BITS: Final = 3
"""Steps of a rate are 0 to 5."""
NVLINK_STEPS: Final = LinkLevel.SYS // LEVEL_STEP

MAX_STATES: Final = 1 << 16
"""Free sets of a box that differ in more than interchangeable GPUs: as many as 16 GPUs can have that are all unlike.
Beyond it damage is not counted, and sets are grown instead of compared (choices.grown)."""

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
    """A memo of collective() under the figures of one policy: nothing here but speed. One thread at a time.

    kB/s and steps of one set stand in one number, so that greater is better (Collective.steps).
    """

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

    def ring_kb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring through a set, each pair by its better way; 0 for one GPU.

        Of two GPUs it is the pair. Exact on boxes of up to MAX_AT_ONCE GPUs. On larger ones an upper bound: the fastest
        hops with which each GPU has two neighbours and all are connected, which on trees and behind switches is exact.
        Cost: a step for each rate that a pair has; the first time for a box all its rings.
        """
        if not mask & (mask - 1):
            return 0
        if self._rings is None:
            return self._most_ring_kb_s(mask)
        for rate, has_ring in self._rings:
            if has_ring[mask >> 3] >> (mask & 7) & 1:
                return rate
        return self._hops[-1][0]

    def ring_gb_s(self, mask: int) -> int:
        """Return the slowest hop of the best ring in whole GB/s; 0 for one GPU."""
        return self.ring_kb_s(mask) // KB_S_PER_GB_S

    def _most_ring_kb_s(self, mask: int) -> int:
        enough = 2 if mask.bit_count() > 2 else 1
        for rate, near in self._hops[:-1]:
            neighbours = ((near[ordinal] & mask).bit_count() for ordinal in ordinals_of(mask))
            if all(count >= enough for count in neighbours) and connected(near, mask):
                return rate
        return self._hops[-1][0]

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
    def pairs_kb_s(self) -> tuple[tuple[int, ...], ...]:
        """What each pair reaches by its better way, 0 on the diagonal."""
        ordinals = range(self.box.gpu_count)
        return tuple(tuple(pair_kb_s(self.fabric, a, b) if a != b else 0 for b in ordinals) for a in ordinals)

    @cached_property
    def _hops(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each rate that a pair has, fastest first: the peers of each GPU at this rate or faster."""
        pairs, ordinals = self.pairs_kb_s, range(self.box.gpu_count)
        return tuple(
            (rate, tuple(mask_of(b for b in ordinals if b != a and pairs[a][b] >= rate) for a in ordinals))
            for rate in sorted({pairs[a][b] for a, b in combinations(ordinals, 2)}, reverse=True)
        )

    @cached_property
    def _rings(self) -> tuple[tuple[int, bytes], ...] | None:
        """For each rate of _hops but the last: which sets have a ring of such hops, mask by mask (subsets.with_ring);
        None on boxes of too many GPUs. With the last rate all sets have.
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
