"""Which node to keep for a pod that waits only because devices are taken.

Otherwise a pod of eight GPUs could wait forever on nodes of eight: whenever one GPU is free, a pod of one GPU takes it.
docs/design/queue-and-fairness.md states the rule and the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.nodes.node_filter import NodeFilter
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.state.emptied import emptied
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, claim_holder
from dracaena.controller.allocation.walk.node_rules import NodeRules
from dracaena.controller.allocation.walk.pod_demand import Turn

MAX_NODES: Final = 200
"""Nodes that are asked for one pod if equal nodes may answer differently: below 0.1 s. Others are asked by kind."""


@dataclass(frozen=True, slots=True)
class Earmark:
    """A node that is being kept for a pod: pods that come after it get no devices there."""

    pod_key: str
    turn: Turn
    node: str

    def bars(self, turn: Turn) -> bool:
        """Return whether a pod with this turn must not use the node."""
        return turn > self.turn

    @property
    def reason(self) -> str:
        """Why pods must not use the node, in words that follow a count of nodes. Users of any namespace may read them,
        so they reveal only the pod's priority."""
        return f"kept for a pod of priority {-self.turn[0]} that comes before this one and has waited long"


def node_to_keep(
    inventory: Inventory,
    pod: Pod,
    claims: Sequence[ResourceClaim],
    nodes: NodeFilter,
    rules: Sequence[NodeRules],
    *,
    pods_of: Callable[[str], Iterable[str]] = lambda holder: (),
    only: str | None = None,
) -> str | None:
    """Return the node on which the pod would fit if the current holders released our devices there, or None. `nodes`
    and `rules` are what a node is asked for the pod (Allocator.questions).

    Of several nodes, the one with the fewest of our devices in use, then the first by name; with `only`, that node or
    none. `pods_of` returns the pods that go with a holder, which also frees their CPU; what the pod's own claims hold
    stays held. The inventory is changed meanwhile and restored at the end. Cost: O(nodes × log nodes) and one question
    for each kind of node; if equal nodes may answer differently, one for each of at most MAX_NODES nodes. With
    thousands of nodes some 10 ms.
    """
    own = {claim_holder(claim) for claim in claims}
    known: dict[tuple[NodeKind, int], bool] = {}
    looked_at = 0
    for name in _emptiest_first(inventory) if only is None else (only,):
        pool = inventory.pool(name)
        if pool is None or not inventory.offers(name) or nodes.unfit(inventory.nodes.get(name)) is not None:
            continue
        if all(one.is_answered(name) for one in rules):
            key = pool.kind, pool.offered
            if key not in known:
                known[key] = any(one.answers.of_kind(pool.kind).of(pool.offered).best is not None for one in rules)
            if not known[key]:
                continue
            if nodes.shortage(inventory.nodes.get(name)) is None:
                return name
        if looked_at == MAX_NODES:
            return None
        looked_at += 1
        leaving = [holder for holder in inventory.holdings.of_pool(pool.pool) if holder not in own]
        pods = {key for holder in leaving for key in pods_of(holder)} - {pod_name(pod)}
        with emptied(inventory, pool.pool, leaving, sorted(pods)):
            if nodes.shortage(inventory.nodes.get(name)) is None and any(one.shortfall(name) is None for one in rules):
                return name
    return None


def _emptiest_first(inventory: Inventory) -> Sequence[str]:
    return sorted(inventory.nodes.names, key=lambda name: (inventory.held_count(name), name))
