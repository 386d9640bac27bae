"""koordinator deviceshare: a table of partitions, else scopes.

* Table (Hopper machines behind NVSwitches): blocks of 1, 2, 4 and 8. Of those that are free the one that leaves most
  whole blocks: 10000 for each of 8, 100 for each of 4, 1 for each of 2, only sizes from the wanted one up; ties go to
  the first in the table. Honor refuses other sizes, Prefer goes on to the scopes.
* Scopes (Node, NUMA node, PCIe): the deepest scope with enough free GPUs; of equals the one with more enclosing scopes
  already in use; in it the lowest minors. NVLinks play no part.

What makes two GPUs share a PCIe scope is their PCIe root; this copy takes those below one switch, which is the finer
and therefore better reading. NICs are left out: they are placed after the GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from bench.baselines.answer import REFUSED, Answer, Links, granted
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel

HOPPER_PRODUCTS: Final = ("H100", "H800", "H20")
HOPPER_TABLE: Final[Mapping[int, Sequence[Sequence[int]]]] = {
    size: tuple(tuple(range(start, start + size)) for start in range(0, 8, size)) for size in (1, 2, 4, 8)
}
BLOCK_WORTH: Final = {8: 10_000, 4: 100, 2: 1}


@dataclass(frozen=True, slots=True)
class Scope:
    """A set of GPUs at one depth of the hardware, 1 being the node; `enclosing` are the scopes around it and itself."""

    depth: int
    gpus: frozenset[int]
    enclosing: tuple[frozenset[int], ...]


NODE, NUMA_NODE, PCIE = 1, 2, 3


def choose(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Answer with the default policy of the node, Prefer."""
    if has_table(links):
        by_table = by_partition(free, count)
        if by_table.fault is None:
            return by_table
    return by_scope(scopes_of(links), free, count)


def choose_by_table(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Answer with Honor where the node has a table; a node without one goes by scopes."""
    return by_partition(free, count) if has_table(links) else by_scope(scopes_of(links), free, count)


def has_table(links: Links) -> bool:
    product = links.product or ""
    return links.switched and links.gpu_count == 8 and any(name in product for name in HOPPER_PRODUCTS)


def by_partition(free: Sequence[int], count: int) -> Answer:
    if count == 0:
        return granted(())
    left = frozenset(free)
    feasible = [block for block in HOPPER_TABLE.get(count, ()) if left.issuperset(block)]
    if not feasible:
        return REFUSED

    def worth(block: Sequence[int]) -> int:
        after = left.difference(block)
        return sum(
            points * sum(after.issuperset(other) for other in HOPPER_TABLE[size])
            for size, points in BLOCK_WORTH.items()
            if size >= count
        )

    return granted(max(feasible, key=worth))


def by_scope(scopes: Sequence[Scope], free: Sequence[int], count: int, shallowest: int = NODE) -> Answer:
    """Answer by scopes, none above the depth `shallowest` (the required scope)."""
    left = frozenset(free)
    fitting = [scope for scope in scopes if scope.depth >= shallowest and len(scope.gpus & left) >= count > 0]
    if not fitting:
        return REFUSED
    # max() keeps the first of equals, and scopes stand in the order of their lowest GPU.
    best = max(fitting, key=lambda scope: (scope.depth, sum(not around <= left for around in scope.enclosing)))
    return granted(sorted(best.gpus & left)[:count])


@cache
def scopes_of(links: Links) -> tuple[Scope, ...]:
    pairs = [(a, b) for a in range(links.gpu_count) for b in range(a + 1, links.gpu_count)]
    near = (pair for pair in pairs if (level := links.levels[pair[0]][pair[1]]) is not None and level <= LinkLevel.PIX)
    return make_scopes(links.numa_nodes, lowest_in_group(links.gpu_count, near))


def make_scopes(numa_nodes: Sequence[int | None], pcie_scopes: Sequence[object]) -> tuple[Scope, ...]:
    """Build the scopes from the NUMA node and the PCIe scope of each GPU."""
    gpus = range(len(numa_nodes))
    node = frozenset(gpus)
    scopes = [Scope(NODE, node, (node,))]
    for numa in dict.fromkeys(numa_nodes):
        inside = frozenset(gpu for gpu in gpus if numa_nodes[gpu] == numa)
        scopes.append(Scope(NUMA_NODE, inside, (node, inside)))
        for pcie in dict.fromkeys(pcie_scopes[gpu] for gpu in sorted(inside)):
            below = frozenset(gpu for gpu in inside if pcie_scopes[gpu] == pcie)
            scopes.append(Scope(PCIE, below, (node, inside, below)))
    return tuple(scopes)
