"""Whether one pod fits on one node: the question of a decision, asked of a single node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dracaena.controller.allocation.answers import QuestionAnswers
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.joint_search import Found, JointSearch
from dracaena.controller.allocation.pod_demand import PodDemand
from dracaena.controller.allocation.pool import NodePool
from dracaena.controller.allocation.ways import Reading


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to serve the pod."""

    reading: Reading
    answers: QuestionAnswers
    joint: JointSearch
    exact: bool
    """Whether the answers tell all about nodes with nothing but whole GPUs."""


class Probe:
    """Answers for one pod, of the inventory as it is at the time of the question."""

    def __init__(self, inventory: Inventory, demand: PodDemand, ways: Sequence[Tried]) -> None:
        self._inventory = inventory
        self._demand = demand
        self._ways = ways

    def may_run_on(self, node: str) -> bool:
        """Return whether the pod may run on a node that is there, whatever is free."""
        return self._demand.filter.unfit(self._inventory.nodes.get(node)) is None

    def has_room(self, node: str) -> bool:
        """Return whether the node has enough cpu and whatever else is no device."""
        return self._demand.filter.shortage(self._inventory.nodes.get(node)) is None

    def is_alike(self, node: str) -> bool:
        """Return whether every node of the same kind with the same free devices gives the same."""
        return node not in self._demand.beside and all(
            way.exact and node not in self._inventory.mixed for way in self._ways
        )

    def fits_when_empty(self, pool: NodePool) -> bool:
        """Return whether a node of this pool has the devices when all of them are free; for nodes that are alike."""
        return any(way.answers.of_kind(pool.kind).of(pool.offered).best is not None for way in self._ways)

    def fits_on(self, node: str) -> bool:
        """Return whether the node has the devices; the rest is asked apart."""
        return any(self._serves(way, node) for way in self._ways)

    def _serves(self, way: Tried, node: str) -> bool:
        place = self._inventory.place(node)
        if isinstance(place, str):
            return False
        if way.exact and node not in self._inventory.mixed:
            kind = way.answers.of_kind(place.kind)
            held = self._demand.beside.get(node, 0)
            return (kind.beside(place.free, held) if held else kind.of(place.free)).best is not None
        return isinstance(way.joint.on_node(node), Found)
