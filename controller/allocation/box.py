"""The hardware of one node as far as a choice depends on it. Nodes of one model share one Box value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dracaena.api.links import Link
from dracaena.api.machine import Gpu
from dracaena.api.topology import Topology

MOST_NVLINKS_OF_A_GPU = 36
"""Largest announced count (NVLink 6). Where a GPU's own count is unknown, more than this must be a switch."""


@dataclass(frozen=True, slots=True)
class GpuTraits:
    """What the worth of a GPU's links depends on. None: not told."""

    nvlink_count: int | None = None
    nvlink_generation: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


NO_TRAITS = GpuTraits()


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """Links and traits by ordinal. Two boxes are equal when every choice among their GPUs is worth the same.

    Sets of GPUs are bit masks over ordinals. The hash is computed once, because boxes are keys of tables that are
    looked up for every node.
    """

    topology: Topology
    traits: tuple[GpuTraits, ...]
    switched: bool = field(init=False)
    """Whether NVSwitches join the GPUs: a pair then shows a GPU's whole link count, one uplink for all peers."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "switched", _switched(self.topology, self.traits))
        object.__setattr__(self, "_hash", hash((self.topology, self.traits)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Box):
            return NotImplemented
        return self._hash == other._hash and (self.topology, self.traits) == (other.topology, other.traits)


def make_box(topology: Topology, gpus: Mapping[int, Gpu]) -> Box:
    """Build the box of a node from its links and its GPUs by ordinal; an ordinal may be missing."""
    traits = tuple(_traits(gpus[ordinal]) if ordinal in gpus else NO_TRAITS for ordinal in range(topology.gpu_count))
    return Box(topology, traits)


def _switched(topology: Topology, traits: tuple[GpuTraits, ...]) -> bool:
    """Whether the counts of some GPU's pairs add up to more links than it has: they cannot be separate links."""
    for ordinal, gpu in enumerate(traits):
        shown = sum(topology.link(ordinal, peer).nvlinks or 0 for peer in topology.nvlink_peers(ordinal))
        if shown > (MOST_NVLINKS_OF_A_GPU if gpu.nvlink_count is None else gpu.nvlink_count):
            return True
    return False


def _traits(gpu: Gpu) -> GpuTraits:
    return GpuTraits(gpu.nvlink_count, gpu.nvlink_generation, gpu.pcie_generation, gpu.pcie_width)


def mask_of(ordinals: Iterable[int]) -> int:
    """Return the bit mask of a set of ordinals."""
    mask = 0
    for ordinal in ordinals:
        mask |= 1 << ordinal
    return mask


def ordinals_of(mask: int) -> tuple[int, ...]:
    """Return the ordinals of a bit mask, ascending."""
    return tuple(ordinal for ordinal in range(mask.bit_length()) if mask >> ordinal & 1)


def links_among(box: Box, mask: int) -> tuple[Link, ...]:
    """Return the links of all pairs of a set, in the order of the pairs."""
    ordinals = ordinals_of(mask)
    return tuple(box.topology.link(a, b) for place, a in enumerate(ordinals) for b in ordinals[place + 1 :])
