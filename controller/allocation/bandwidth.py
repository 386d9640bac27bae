"""What links are worth, in GB/s one way: estimates that order sets of GPUs, no measurements.

NVLink: nominal rates per link of NVIDIA's data sheets. PCIe: 16 lanes after encoding, times the share that transfers
between GPUs reach at each level in published measurements. Only the order matters within a node; between nodes the
figures keep an old and a new machine comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from dracaena.api.links import LinkLevel
from dracaena.controller.allocation.box import Box, GpuTraits, ordinals_of

NVLINK_GB_S: Final = {1: 20, 2: 25, 3: 25, 4: 25, 5: 50, 6: 50}
"""GB/s of one link, one way, by NVLink generation."""

USUAL_NVLINK_GB_S: Final = 25
"""For a generation that nobody told or that we do not know: the figure of most generations."""

PCIE_X16_MB_S: Final = {1: 4_000, 2: 8_000, 3: 15_750, 4: 31_500, 5: 63_000, 6: 121_000}
"""MB/s of 16 lanes, one way, by PCIe generation."""

USUAL_PCIE_X16_MB_S: Final = 15_750
"""For an unknown generation: generation 3, so that an unknown machine is never preferred for a guess."""

LEVEL_PERCENT: Final = {
    LinkLevel.PSB: 87,
    LinkLevel.PIX: 87,
    LinkLevel.PXB: 87,
    LinkLevel.PHB: 80,
    LinkLevel.NODE: 75,
    LinkLevel.SYS: 60,
}
"""Share of the lanes' rate that a pair reaches at a level. PIX and PXB measure alike; the level itself breaks that tie
later in the order (scoring)."""


def nvlink_gb_s(a: GpuTraits, b: GpuTraits) -> int:
    """Return the rate of one link between two GPUs: the slower end decides."""
    return min(NVLINK_GB_S.get(gpu.nvlink_generation or 0, USUAL_NVLINK_GB_S) for gpu in (a, b))


def pcie_gb_s(box: Box, a: int, b: int) -> int:
    """Return what a pair reaches over PCIe: the slower end's lanes, cut down by the level."""
    lanes_mb_s = min(_lanes_mb_s(box.traits[a]), _lanes_mb_s(box.traits[b]))
    return lanes_mb_s * LEVEL_PERCENT[box.topology.level_or_assumed(a, b)] // 100 // 1000


def pair_gb_s(box: Box, a: int, b: int) -> int:
    """Return what a pair reaches by its better way, NVLink or PCIe."""
    nvlinks = box.topology.link(a, b).nvlinks or 0
    return max(nvlinks * nvlink_gb_s(box.traits[a], box.traits[b]), pcie_gb_s(box, a, b))


def collective_gb_s(box: Box, mask: int) -> int:
    """Return the rate at which a collective over a set of GPUs can run; 0 for fewer than two GPUs.

    NVLink: the global minimum cut of the set's own link graph, which is the rate at which spanning trees can be packed
    into it (Edmonds); behind NVSwitches the narrowest uplink. PCIe: the worst pair, because a ring crosses each
    branch of the tree once each way. The better of both.
    Cost: O(k³) for k GPUs that form one NVLink mesh, else O(k²).
    """
    ordinals = ordinals_of(mask)
    if len(ordinals) < 2:
        return 0
    over_pcie = min(pcie_gb_s(box, a, b) for place, a in enumerate(ordinals) for b in ordinals[place + 1 :])
    weights = _nvlink_weights(box, ordinals)
    over_nvlink = _narrowest_uplink(weights) if box.switched else minimum_cut(weights)
    return max(over_pcie, over_nvlink)


def switched_gb_s(box: Box) -> int | None:
    """Return the rate of a collective over every set of two or more GPUs, where NVSwitches make it one figure.

    That is where all uplinks are equal and no pair is better over PCIe, whatever its level. None for other boxes.
    """
    if not box.switched:
        return None
    weights = _nvlink_weights(box, range(box.topology.gpu_count))
    pairs = tuple(combinations(range(box.topology.gpu_count), 2))
    uplinks = {weights[a][b] for a, b in pairs}
    most_over_pcie = max(pcie_gb_s(box, a, b) for a, b in pairs)
    return min(uplinks) if len(uplinks) == 1 and min(uplinks) >= most_over_pcie else None


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


def _last_phase(rows: list[list[int]], vertices: list[int]) -> tuple[int, int, int]:
    """Add vertices in the order of their weight to those already in; return the last, the one before, and the last's
    weight, which is the lightest cut between these two.
    """
    inside = vertices[0]
    pending = {vertex: rows[inside][vertex] for vertex in vertices[1:]}
    before = last = inside
    weight = 0
    while pending:
        before = last
        last = max(pending, key=lambda vertex: (pending[vertex], -vertex))
        weight = pending.pop(last)
        for vertex in pending:
            pending[vertex] += rows[last][vertex]
    return last, before, weight


def _nvlink_weights(box: Box, ordinals: Sequence[int]) -> list[list[int]]:
    rows = [[0] * len(ordinals) for _ in ordinals]
    for row, a in enumerate(ordinals):
        for column, b in enumerate(ordinals):
            if a < b and (nvlinks := box.topology.link(a, b).nvlinks):
                rows[row][column] = rows[column][row] = nvlinks * nvlink_gb_s(box.traits[a], box.traits[b])
    return rows


def _narrowest_uplink(weights: Sequence[Sequence[int]]) -> int:
    count = len(weights)
    return min(weights[a][b] for a in range(count) for b in range(a + 1, count))


def _lanes_mb_s(gpu: GpuTraits) -> int:
    rate = PCIE_X16_MB_S.get(gpu.pcie_generation or 0, USUAL_PCIE_X16_MB_S)
    return rate * (gpu.pcie_width or 16) // 16
