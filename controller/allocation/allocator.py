"""The decision: all claims of a pod at once, on one node.

Order: what the policies require; then the parts of a score (order.Order), the fuller node among them; then names and
ordinals, so that the same input gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.answers import Answers, QuestionAnswers
from dracaena.controller.allocation.choices import Engine
from dracaena.controller.allocation.demands import Refused
from dracaena.controller.allocation.explanation import Unsatisfied, unsatisfied
from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.node_filter import PINNED_ELSEWHERE
from dracaena.controller.allocation.node_fit import node_selector_matches
from dracaena.controller.allocation.pod_demand import PodDemand, read_pod_demand
from dracaena.controller.allocation.result import Allocation, Placement, RunnerUp, make_allocation
from dracaena.controller.allocation.search import Search

RELATIVE_UP_TO_GPUS: Final = 2
"""Pods of so many GPUs compare nodes by bandwidth ÷ the ideal of their kind, larger ones by bandwidth: a pair does not
break up a fast machine while slower ones idle, and large jobs find it whole (docs/design/0006-mixed-clusters.md)."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to decide: all claims are allocated, on a node that is there."""


@dataclass(frozen=True, slots=True)
class NoFit:
    """The pod fits on no node now. It may fit later with nobody acting. Allocator.explain() says why."""


class Allocator:
    """Decides. Holds only what it computed before, so that equal nodes cost one look-up. One thread at a time."""

    def __init__(self, *, relative_up_to_gpus: int = RELATIVE_UP_TO_GPUS) -> None:
        """`relative_up_to_gpus`: see choices.Engine."""
        self.engine = Engine(relative_up_to_gpus=relative_up_to_gpus)
        self._answers = Answers(self.engine)

    def allocate(
        self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim]
    ) -> Allocation | NoFit | Refused | Settled:
        """Decide for all `claims` of a pod, in the order in which the pod names them. Changes nothing.

        Claims that are allocated already pin the pod to their nodes, and their GPUs count as part of its set. The
        answer depends on nothing but the arguments. Cost: one step a bucket, one for each node that is refused before
        one fits, and the comparison of candidates for each kind and mask of free GPUs that was never asked before.
        """
        demand = read_pod_demand(inventory, pod, claims)
        if isinstance(demand, Refused):
            return demand
        if not demand.claims:
            return Settled() if _is_somewhere(inventory, demand) else NoFit()
        search = Search(inventory, demand, self._answers.to(demand.question))
        found = search.placements()
        winner = next(found, None)
        if winner is None:
            return NoFit()
        census = search.census()
        return make_allocation(inventory.driver, winner, demand.claims, _runner_up(winner, next(found, None)), census)

    def explain(self, inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim]) -> Unsatisfied | Refused | None:
        """Count why the pod fits on no node; None when it fits after all. Cost: one step a node."""
        demand = read_pod_demand(inventory, pod, claims)
        if isinstance(demand, Refused):
            return demand
        if not demand.claims and _is_somewhere(inventory, demand):
            return None
        reasons = tuple(_reasons(inventory, demand, self._answers.to(demand.question)))
        if any(reason is None for _, reason in reasons):
            return None
        return unsatisfied((name, reason) for name, reason in reasons if reason is not None)


def _is_somewhere(inventory: Inventory, demand: PodDemand) -> bool:
    """Whether there is a node on which all allocated claims can be used; none needs to give anything."""
    names = inventory.nodes.selected(demand.pins)
    nodes = (inventory.nodes.get(name).node for name in (inventory.nodes.names if names is None else names))
    return any(all(node_selector_matches(selector, node) for selector in demand.pins) for node in nodes)


def _reasons(inventory: Inventory, demand: PodDemand, answers: QuestionAnswers) -> Iterator[tuple[str, str | None]]:
    """Yield each node with its first reason, in a fixed order of reasons; None for one that does."""
    for name in inventory.nodes.names:
        unfit = demand.filter.reason(inventory.nodes.get(name))
        place = inventory.place(name)
        if unfit == PINNED_ELSEWHERE or not demand.claims:
            yield name, PINNED_ELSEWHERE
        elif isinstance(place, str):
            yield name, place
        elif unfit is not None:
            yield name, unfit
        else:
            kind = answers.of_kind(place.kind)
            held = demand.beside.get(name, 0)
            answer = kind.beside(place.free, held) if held else kind.of(place.free)
            yield name, answer.reason if answer.best is None else None


def _runner_up(winner: Placement, other: Placement | None) -> RunnerUp | None:
    """Return the best choice that was not taken: on another node, or on the same one if that is better."""
    others = []
    if other is not None:
        part = winner.best.score.first_difference(other.best.score)
        others.append(RunnerUp(other.pool, other.best, part or "node_name"))
    if winner.second is not None:
        part = winner.best.score.first_difference(winner.second.score)
        others.append(RunnerUp(winner.pool, winner.second, part or "ordinals"))
    # min() keeps the first of equals: another node says more than another set of the same node.
    return min(others, key=lambda second: second.choice.score.rank(), default=None)
