"""How many whole GPUs nobody has, counted as a pod without tolerations would find them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from dracaena.api.attributes import TYPE, VFIO_TYPE
from dracaena.api.objects import Taint
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.nodes.node_filter import Barriers
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind

NODE_CONDITIONS: Final = "node.kubernetes.io/"
"""Before the keys of taints by which Kubernetes says that a node is not ready, or has no room. Others are an admin's:
pods for GPUs usually tolerate those."""


NODES_A_TURN: Final = 500
"""Some 0.6 µs each, and a decision waits for a turn at most."""


@dataclass(frozen=True, slots=True)
class FreeGpus:
    """A count."""

    total: int
    most_on_a_node: int


def free_gpus_in_turns(inventory: Inventory) -> Iterator[FreeGpus | None]:
    """Count whole GPUs that are ours to give, that nobody has any part of, that carry no taint but ours, on nodes that
    are open. Those for virtual machines are left out: a pod that asks for GPUs never gets one. Yield None after each
    turn, which takes some 0.3 ms, and the count at last.

    The inventory may change between turns: then the count is that of no one moment.
    """
    groups: list[tuple[int, Sequence[str]]] = []
    if first_untolerated(inventory.taints_of_all, ()) is None:
        for kind, by_state in inventory.buckets_by_free_gpus.items():
            counted = ~(_tainted(kind) | _for_virtual_machines(kind))
            for (free, _), names in by_state.items():
                groups.append(((free & counted).bit_count(), tuple(names)))
    yield None
    is_open = cache(_is_open)
    total = most = 0
    for count, names in groups:
        for start in range(0, len(names) if count else 0, NODES_A_TURN):
            there = [name for name in names[start : start + NODES_A_TURN] if name in inventory.nodes]
            nodes = sum(is_open(inventory.nodes.get(name).barriers) for name in there)
            total += count * nodes
            most = max(most, count if nodes else 0)
            yield None
    yield FreeGpus(total, most)


def _tainted(kind: NodeKind) -> int:
    return mask_of(ordinal for ordinal, taints in kind.foreign_taints if first_untolerated(taints, ()) is not None)


def _for_virtual_machines(kind: NodeKind) -> int:
    types = (None if one is None else one.device.attributes.get(TYPE.name) for one in kind.devices)
    return mask_of(number for number, found in enumerate(types) if found is not None and found.string == VFIO_TYPE)


def _is_open(barriers: Barriers) -> bool:
    return not barriers.unschedulable and first_untolerated(_conditions(barriers.taints), ()) is None


def _conditions(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if taint.key.startswith(NODE_CONDITIONS))
