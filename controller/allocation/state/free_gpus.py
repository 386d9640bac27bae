"""How many whole GPUs are free, counted as a pod without tolerations would find them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from dracaena.api.attributes import TYPE, VFIO_TYPE
from dracaena.api.availability import why_node_closed
from dracaena.api.device_taints import keeping_off
from dracaena.controller.allocation.nodes.node_filter import Barriers
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodeState

NODES_A_TURN: Final = 500
"""Some 1 µs each, and a decision waits for at most one turn."""


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """A count."""

    total: int
    most_on_a_node: int


def free_gpus_in_turns(inventory: Inventory) -> Iterator[FreeGpus | None]:
    """Count whole GPUs that are ours to give, of which no claim has any part and that carry no taint but ours, on nodes
    that are open. Those for virtual machines are left out: a pod that asks for GPUs never gets one. Yield None after
    each turn, which takes some 0.5 ms however many states the nodes have, and finally the count.

    The inventory may change between turns: the count is then not that of one moment, but no node counts twice.
    """
    if any(keeping_off(inventory.taints_of_all)):
        yield FreeGpus(0, 0)
        return
    is_open, left_out = cache(_is_open), cache(_left_out)
    names, after = inventory.nodes.names, ""
    total = most = 0
    while page := names[(start := bisect_right(names, after)) : start + NODES_A_TURN]:
        for name in page:
            state = inventory.state(name)
            if isinstance(state, NodeState) and is_open(inventory.nodes.get(name).barriers):
                count = (state.free & ~left_out(state.kind)).bit_count()
                total, most = total + count, max(most, count)
        after = page[-1]
        yield None
    yield FreeGpus(total, most)


def _left_out(kind: NodeKind) -> int:
    return _tainted(kind) | _for_virtual_machines(kind)


def _tainted(kind: NodeKind) -> int:
    return mask_of(ordinal for ordinal, taints in kind.foreign_taints if any(keeping_off(taints)))


def _for_virtual_machines(kind: NodeKind) -> int:
    types = (None if one is None else one.device.attributes.get(TYPE.name) for one in kind.devices)
    return mask_of(number for number, found in enumerate(types) if found is not None and found.string == VFIO_TYPE)


def _is_open(barriers: Barriers) -> bool:
    return not why_node_closed(unschedulable=barriers.unschedulable, taints=barriers.taints)
