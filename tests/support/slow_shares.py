"""Where shares go, by the letter of docs/design/0029-shares.md: every way to serve a pod is written down, those that
break a rule are struck out, and the rest is sorted. It looks at nodes one by one and knows neither kinds nor bounds.

A pod is a list of requests: at most one for whole GPUs, and some for shares. Only the worth of a set of GPUs is asked
of the engine, which has slow versions of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from dracaena.controller.allocation.score.box import Box, mask_of
from dracaena.controller.allocation.score.choices import Engine
from support.slow_node_rank import no_demands, node_rank

GIB = 1 << 30
CORES = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request: whole GPUs where no memory is told."""

    count: int = 1
    memory: int | None = None
    """Bytes of each GPU."""
    cores: int = 0
    mode: str = "none"


@dataclass(slots=True)
class SlowGpu:
    """A GPU of a node."""

    memory: int | None
    """Bytes, where it is given in shares; None: whole or not at all, and without capacities."""
    shares: list[tuple[int, int, str]] = field(default_factory=list)
    """Memory, cores and mode of each."""
    is_held: bool = False
    """Whether somebody has it whole."""

    @property
    def is_free(self) -> bool:
        return not self.shares and not self.is_held


@dataclass(slots=True)
class SlowNode:
    name: str
    box: Box
    gpus: list[SlowGpu]


Parts = tuple[tuple[int, ...], ...]
"""Of each request its GPUs, ascending."""


def best_place(engine: Engine, nodes: Sequence[SlowNode], pod: Sequence[Wanted]) -> tuple[str, Parts] | None:
    """The node and the GPUs of each request; None where there is no place."""
    found = []
    for node in nodes:
        ways = [(key_on_node(engine, node, pod, parts), parts) for parts in ways_on(node, pod)]
        if ways:
            _, parts = min(ways)
            found.append((key_among_nodes(engine, node, pod, parts), node.name, parts))
    return min(found)[1:] if found else None


def ways_on(node: SlowNode, pod: Sequence[Wanted]) -> Iterator[Parts]:
    """Every way to serve the pod that breaks no rule."""
    every = [list(combinations(range(len(node.gpus)), wanted.count)) for wanted in pod]
    for parts in product(*every):
        if all(_is_legal(node.gpus[ordinal], ordinal, pod, parts) for ordinal in {o for part in parts for o in part}):
            yield parts


def _is_legal(gpu: SlowGpu, ordinal: int, pod: Sequence[Wanted], parts: Parts) -> bool:
    users = [wanted for wanted, part in zip(pod, parts, strict=True) if ordinal in part]
    if any(wanted.memory is None for wanted in users):
        return len(users) == 1 and gpu.is_free
    if gpu.is_held or gpu.memory is None:
        return False
    shares = [*gpu.shares, *((wanted.memory or 0, wanted.cores, wanted.mode) for wanted in users)]
    return (
        sum(memory for memory, _, _ in shares) <= gpu.memory
        and sum(cores for _, cores, _ in shares) <= CORES
        and len({mode for _, _, mode in shares}) == 1
    )


def _told(node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> tuple[int, int, int, int, int]:
    """Masks of what is free, of the whole GPUs, of the fresh ones with shares; memory and cores left over."""
    free = mask_of(ordinal for ordinal, gpu in enumerate(node.gpus) if gpu.is_free)
    whole = mask_of(o for wanted, part in zip(pod, parts, strict=True) if wanted.memory is None for o in part)
    shared = {o for wanted, part in zip(pod, parts, strict=True) if wanted.memory is not None for o in part}
    memory = cores = 0
    for ordinal in shared:
        gpu = node.gpus[ordinal]
        users = [wanted for wanted, part in zip(pod, parts, strict=True) if ordinal in part]
        memory += (gpu.memory or 0) - sum(one[0] for one in gpu.shares) - sum(one.memory or 0 for one in users)
        cores += CORES - sum(one[1] for one in gpu.shares) - sum(one.cores for one in users)
    return free, whole, mask_of(o for o in shared if node.gpus[o].is_free), memory, cores


def key_on_node(engine: Engine, node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> tuple[object, ...]:
    """What sorts the ways on one node, best first."""
    free, whole, fresh, memory, cores = _told(node, pod, parts)
    nothing = no_demands(len(pod))
    of_whole = engine.score(node.box, free, whole, nothing).rank() if whole else ()
    of_fresh = engine.score(node.box, free & ~whole, fresh, nothing).rank() if fresh else ()
    shares = tuple(part for wanted, part in zip(pod, parts, strict=True) if wanted.memory is not None)
    return of_whole, fresh.bit_count(), of_fresh, memory, cores, shares, parts


def key_among_nodes(engine: Engine, node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> tuple[object, ...]:
    """What sorts the nodes, best first."""
    free, whole, fresh, memory, cores = _told(node, pod, parts)
    whole_wanted = sum(wanted.count for wanted in pod if wanted.memory is None)
    told = node_rank(engine, node.box, free, whole, fresh, len(pod), whole_wanted)
    return *told, memory, cores, free.bit_count()
