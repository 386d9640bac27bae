"""The links of one machine: the pair matrix is the truth, the tree (dracaena.api.tree) is a view of it."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.errors import PermanentError
from dracaena.api.links import MAX_NVLINKS, Link, LinkLevel

SELF = "X"
"""Token of a GPU against itself in a printed matrix."""


class TopologyError(PermanentError):
    """The facts about a machine contradict each other in a way that no choice may be built on."""


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card as seen from the GPUs. `levels[ordinal]` is its PCIe level to each GPU, None: unknown."""

    name: str
    levels: tuple[LinkLevel | None, ...]
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """Links among the physical GPUs of one machine, addressed by ordinal (rank by PCI address, from 0).

    `pairs` is the upper triangle of the matrix in the order (0,1), (0,2), … (0,n-1), (1,2), …: symmetric by
    construction, so no value can contradict itself in that way. `numa_nodes[ordinal]` is None when unknown. Equal facts
    make equal values, and values hash, so they serve as keys of tables.
    """

    gpu_count: int
    pairs: tuple[Link, ...]
    numa_nodes: tuple[int | None, ...]
    nics: tuple[Nic, ...] = ()

    def link(self, a: int, b: int) -> Link:
        """Return the link of two different ordinals, in either order. Cost: O(1)."""
        if a > b:
            a, b = b, a
        if not 0 <= a < b < self.gpu_count:
            raise IndexError(f"no pair ({a}, {b}) among {self.gpu_count} GPUs")
        return self.pairs[a * (2 * self.gpu_count - a - 1) // 2 + b - a - 1]

    def level_or_assumed(self, a: int, b: int) -> LinkLevel:
        """Return the PCIe level of a pair; an unknown one is assumed: NODE when both are known to share a NUMA node,
        else SYS. For the tree and for figures; what must hold is never met by an assumption.
        """
        level = self.link(a, b).level
        if level is not None:
            return level
        numa_node = self.numa_nodes[a]
        same = numa_node is not None and numa_node == self.numa_nodes[b]
        return LinkLevel.NODE if same else LinkLevel.SYS

    def matrix(self) -> tuple[tuple[str, ...], ...]:
        """Return the GPU×GPU tokens as `nvidia-smi topo -m` prints them, `X` on the diagonal."""
        ordinals = range(self.gpu_count)
        return tuple(tuple(SELF if a == b else self.link(a, b).token for b in ordinals) for a in ordinals)

    def nvlink_peers(self, ordinal: int) -> tuple[int, ...]:
        """Return the ordinals that have at least one NVLink to this one, ascending."""
        return tuple(other for other in range(self.gpu_count) if other != ordinal and self.link(ordinal, other).nvlinks)

    def check(self) -> None:
        """State the invariants; raise TopologyError naming the first that does not hold."""
        expected_pairs = self.gpu_count * (self.gpu_count - 1) // 2
        if len(self.pairs) != expected_pairs:
            raise TopologyError(f"{self.gpu_count} GPUs have {expected_pairs} pairs, got {len(self.pairs)}")
        if len(self.numa_nodes) != self.gpu_count:
            raise TopologyError(f"{self.gpu_count} GPUs, but NUMA nodes of {len(self.numa_nodes)}")
        for numa_node in self.numa_nodes:
            if numa_node is not None and numa_node < 0:
                raise TopologyError(f"NUMA node {numa_node} is negative: unknown is written as none")
        for link in self.pairs:
            if link.nvlinks is not None and not 0 <= link.nvlinks <= MAX_NVLINKS:
                raise TopologyError(f"a pair has {link.nvlinks} NVLinks, expected 0 to {MAX_NVLINKS}")
        for nic in self.nics:
            if len(nic.levels) != self.gpu_count:
                raise TopologyError(f"{nic.name} has levels to {len(nic.levels)} of {self.gpu_count} GPUs")
        names = [nic.name for nic in self.nics]
        if len(set(names)) != len(names):
            raise TopologyError(f"two NICs share a name: {', '.join(sorted(names))}")
