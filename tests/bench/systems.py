"""Whole systems for the simulations: which node, then which GPUs on it.

A baseline takes the node that its system would take where it has a rule for nodes, else the first one with enough free
GPUs. Where it refuses, crashes or hands out too few on that node, the next one is tried, which favours it: in a cluster
the pod would fail on the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType
from typing import Final

from bench.baselines import BASELINES
from bench.baselines.answer import Choose, Fault, Links
from bench.baselines.gsoc import inverted_points
from bench.baselines.topology_tree import LEVEL_POINTS
from bench.simulation import Cluster, Node, Place, Placement
from bench.worth import GpuSet
from dracaena.api.config.v1alpha1 import NO_POLICY, TopologyPolicy
from dracaena.controller.allocation.score.box import mask_of, ordinals_of
from dracaena.controller.allocation.score.choices import Demand, Engine

NodeWorth = Callable[[Links, GpuSet, int], float]
"""(links, free, count) → how much a node is liked; the most liked first, the first of equals."""

HANDED_OUT: Final = frozenset({None, Fault.OVER_ALLOCATED})
"""A pod that gets too many GPUs runs; with any other fault it does not."""

LEFT_OUT: Final = MappingProxyType(
    {
        "go static": "only for the machines in its table",
        "gpu-manager fragment": "as gpu-manager for one GPU",
        "gpu-manager on text": "does not start on most machines",
        "GSoC simple": "stops at the first GPU in use",
    }
)
"""Baselines that are no whole system of their own, with the reason."""


def our_system(policy: TopologyPolicy = NO_POLICY) -> Place:
    """Return the controller's way: the best choice of each node, the best of these by rank, the first node of equals;
    by prices that follow what is asked for."""
    engine = Engine()
    found: dict[tuple[Node, int], tuple[tuple[int, ...], GpuSet] | None] = {}
    before: Cluster | None = None

    def best_of(node: Node, count: int) -> tuple[tuple[int, ...], GpuSet] | None:
        if (node, count) not in found:
            choice = engine.best_two(node.machine.box, mask_of(node.free), (Demand(count, policy),)).best
            found[node, count] = None if choice is None else (choice.score.node_rank(), ordinals_of(choice.mask))
        return found[node, count]

    def reprice(cluster: Cluster) -> None:
        """Take the prices that suit what is asked for now, as Allocator.reprice does; those of a new cluster first."""
        nonlocal before
        boxes = Counter({machine.box: count for machine, count in cluster.machines.items()})
        prices = engine.priced(cluster.shares(), boxes)
        if cluster is not before or (prices is not None and not prices.is_near(engine.prices)):
            engine.reprice(prices)
            found.clear()
        before = cluster

    def place(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        reprice(cluster)
        best: tuple[tuple[int, ...], int, GpuSet] | None = None
        for node, indices in cluster.indices.items():
            choice = best_of(node, count)
            if choice is not None and (best is None or choice[0] <= best[0]):
                here = (choice[0], min(indices), choice[1])
                best = here if best is None else min(best, here)
        return None if best is None else Placement(best[1], best[2])

    return place


def baseline_system(choose: Choose, like: NodeWorth | None = None) -> Place:
    """Return the way of a baseline."""
    remembered = lru_cache(maxsize=None)(choose)

    def place(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        for node, index in _in_order(cluster, count, like):
            answer = remembered(node.machine.links, node.free, count)
            if answer.fault is not None:
                faults[answer.fault] += 1
            if answer.fault in HANDED_OUT:
                return Placement(index, answer.gpus)
        return None

    return place


def _in_order(cluster: Cluster, count: int, like: NodeWorth | None) -> list[tuple[Node, int]]:
    """Return the nodes with enough free GPUs in the order in which they are tried: of equal nodes the first, because
    the others would say the same."""

    def order(found: tuple[Node, int]) -> tuple[float, int]:
        node, index = found
        return (0 if like is None else -like(node.machine.links, node.free, count), index)

    fitting = [(node, min(indices)) for node, indices in cluster.indices.items() if len(node.free) >= count]
    return sorted(fitting, key=order)


def fullest_likes(links: Links, free: GpuSet, count: int) -> float:
    """The node with the fewest free GPUs: kube-scheduler with MostAllocated on GPUs."""
    return -len(free)


def topology_tree_likes(links: Links, free: GpuSet, count: int) -> float:
    """One GPU: an odd number left first. More: the highest mean points over the free pairs."""
    if count == 1:
        return len(free) % 2
    pairs = list(combinations(free, 2))
    levels = (links.levels[a][b] for a, b in pairs)
    return sum(LEVEL_POINTS[level] for level in levels if level is not None) / len(pairs)


def gsoc_likes(links: Links, free: GpuSet, count: int) -> float:
    """The raw points of the set it would take."""
    answer = _gsoc_choice(links, free, count)
    points = inverted_points(links)
    return sum(points[a][b] for a, b in combinations(answer.gpus, 2)) if answer.fault is None else -1


_gsoc_choice = lru_cache(maxsize=None)(BASELINES["GSoC best_effort"])

_LIKES: Final[Mapping[str, NodeWorth]] = {"topology tree": topology_tree_likes, "GSoC best_effort": gsoc_likes}


def baseline_systems() -> dict[str, Place]:
    """Return the baselines that are whole systems, by name."""
    return {
        name: baseline_system(choose, _LIKES.get(name)) for name, choose in BASELINES.items() if name not in LEFT_OUT
    }
