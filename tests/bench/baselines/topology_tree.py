"""The topology-tree device plugin (`nvidia.com/gpu-topo`).

A tree of the PCIe hierarchy below each socket. A branch scores the points of all pairs of its free GPUs (SYS 1, NODE 2,
PHB 3, PXB 4, PIX 5, same board 6; NVLinks play no part) over the number of its free GPUs.

* One GPU: from the root down, each time into the child with the lowest score that has a free GPU.
* More: level by level keep the branches with enough free GPUs and the highest score of their level. When none below
  fits, add up all free GPUs of branch after branch and stop only when the count is exactly the one asked for: with more
  than that in the last branch all of them are handed out and marked as taken.

As published the search for one GPU dereferences nil at the root, which stands for no device; this copy goes on, so that
its rule can be compared. With nothing free it hands out one empty name; that is not among the states looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

from bench.baselines.answer import REFUSED, Answer, Fault, Links, granted
from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel

LEVEL_POINTS: Final = {
    LinkLevel.SYS: 1,
    LinkLevel.NODE: 2,
    LinkLevel.PHB: 3,
    LinkLevel.PXB: 4,
    LinkLevel.PIX: 5,
    LinkLevel.PSB: 6,
}
JOINED_AT: Final = (LinkLevel.NODE, LinkLevel.PHB, LinkLevel.PXB, LinkLevel.PIX)
"""Below the root (everything) from far to near: the levels at which branches are joined."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the tree; without children it is one GPU."""

    gpus: tuple[int, ...]
    children: tuple[Branch, ...]


def choose(links: Links, free: tuple[int, ...], count: int) -> Answer:
    if len(free) < count:
        return REFUSED
    root = tree_of(links)
    chosen = _one(links, root, free) if count == 1 else _many(links, root, free, count)
    return granted(chosen) if len(chosen) == count else Answer(tuple(sorted(chosen)), Fault.OVER_ALLOCATED)


def branch_score(links: Links, branch: Branch, free: Sequence[int]) -> float:
    """Return the points over the number of free GPUs; the branch has at least one."""
    inside = [gpu for gpu in branch.gpus if gpu in free]
    points = sum(LEVEL_POINTS[level] for a, b in combinations(inside, 2) if (level := links.levels[a][b]) is not None)
    return points / len(inside)


@cache
def tree_of(links: Links) -> Branch:
    """Build the tree; a level at which a branch does not divide makes no branch of its own."""
    return _branch(links, tuple(range(links.gpu_count)), JOINED_AT)


def _branch(links: Links, gpus: tuple[int, ...], levels: Sequence[LinkLevel]) -> Branch:
    if len(gpus) == 1:
        return Branch(gpus, ())
    for place, widest in enumerate(levels):
        parts = _joined(links, gpus, widest)
        if len(parts) > 1:
            return Branch(gpus, tuple(_branch(links, part, levels[place + 1 :]) for part in parts))
    return Branch(gpus, tuple(Branch((gpu,), ()) for gpu in gpus))


def _joined(links: Links, gpus: tuple[int, ...], widest: LinkLevel) -> list[tuple[int, ...]]:
    pairs = combinations(enumerate(gpus), 2)
    near = ((a, b) for (a, one), (b, two) in pairs if (level := links.levels[one][two]) is not None and level <= widest)
    group_of = lowest_in_group(len(gpus), near)
    return [
        tuple(gpu for gpu, group in zip(gpus, group_of, strict=True) if group == lowest)
        for lowest in dict.fromkeys(group_of)
    ]


def _one(links: Links, root: Branch, free: Sequence[int]) -> tuple[int, ...]:
    branch = root
    while branch.children:
        with_free = [child for child in branch.children if any(gpu in free for gpu in child.gpus)]
        branch = min(with_free, key=lambda child: branch_score(links, child, free))
    return branch.gpus


def _many(links: Links, root: Branch, free: Sequence[int], count: int) -> tuple[int, ...]:
    kept = [root]
    while True:
        below = [child for branch in kept for child in branch.children]
        fitting = [child for child in below if sum(gpu in free for gpu in child.gpus) >= count]
        if not fitting:
            break
        highest = max(branch_score(links, branch, free) for branch in fitting)
        kept = [branch for branch in fitting if branch_score(links, branch, free) == highest]
    chosen: list[int] = []
    for branch in kept:
        chosen += [gpu for gpu in branch.gpus if gpu in free]
        if len(chosen) == count:
            break
    return tuple(chosen)
