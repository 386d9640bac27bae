"""Whole systems for the simulations: which node, then which GPUs on it.

A baseline takes the node that its system would take where it has a rule for nodes, else the first one with enough free
GPUs. Where it refuses, crashes or hands out too few on that node, the next one is tried, which favours it: in a cluster
the pod would fail on the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType
from typing import Final

from bench import ours
from bench.baselines import BASELINES
from bench.baselines.answer import Answer, Choose, Fault, Links
from bench.baselines.gsoc import inverted_points
from bench.baselines.topology_tree import LEVEL_POINTS
from bench.machines import BenchMachine
from bench.simulation import Node, Place, Placement
from bench.worth import GpuSet

NodeWorth = Callable[[Links, GpuSet, int], float]
"""(links, free, count) → how much a node is liked; the most liked first, the first of equals."""

Rank = Callable[[ours.OurChoice], tuple[float, ...]]
"""Key that sorts the choices of several nodes best first."""

Ask = Callable[[BenchMachine, GpuSet, int], ours.OurChoice | None]
"""(machine, free, count) → the best choice there."""

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


def our_system(rank: Rank = ours.OurChoice.rank, ask: Ask = ours.choose) -> Place:
    """Return our way: the best choice of each node, the best of these by rank, the first node of equals."""

    def place(nodes: Sequence[Node], count: int, faults: Counter[Fault]) -> Placement | None:
        best: tuple[tuple[float, ...], int, GpuSet] | None = None
        for index, node in enumerate(nodes):
            choice = ask(node.machine, node.free, count) if len(node.free) >= count else None
            if choice is not None:
                found = (rank(choice), index, choice.gpus)
                best = found if best is None else min(best, found)
        return None if best is None else Placement(best[1], best[2])

    return place


def baseline_system(choose: Choose, like: NodeWorth | None = None) -> Place:
    """Return the way of a baseline."""
    remembered = lru_cache(maxsize=None)(choose)

    def answer_of(node: Node, count: int) -> Answer:
        return remembered(node.machine.links, node.free, count)

    def place(nodes: Sequence[Node], count: int, faults: Counter[Fault]) -> Placement | None:
        fitting = [index for index, node in enumerate(nodes) if len(node.free) >= count]
        if like is not None:
            fitting.sort(key=lambda index: -like(nodes[index].machine.links, nodes[index].free, count))
        for index in fitting:
            answer = answer_of(nodes[index], count)
            if answer.fault is not None:
                faults[answer.fault] += 1
            if answer.fault in HANDED_OUT:
                return Placement(index, answer.gpus)
        return None

    return place


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
