"""Where shares go, by the letter of docs/design/shares.md: every way to serve a pod is written down, those that
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
LEAST = 1 << 20
"""Bytes of the smallest share."""
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
    """Bytes; None: it has no capacities, and is given whole or not at all."""
    is_shared: bool = True
    """Whether it is given in shares. One that is not, but has memory, is given whole to one request for an amount."""
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
    if not gpu.is_shared:
        (wanted,) = users if len(users) == 1 else (None,)
        return wanted is not None and gpu.is_free and not wanted.cores and (wanted.memory or 0) <= gpu.memory
    shares = [*gpu.shares, *((wanted.memory or 0, wanted.cores, wanted.mode) for wanted in users)]
    return (
        sum(memory for memory, _, _ in shares) <= gpu.memory
        and sum(cores for _, cores, _ in shares) <= CORES
        and len({mode for _, _, mode in shares}) == 1
    )


def gets_share(node: SlowNode, wanted: Wanted) -> bool:
    """Whether a request gets a share on such a node: some GPU that is given in shares could have another beside it.

    Otherwise it takes whole GPUs, which are chosen by their links."""
    return wanted.memory is not None and any(
        gpu.is_shared and gpu.memory is not None and gpu.memory - wanted.memory >= LEAST for gpu in node.gpus
    )


@dataclass(frozen=True, slots=True)
class _Way:
    """What one way to serve the pod takes."""

    free: int
    """Mask of the GPUs that nobody has, as all masks here."""
    whole: int
    """Those that requests get whole, of requests that get no shares on such a node."""
    fresh: int
    """Those that shares break, or that a request for a share takes whole."""
    counts: tuple[int, int]
    """GPUs that are broken up or taken whole for an amount, and of those the ones taken whole for a part of them."""
    left: tuple[int, int]
    """Memory and cores left over in the GPUs with a share of the pod."""
    shares: Parts
    """GPUs of each request that gets a share."""


def _takes_a_part(gpu: SlowGpu, wanted: Wanted) -> bool:
    """Whether a request could have a GPU and asks for less of a capacity than there is."""
    if gpu.memory is None or wanted.memory is None or wanted.memory > gpu.memory:
        return False
    if not gpu.is_shared:
        return not wanted.cores and wanted.memory < gpu.memory
    return wanted.memory < gpu.memory or 0 < wanted.cores < CORES


def _way(node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> _Way:
    gpus = node.gpus
    given = [(wanted, part, gets_share(node, wanted)) for wanted, part in zip(pod, parts, strict=True)]
    touched = {o for _, part, in_shares in given for o in part if in_shares}
    fresh = {o for o in touched if gpus[o].is_free}
    fresh_count, wasted = len(fresh), sum(not gpus[o].is_shared for o in touched)
    for wanted, part, in_shares in given:
        if wanted.memory is not None and not in_shares:
            fresh_count += len(part)
            wasted += len(part) if any(_takes_a_part(gpu, wanted) for gpu in gpus) else 0
    memory = cores = 0
    for ordinal in touched:
        gpu = gpus[ordinal]
        if gpu.is_shared:
            users = [wanted for wanted, part, _ in given if ordinal in part]
            memory += (gpu.memory or 0) - sum(one[0] for one in gpu.shares) - sum(one.memory or 0 for one in users)
            cores += CORES - sum(one[1] for one in gpu.shares) - sum(one.cores for one in users)
    return _Way(
        free=mask_of(ordinal for ordinal, gpu in enumerate(gpus) if gpu.is_free),
        whole=mask_of(o for _, part, in_shares in given for o in part if not in_shares),
        fresh=mask_of(fresh),
        counts=(fresh_count, wasted),
        left=(memory, cores),
        shares=tuple(part for _, part, in_shares in given if in_shares),
    )


def key_on_node(engine: Engine, node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> tuple[object, ...]:
    """What sorts the ways on one node, best first."""
    way, nothing = _way(node, pod, parts), no_demands(len(pod))
    of_whole = engine.score(node.box, way.free, way.whole, nothing).rank() if way.whole else ()
    of_fresh = engine.score(node.box, way.free & ~way.whole, way.fresh, nothing).rank() if way.fresh else ()
    taken_whole = sum(not node.gpus[o].is_shared for part in way.shares for o in part)
    return of_whole, way.fresh.bit_count(), taken_whole, of_fresh, *way.left, way.shares, parts


def key_among_nodes(engine: Engine, node: SlowNode, pod: Sequence[Wanted], parts: Parts) -> tuple[object, ...]:
    """What sorts the nodes, best first."""
    way = _way(node, pod, parts)
    linked = sum(wanted.count for wanted in pod if wanted.memory is None)
    told = node_rank(engine, node.box, way.free, way.whole, way.fresh, len(pod), linked, way.counts)
    return *told, *way.left, way.free.bit_count()
