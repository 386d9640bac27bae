"""The tree of one machine: GPUs as leaves, PCIe levels as branches. A view of the pair matrix, never a second truth.

The tree joins whatever the pairs of each level connect, level by level. So a report that contradicts itself (A is near
B, B is near C, A is far from C) joins too early, but no GPU can be cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Final

from dracaena.api.groups import lowest_in_group
from dracaena.api.links import LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.topology import Topology, TopologyError

_BRANCH, _LAST_BRANCH = "├─ ", "└─ "
_TRUNK, _NO_TRUNK = "│  ", "   "


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A set of GPUs and the level that joins them.

    The root and the leaves have no level. A leaf holds one ordinal and no children; children are in the order of their
    lowest ordinal.
    """

    level: LinkLevel | None
    """The worst level inside this branch; None for the root and for a leaf."""
    assumed: bool
    """True if only the NUMA nodes of pairs of unknown level hold this branch together."""
    ordinals: tuple[int, ...]
    """All GPUs below, ascending."""
    children: tuple[TreeNode, ...] = ()

    @property
    def is_leaf(self) -> bool:
        """True for a single GPU. The root of a machine with one GPU is no leaf: it has a leaf below it."""
        return not self.children and len(self.ordinals) == 1

    def leaves(self) -> Iterator[int]:
        """Yield the ordinal of each leaf, depth first."""
        if self.is_leaf:
            yield self.ordinals[0]
        for child in self.children:
            yield from child.leaves()

    def check(self) -> None:
        """State the invariants of a whole tree, called on its root; raise TopologyError naming the first that fails."""
        if self.level is not None:
            raise TopologyError(f"the root has level {self.level.name}, expected none")
        leaves = tuple(self.leaves())
        if tuple(sorted(leaves)) != tuple(range(len(self.ordinals))):
            raise TopologyError(f"the leaves are {leaves}, expected each of {len(self.ordinals)} GPUs once")
        for child in self.children:
            _check_branch(child, None)


def _check_branch(node: TreeNode, above: LinkLevel | None) -> None:
    if node.is_leaf:
        return
    if node.level is None or (above is not None and node.level >= above):
        raise TopologyError(f"levels do not rise to the root: {node.level!r} below {above!r}")
    if len(node.children) < 2:
        raise TopologyError(f"{node.level.name} of {node.ordinals} joins nothing")
    below = sorted(ordinal for child in node.children for ordinal in child.ordinals)
    if tuple(below) != node.ordinals:
        raise TopologyError(f"{node.level.name} has GPUs {node.ordinals}, its children {tuple(below)}")
    for child in node.children:
        _check_branch(child, node.level)


def build_tree(topology: Topology) -> TreeNode:
    """Return the root of the tree: each GPU is one leaf, whatever the matrix says.

    A pair of unknown level joins at NODE when both GPUs are known to share a NUMA node, else at SYS; a branch that
    falls apart without such pairs is marked `assumed`. A level that joins nothing new adds no branch. A pair's level
    equals that of its lowest common branch if the matrix is ultrametric (as in a real PCIe tree); else the branch may
    be nearer. Cost: O(levels × pairs).
    """
    count = topology.gpu_count
    pairs = [(a, b, topology.link(a, b).level) for a, b in combinations(range(count), 2)]
    unknown = [(a, b, topology.level_or_assumed(a, b)) for a, b, known in pairs if known is None]
    branches = {ordinal: _leaf(ordinal) for ordinal in range(count)}
    for level in LinkLevel:
        reported = [(a, b) for a, b, known in pairs if known is not None and known <= level]
        joined = lowest_in_group(count, [*reported, *((a, b) for a, b, assumed in unknown if assumed <= level)])
        branches = _branches_at(level, joined, lowest_in_group(count, reported), branches)
    children = tuple(branches[lowest] for lowest in sorted(branches))
    return TreeNode(None, assumed=False, ordinals=tuple(range(count)), children=children)


def _leaf(ordinal: int) -> TreeNode:
    return TreeNode(None, assumed=False, ordinals=(ordinal,))


def _branches_at(
    level: LinkLevel, joined: Sequence[int], reported: Sequence[int], below: Mapping[int, TreeNode]
) -> dict[int, TreeNode]:
    """Return the branches at one level by their lowest ordinal; a branch that did not grow stays what it was."""
    children: dict[int, list[TreeNode]] = {}
    for lowest in sorted(below):
        children.setdefault(joined[lowest], []).append(below[lowest])
    return {lowest: _join(level, parts, reported) for lowest, parts in children.items()}


