"""On which GPU other systems put a request for a part of one, by their published rules.

* first fit: kube-scheduler's structured allocator with consumable capacity: the first node with room, its first GPU.
* gpu-manager, share mode: the GPU with the fewest free hundredths of its cores that fits, then the least free memory.
  It leaves the node to kube-scheduler; here it is the one with the fewest free cores, which is best for it.
* HAMi, binpack and spread: of a GPU and of a node shares, cores and memory in use ÷ all there are, in sum, the request
  counting on the GPU; most first, or least first. A GPU has ten shares at most (its default). Of equal GPUs the
  highest index is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

HAMI_SHARES: Final = 10
"""Shares of one GPU (deviceSplitCount)."""

CORES: Final = 100


@dataclass(frozen=True, slots=True)
class Load:
    """What is taken of one GPU."""

    memory_gib: int = 0
    cores: int = 0
    shares: int = 0

    def fits(self, memory_gib: int, cores: int, all_gib: int) -> bool:
        """Return whether there is room for a share."""
        return self.memory_gib + memory_gib <= all_gib and self.cores + cores <= CORES


Nodes = Sequence[Sequence[Load]]
Place = tuple[int, int]
"""Node and GPU, by their indices."""
Rule = Callable[[Nodes, int, int, int], Place | None]
"""Nodes, GiB and percent of the cores that are asked for, GiB of each GPU → where it goes; None: refused."""


def first_fit(nodes: Nodes, memory_gib: int, cores: int, all_gib: int) -> Place | None:
    return next(iter(_fitting(nodes, memory_gib, cores, all_gib)), None)


def gpu_manager(nodes: Nodes, memory_gib: int, cores: int, all_gib: int) -> Place | None:
    fitting = _fitting(nodes, memory_gib, cores, all_gib)
    if not fitting:
        return None
    free = {node: sum(CORES - load.cores for load in nodes[node]) for node, _ in fitting}

    def rank(place: Place) -> tuple[int, ...]:
        load = nodes[place[0]][place[1]]
        return free[place[0]], place[0], CORES - load.cores, all_gib - load.memory_gib, place[1]

    return min(fitting, key=rank)


def hami_binpack(nodes: Nodes, memory_gib: int, cores: int, all_gib: int) -> Place | None:
    return _hami(nodes, memory_gib, cores, all_gib, sign=-1)


def hami_spread(nodes: Nodes, memory_gib: int, cores: int, all_gib: int) -> Place | None:
    return _hami(nodes, memory_gib, cores, all_gib, sign=1)


RULES: Final[Mapping[str, Rule]] = {
    "first fit": first_fit,
    "gpu-manager share": gpu_manager,
    "HAMi binpack": hami_binpack,
    "HAMi spread": hami_spread,
}


def _fitting(nodes: Nodes, memory_gib: int, cores: int, all_gib: int) -> list[Place]:
    return [
        (node, gpu)
        for node, loads in enumerate(nodes)
        for gpu, load in enumerate(loads)
        if load.fits(memory_gib, cores, all_gib)
    ]


def _hami(nodes: Nodes, memory_gib: int, cores: int, all_gib: int, *, sign: int) -> Place | None:
    fitting = [
        (node, gpu)
        for node, gpu in _fitting(nodes, memory_gib, cores, all_gib)
        if nodes[node][gpu].shares < HAMI_SHARES
    ]
    if not fitting:
        return None
    of_node = {node: _used(nodes[node], all_gib) for node, _ in fitting}

    def rank(place: Place) -> tuple[float, int, float, int]:
        load = nodes[place[0]][place[1]]
        then = Load(load.memory_gib + memory_gib, load.cores + cores, load.shares + 1)
        return sign * of_node[place[0]], place[0], sign * _used((then,), all_gib), -place[1]

    return min(fitting, key=rank)


def _used(loads: Sequence[Load], all_gib: int) -> float:
    count = len(loads)
    shares = sum(load.shares for load in loads) / (HAMI_SHARES * count)
    cores = sum(load.cores for load in loads) / (CORES * count)
    return shares + cores + sum(load.memory_gib for load in loads) / (all_gib * count)
