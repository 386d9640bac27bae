"""Which rail of the network each GPU of a node is on: in a rail-optimised network the n-th NICs of all nodes share a
switch, so GPUs of different nodes talk best if they are on the same rail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dracaena.api.links import LinkLevel
from dracaena.api.topology import Topology

FARTHEST: Final = LinkLevel.PHB
"""A NIC beyond the GPU's own host bridge is no nearer to it than to half of the node, so it is not the GPU's."""


def rails(nic_levels: Sequence[Sequence[LinkLevel | None]]) -> tuple[int | None, ...]:
    """Return the rail of each GPU: the place of its nearest NIC among the NICs of the node, from 0; None: it has no NIC
    of its own. Equal nodes have equal rails, and a GPU keeps its rail while others of the node are missing.

    `nic_levels`: for each GPU, by ordinal, its level to each NIC of the node, None: unknown. NICs are in one order for
    all GPUs, by PCI address. GPUs to which the same several NICs are nearest take one each, in turn.
    """
    nearest = map(_nearest, nic_levels)
    return tuple(nics[ordinal % len(nics)] if nics else None for ordinal, nics in enumerate(nearest))


def rails_of(topology: Topology) -> tuple[int | None, ...]:
    """Return the rail of each GPU of a machine."""
    return rails([[nic.levels[ordinal] for nic in topology.nics] for ordinal in range(topology.gpu_count)])


def _nearest(levels: Sequence[LinkLevel | None]) -> tuple[int, ...]:
    """Return the places of the nearest NICs, ascending."""
    near = [level for level in levels if level is not None and level <= FARTHEST]
    return tuple(nic for nic, level in enumerate(levels) if near and level == min(near))
