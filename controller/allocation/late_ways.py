"""Ways to choose alternatives that nodes themselves come to, where there are too many to try each.

Four requests with three alternatives each are 81 ways already. The rules go through them on one node with everything
they know about it, so each node is asked which way is its first; only those are then tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from dracaena.controller.allocation.inventory import Inventory
from dracaena.controller.allocation.joint_search import Rules, offered_only, pose_on
from dracaena.controller.allocation.pod_demand import PodDemand
from dracaena.controller.allocation.structured.outcome import Plan
from dracaena.controller.allocation.structured.problem import Problem
from dracaena.controller.allocation.structured.search import solve
from dracaena.controller.allocation.ways import ChosenRequest, Way, reads_identities


def late_ways(inventory: Inventory, demand: PodDemand, rules: Rules) -> Iterator[Way]:
    """Yield the most preferred legal way of each node, each once, the most preferred first.

    A hard wish of a policy is no rule: a node whose first way does not meet it gets no second one. Cost: the rules
    asked once for each (kind of node, free devices), and for each node where that is not all there is to know.
    """
    taken = sorted(set(_taken(inventory, demand, rules)))
    for alternatives in taken:
        yield _way(demand, alternatives)


def _taken(inventory: Inventory, demand: PodDemand, rules: Rules) -> Iterator[tuple[int, ...]]:
    """Yield the places of the alternatives that nodes come to, in the order of claims and requests."""
    alike = not reads_identities(inventory.driver, demand.claims, rules.selectors)
    asked = set()
    for name in inventory.nodes.names:
        place = inventory.place(name)
        if isinstance(place, str) or demand.filter.reason(inventory.nodes.get(name)) is not None:
            continue
        if alike and name not in inventory.mixed:
            if place in asked:
                continue
            asked.add(place)
        found = _on_node(inventory, demand, rules, name)
        if found is not None:
            yield found


def _on_node(inventory: Inventory, demand: PodDemand, rules: Rules, name: str) -> tuple[int, ...] | None:
    pool = inventory.pool(name)
    problem = pose_on(inventory, name, demand.claims, rules)
    if pool is None or not isinstance(problem, Problem):
        return None
    plan = solve(
        problem,
        restrictions=(offered_only(inventory.driver, pool),),
        max_steps=rules.max_steps,
        effort=rules.effort,
    )
    if not isinstance(plan, Plan):
        return None
    return tuple(
        request.alternatives.index(chosen)
        for claim in plan.claims
        for request, chosen in zip(claim.claim.requests, claim.chosen, strict=True)
    )


def _way(demand: PodDemand, alternatives: tuple[int, ...]) -> Way:
    keys = [(claim, index) for claim, entry in enumerate(demand.claims) for index in range(len(entry.requests))]
    return Way(
        demand.claims,
        tuple(
            ChosenRequest(key, place, demand.claims[key[0]].requests[key[1]][place])
            for key, place in zip(keys, alternatives, strict=True)
        ),
    )
