"""What each pair of GPUs of one box can carry, and what a collective over a set of them can carry.

Bandwidths are whole kB/s, one way. NVLink and PCIe are two networks: a collective runs over the better one. This module
is the definition; class_table finds the same faster, for every set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import add
from typing import Final

from dracaena.api.config.v1alpha1 import NO_LINK_BANDWIDTH, LinkBandwidth
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.score.box import (
    Box,
    kb_s,
    mask_of,
    ordinals_of,
)

LEVEL_PERCENT: Final = {
    LinkLevel.PSB: 87,
    LinkLevel.PIX: 87,
    LinkLevel.PXB: 87,
    LinkLevel.PHB: 80,
    LinkLevel.NODE: 75,
    LinkLevel.SYS: 60,
}
"""Share of the lanes' rate that a pair reaches: transfers between GPUs over one PCIe 5.0 switch, one socket and two
sockets measure 50-56, 53-56 and 38-51 of 63 GB/s (github.com/local-inference-lab/rtx6kpro). PSB, PIX and PXB measure
alike; scores keep them apart behind the figure (order.Score.bound_level)."""

LEVEL_STEP: Final = 10
"""Difference between two neighbouring values of LinkLevel."""
UNKNOWN_NIC_STEPS: Final = LinkLevel.SYS // LEVEL_STEP
"""For an unknown distance to a NIC, or no NIC: the farthest, so that an unknown NIC is never preferred."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """What each pair of a box is worth, under the figures of a policy. Made by make_fabric."""

    box: Box
    pcie_kb_s: tuple[tuple[int, ...], ...]
    """Of each pair over PCIe, 0 on the diagonal."""
    nvlink_kb_s: tuple[tuple[int, ...], ...]
    """Of each pair over NVLink: all its direct links, or the uplink behind switches; 0 if there are none."""
    levels: tuple[tuple[LinkLevel, ...], ...]
    """PCIe level of each pair, assumed if unknown."""
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
    """5 if NVLinks carry it, else 5 minus the steps from PSB to the level of the pair that bounds it."""


NO_COLLECTIVE: Final = Collective(0, LinkLevel.SYS // LEVEL_STEP)
"""For one GPU or none: no level bounds it."""


def collective(fabric: Fabric, mask: int) -> Collective:
    """Return the rate at which a collective over a set of GPUs can run.

    NVLink: in a mesh the global minimum cut of the set's own link graph, which is the rate at which spanning trees can
    be packed into it (Edmonds); behind switches the narrowest uplink. PCIe: the slowest pair, because a ring crosses
    each branch of the tree once each way. The result is the better of the two. Cost: O(k³) for k GPUs of one NVLink
    mesh, else O(k²).
    """
    return max(pcie_collective(fabric, mask), nvlink_collective(fabric, mask)) if mask & (mask - 1) else NO_COLLECTIVE


def pcie_collective(fabric: Fabric, mask: int) -> Collective:
    """Return what bounds a collective of two or more GPUs over PCIe: the farthest of the slowest pairs."""
    return min(
        Collective(fabric.pcie_kb_s[a][b], (LinkLevel.SYS - fabric.levels[a][b]) // LEVEL_STEP)
        for a, b in combinations(ordinals_of(mask), 2)
    )


def nvlink_collective(fabric: Fabric, mask: int) -> Collective:
    """Return the rate of a collective of two or more GPUs over NVLinks alone; zero when these do not connect them."""
    ordinals = ordinals_of(mask)
    if mask & ~fabric.nvlink_group[ordinals[0]]:
        return Collective(0, 0)
    if fabric.box.switched & mask:
        kb_s = min(fabric.nvlink_kb_s[a][b] for a, b in combinations(ordinals, 2))
    else:
        kb_s = minimum_cut([[fabric.nvlink_kb_s[a][b] for b in ordinals] for a in ordinals])
    return Collective(kb_s, LinkLevel.SYS // LEVEL_STEP) if kb_s else Collective(0, 0)


def pair_kb_s(fabric: Fabric, a: int, b: int) -> int:
    """Return what a pair reaches over its better network."""
    return max(fabric.nvlink_kb_s[a][b], fabric.pcie_kb_s[a][b])


def pair_level(fabric: Fabric, a: int, b: int) -> LinkLevel:
    """Return the level of a pair for people: PSB, the nearest, if NVLinks join it."""
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
    """Return the weight of the lightest cut of a set: the weight inside it minus the weights inside its two sides.

    `within`: the weight inside of every set. Cost: O(2ᵏ) look-ups, for 8 GPUs half of what minimum_cut takes.
    """
    lowest = mask & -mask
    sides, left = [0], mask ^ lowest
    while left:
        bit = left & -left
        sides += [side | bit for side in sides]
        left ^= bit
    # In this order a side and its complement are equally far from the two ends.
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
