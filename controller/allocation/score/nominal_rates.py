"""From the GPUs of a node to its Box: what the links of each product carry according to its data sheet.

Rates are nominal figures, one way, that order sets of GPUs; no measurements. All are whole kB/s, so that sums and
comparisons are exact. Sources:
[P100] NVIDIA Tesla P100 whitepaper: 4 links, 160 GB/s both ways. [V100] Tesla V100 whitepaper: 6 links, 300 GB/s.
[A100] A100 whitepaper: 12 links, 600 GB/s; A800 has 8 of the same links (`NV8`). [GA102] Ampere GA102 whitepaper:
4 links of 14.0625 GB/s. [H100] H100 whitepaper: 18 links, 900 GB/s. [B200] DGX B200 data sheet: 18 links, 1,800 GB/s.
[Rubin] announced: 36 links, 3,600 GB/s. Pages that give 50 GB/s a link for NVLink 4 count both ways.
[PCIe] per lane after encoding: 8b/10b to generation 2, 128b/130b from 3, FLIT with FEC for 6.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from dracaena.api.links import LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.score.box import Box, GpuRates, canonical, mask_of, without_nvlinks


@dataclass(frozen=True, slots=True)
class NvlinkFigures:
    """The rate and number of one product's NVLinks."""

    kb_s: int
    """Of one link, one way."""
    links: int
    """The most that a GPU of this kind has."""


NVLINK_BY_GENERATION: Final = {
    1: NvlinkFigures(20_000_000, 4),  # [P100]
    2: NvlinkFigures(25_000_000, 6),  # [V100]; Turing cards have 1 or 2 of them
    3: NvlinkFigures(25_000_000, 12),  # [A100]
    4: NvlinkFigures(25_000_000, 18),  # [H100]
    5: NvlinkFigures(50_000_000, 18),  # [B200]
    6: NvlinkFigures(50_000_000, 36),  # [Rubin]
}

GA102_NVLINK: Final = NvlinkFigures(14_062_500, 4)
"""[GA102] These cards report generation 3 as the A100 does; product and compute capability tell them apart."""
GA102_CAPABILITY: Final = "8.6"
GA102_PRODUCTS: Final = frozenset({"A40", "3090", "A4500", "A5000", "A5500", "A6000"})
"""Words that identify GA102 cards with NVLinks in product names such as `NVIDIA GeForce RTX 3090 Ti`."""

GENERATION_BY_ARCHITECTURE: Final = {"Pascal": 1, "Volta": 2, "Turing": 2, "Ampere": 3, "Hopper": 4, "Blackwell": 5}
"""For a GPU whose driver does not report the generation."""

USUAL_NVLINK: Final = NvlinkFigures(25_000_000, 18)
"""For an unknown GPU: the rate of most generations, and the largest count of any GPU in a mesh without switches."""

PCIE_LANE_KB_S: Final = {1: 250_000, 2: 500_000, 3: 984_615, 4: 1_969_230, 5: 3_938_461, 6: 7_562_500}
"""[PCIe] One lane, one way, by generation."""
USUAL_PCIE_GENERATION: Final = 3
"""For a GPU that does not report it: a slow generation, so that an unknown machine is never preferred by a guess."""
USUAL_PCIE_LANES: Final = 16
PCIE_LANES: Final = frozenset({1, 2, 4, 8, 12, 16, 32})


def gpu_rates(gpu: Gpu) -> GpuRates:
    """Look up the figures of a GPU; what is missing or impossible is replaced by the usual figure."""
    figures = nvlink_figures(gpu)
    lanes = gpu.pcie_width if gpu.pcie_width in PCIE_LANES else USUAL_PCIE_LANES
    lane_kb_s = PCIE_LANE_KB_S.get(gpu.pcie_generation or 0, PCIE_LANE_KB_S[USUAL_PCIE_GENERATION])
    count = gpu.nvlink_count
    return GpuRates(
        nvlink_kb_s=figures.kb_s,
        pcie_kb_s=lane_kb_s * (lanes or USUAL_PCIE_LANES),
        nvlinks=count if count is not None and count > 0 else figures.links,
    )


def nvlink_figures(gpu: Gpu) -> NvlinkFigures:
    """Return a GPU's NVLink figures by its product, its generation or its architecture, in this order."""
    words = (gpu.product_name or "").replace("-", " ").split()
    if gpu.cuda_compute_capability == GA102_CAPABILITY or not GA102_PRODUCTS.isdisjoint(words):
        return GA102_NVLINK
    generation = gpu.nvlink_generation or GENERATION_BY_ARCHITECTURE.get(gpu.architecture or "", 0)
    return NVLINK_BY_GENERATION.get(generation, USUAL_NVLINK)


UNKNOWN_GPU_RATES: Final = gpu_rates(Gpu(uuid="", index=0))
"""For a GPU whose device is not published."""


def make_box(topology: Topology, gpus: Mapping[int, Gpu], partitions: Collection[frozenset[int]] = ()) -> Box:
    """Build the box of a node from its links and its GPUs by ordinal; an ordinal may be missing.

    `partitions`: the sets that Fabric Manager can link, if nothing else links GPUs (Box.partitions). If the number of
    NVLinks of two GPUs of one partition is unknown, all of a GPU's links count: they end at switches.
    """
    ordinals = range(topology.gpu_count)
    rates = tuple(gpu_rates(gpus[ordinal]) if ordinal in gpus else UNKNOWN_GPU_RATES for ordinal in ordinals)
    links = canonical(topology)
    wired = _wired(links, rates, partitions) if partitions else None
    return Box(
        topology=links if wired is None else without_nvlinks(wired),
        gpus=rates,
        nic_levels=tuple(_nearest_nic(topology, ordinal) for ordinal in ordinals),
        partitions=tuple(sorted(set(map(mask_of, partitions)))),
        wired=wired,
    )


def _wired(links: Topology, rates: Sequence[GpuRates], partitions: Collection[frozenset[int]]) -> Topology:
    """Return the links inside partitions."""
    joined = {pair for gpus in partitions for pair in combinations(sorted(gpus), 2)}
    pairs = []
    for (a, b), link in zip(combinations(range(links.gpu_count), 2), links.pairs, strict=True):
        count = link.nvlinks or min(rates[a].nvlinks, rates[b].nvlinks) if (a, b) in joined else 0
        pairs.append(replace(link, nvlinks=count))
    return replace(links, pairs=tuple(pairs))


def _nearest_nic(topology: Topology, ordinal: int) -> LinkLevel | None:
    levels = [_nic_level(nic, ordinal, topology.numa_nodes[ordinal]) for nic in topology.nics]
    return min((level for level in levels if level is not None), default=None)


def _nic_level(nic: Nic, ordinal: int, numa_node: int | None) -> LinkLevel | None:
    """Return the level of a NIC; SYS is wrong if both are on one NUMA node (GB200: the CPU link hides that)."""
    level = nic.levels[ordinal]
    same = numa_node is not None and numa_node == nic.numa_node
    return LinkLevel.NODE if same and level in (None, LinkLevel.SYS) else level