def _join(level: LinkLevel, parts: Sequence[TreeNode], reported: Sequence[int]) -> TreeNode:
    if len(parts) == 1:
        return parts[0]
    ordinals = tuple(sorted(ordinal for part in parts for ordinal in part.ordinals))
    falls_apart = len({reported[ordinal] for ordinal in ordinals}) > 1
    return TreeNode(level, assumed=falls_apart, ordinals=ordinals, children=tuple(parts))


def render_tree(
    machine: Machine, labels: Mapping[int, str] | None = None, partitions: Collection[frozenset[int]] | None = None
) -> tuple[str, ...]:
    """Draw the tree of a machine as lines of text.

    A branch shows its level, the number of its GPUs and `assumed` if it is; a leaf shows the GPU's number (`index`),
    product, NUMA node, NVLinks to its peers by their numbers, the mode of confidential computing if it is capable of
    that, and `labels[ordinal]` if there is one. If only whole partitions are linked (Machine.partitions, which
    `partitions` replaces), these are listed below, the largest first, and no peers are named.
    """
    root = build_tree(machine.topology)
    sets = machine.partitions() if partitions is None else partitions
    lines = [f"ROOT:{len(root.ordinals)}"]
    lines.extend(_render_children(root, _Drawn(machine, labels or {}, is_partitioned=bool(sets)), ""))
    return (*lines, *_partition_lines(machine, labels or {}, sets))


FREE: Final = "free"
"""Label of a free GPU; a partition is marked too if all its GPUs have it."""


def _partition_lines(
    machine: Machine, labels: Mapping[int, str], partitions: Collection[frozenset[int]]
) -> Iterator[str]:
    """Yield a line for the partitions of each size, the largest first; those of one GPU say nothing about links."""
    drawn = [sorted(gpus) for gpus in partitions if max(gpus) < len(machine.gpus)]
    for size in sorted({len(gpus) for gpus in drawn} - {1}, reverse=True):
        words = (_partition_text(machine, labels, gpus) for gpus in sorted(drawn) if len(gpus) == size)
        yield f"whole partitions of {size}: {'; '.join(words)}"


def _partition_text(machine: Machine, labels: Mapping[int, str], gpus: Sequence[int]) -> str:
    text = ",".join(_spans(machine.gpus[gpu].index for gpu in gpus))
    return f"{text} [{FREE}]" if all(labels.get(gpu) == FREE for gpu in gpus) else text


@dataclass(frozen=True, slots=True)
class _Drawn:
    machine: Machine
    labels: Mapping[int, str]
    is_partitioned: bool


def _render_children(node: TreeNode, drawn: _Drawn, indent: str) -> Iterator[str]:
    for position, child in enumerate(node.children):
        last = position == len(node.children) - 1
        text = _leaf_text(drawn, child.ordinals[0]) if child.is_leaf else _branch_text(child)
        yield f"{indent}{_LAST_BRANCH if last else _BRANCH}{text}"
        yield from _render_children(child, drawn, indent + (_NO_TRUNK if last else _TRUNK))


def _branch_text(node: TreeNode) -> str:
    level = node.level.name if node.level is not None else "ROOT"
    return f"{level}:{len(node.ordinals)}{' (assumed)' if node.assumed else ''}"


def _leaf_text(drawn: _Drawn, ordinal: int) -> str:
    machine, labels = drawn.machine, drawn.labels
    gpu = machine.gpus[ordinal]
    numa_node = machine.topology.numa_nodes[ordinal]
    facts = [
        f"GPU{gpu.index}",
        gpu.product_name or "",
        f"NUMA {numa_node}" if numa_node is not None else "",
        *([] if drawn.is_partitioned else _nvlink_texts(machine.gpus, machine.topology, ordinal)),
        f"CC {gpu.cc_mode or '?'}" if gpu.cc_capable else "",
        f"[{labels[ordinal]}]" if ordinal in labels else "",
    ]
    return "  ".join(fact for fact in facts if fact)


def _nvlink_texts(gpus: tuple[Gpu, ...], topology: Topology, ordinal: int) -> Iterator[str]:
    """Yield one text per link count, most links first: `NV2 to GPU3,GPU4`."""
    counts = {peer: topology.link(ordinal, peer).nvlinks or 0 for peer in topology.nvlink_peers(ordinal)}
    by_count = sorted(counts, key=lambda peer: (-counts[peer], peer))
    for count, peers in groupby(by_count, key=lambda peer: counts[peer]):
        yield f"NV{count} to {','.join(_spans([gpus[peer].index for peer in peers]))}"


def _spans(numbers: Iterable[int]) -> Iterator[str]:
    """Yield GPU numbers with neighbours joined: `GPU0`, `GPU2-5`."""
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0]):
        members = [number for _, number in run]
        yield f"GPU{members[0]}" if len(members) == 1 else f"GPU{members[0]}-{members[-1]}"
