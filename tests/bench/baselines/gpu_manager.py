"""tkestack gpu-manager: a tree of PCIe levels with bit masks; NVLinks play no part.

The tree: pairs are walked in the order of their indices; the first node of the pair's level whose mask overlaps takes
the pair in, else the pair makes a new node; two nodes of a level are never united. Then each GPU climbs from PIX to
SYS, each time to the first node whose mask overlaps the last one; the root stands over all nodes of the highest level
that occurs. A GPU that is taken is struck from the masks of its own ancestors only. So where "same level" is not
transitive, a GPU may have no ancestor, or stay in the mask of a node that is not its ancestor after it was taken.

* link (more than one card): each GPU climbs to the first node below the root with enough free; of those the nearest
  level, then the fewest free, then the oldest; its lowest free indices.
* fragment (one card): from the root into the child with children that has enough free and the fewest of all, and on;
  its lowest free indices.
* share (hundredths of one card): the card with the fewest free hundredths that fits.

Choices by memory and processes are left out: an idle machine ties there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Final

from bench.baselines.answer import REFUSED, Answer, Fault, Links, granted
from dracaena.api.links import LinkLevel

CLIMBED: Final = (LinkLevel.PIX, LinkLevel.PXB, LinkLevel.PHB, LinkLevel.NODE, LinkLevel.SYS)
KNOWN_IN_TEXT: Final = frozenset({LinkLevel.PIX, LinkLevel.PXB, LinkLevel.PHB})
"""Words that the parser of printed matrices knows, beside SOC; NODE, SYS and NV# become unknown and are lost."""

WHOLE_CARD: Final = 100
"""Hundredths of a card."""


@dataclass(eq=False)
class TreeNode:
    """A node of the tree; GPUs are the leaves. `age` is the order in which nodes were made."""

    age: int
    level: int
    mask: int
    parent: TreeNode | None = None
    children: list[TreeNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    root: TreeNode | None
    """None: no level occurs, and the program does not start."""
    leaves: tuple[TreeNode, ...]


Mode = Callable[[Tree, Mapping[TreeNode, int], int], Sequence[int] | Fault]


def choose(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Answer as the program does: fragment for one card, link for more."""
    return choose_fragment(links, free, count) if count == 1 else _answer(tree_of(links), free, count, link)


def choose_fragment(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Answer in fragment mode whatever the count."""
    return _answer(tree_of(links), free, count, fragment)


def choose_on_text(links: Links, free: tuple[int, ...], count: int) -> Answer:
    """Answer as the program does where it read the printed matrix, because NVML could not be loaded."""
    return _answer(tree_of_text(links), free, count, fragment if count == 1 else link)


def share(free_hundredths: Mapping[int, int], hundredths: int) -> Answer:
    """Answer a request of less than one card."""
    fitting = [gpu for gpu in sorted(free_hundredths) if free_hundredths[gpu] >= hundredths]
    return granted([min(fitting, key=lambda gpu: free_hundredths[gpu])]) if fitting else REFUSED


@cache
def tree_of(links: Links) -> Tree:
    """Build the tree from the levels that NVML tells; PSB counts as PIX."""
    return _tree(links, lambda level: max(level, LinkLevel.PIX))


@cache
def tree_of_text(links: Links) -> Tree:
    """Build the tree from the printed matrix: NV# hides the level, and only some words are known."""
    return _tree(_as_printed(links), lambda level: level if level in KNOWN_IN_TEXT else None)


def link(tree: Tree, masks: Mapping[TreeNode, int], count: int) -> Sequence[int] | Fault:
    """Return what link mode hands out."""
    found = set()
    for leaf in tree.leaves:
        node: TreeNode | None = leaf
        while node is not tree.root:
            if node is None:
                return Fault.CRASHED  # it climbs past a node without a parent
            if masks[node].bit_count() >= count:
                found.add(node)
                break
            node = node.parent
    assert tree.root is not None
    best = min(found, key=lambda node: (node.level, masks[node].bit_count(), node.age), default=tree.root)
    return _lowest(masks[best], count)


def fragment(tree: Tree, masks: Mapping[TreeNode, int], count: int) -> Sequence[int] | Fault:
    """Return what fragment mode hands out."""
    assert tree.root is not None
    node = tree.root
    while True:
        fitting = [child for child in node.children if child.children and masks[child].bit_count() >= count]
        if not fitting:
            return _lowest(masks[node], count)
        node = min(fitting, key=lambda child: (masks[child].bit_count(), child.age))


def _answer(tree: Tree, free: tuple[int, ...], count: int, mode: Mode) -> Answer:
    if len(free) < count:
        return REFUSED
    if tree.root is None:
        return Answer(fault=Fault.CRASHED)
    chosen = mode(tree, _masks_when(tree, free), count)
    if isinstance(chosen, Fault):
        return Answer(fault=chosen)
    if len(chosen) < count:
        return Answer(fault=Fault.CUT_APART)
    if not set(chosen) <= set(free):
        return Answer(tuple(chosen), Fault.IN_USE)
    return granted(chosen)


def _masks_when(tree: Tree, free: tuple[int, ...]) -> dict[TreeNode, int]:
    """Return the masks of all nodes that can be reached when all but the free GPUs are taken."""
    masks: dict[TreeNode, int] = {}
    for gpu, leaf in enumerate(tree.leaves):
        masks[leaf] = leaf.mask  # a leaf keeps its bit when it is taken
        node = leaf.parent
        while node is not None:
            known = masks.get(node, node.mask)
            masks[node] = known if gpu in free else known & ~leaf.mask
            node = node.parent
    if tree.root is not None:
        masks.setdefault(tree.root, tree.root.mask)
        for child in tree.root.children:
            masks.setdefault(child, child.mask)
    return masks


def _lowest(mask: int, count: int) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1)[:count]


def _tree(links: Links, read: Callable[[LinkLevel], LinkLevel | None]) -> Tree:
    leaves = tuple(TreeNode(age=gpu, level=0, mask=1 << gpu) for gpu in range(links.gpu_count))
    nodes: dict[int, list[TreeNode]] = {level: [] for level in CLIMBED}
    made = len(leaves)
    for a, b in combinations(range(links.gpu_count), 2):
        told = links.levels[a][b]
        level = None if told is None else read(told)
        if level is None:
            continue
        pair = 1 << a | 1 << b
        overlapping = next((node for node in nodes[level] if node.mask & pair), None)
        if overlapping is not None:
            overlapping.mask |= pair
        else:
            nodes[level].append(TreeNode(age=made, level=level, mask=pair))
            made += 1
    root = _root(nodes, leaves, made)
    for leaf in leaves:
        _climb(leaf, nodes)
    for node in (*leaves, *(node for level in CLIMBED for node in nodes[level])):
        if node.parent is not None and node.parent is not root:
            node.parent.children.append(node)
    return Tree(root, leaves)


def _climb(leaf: TreeNode, nodes: Mapping[int, Sequence[TreeNode]]) -> None:
    node = leaf
    for level in CLIMBED:
        above = next((upper for upper in nodes[level] if upper.mask & node.mask), None)
        if above is not None:
            node.parent = above
            node = above


def _root(nodes: Mapping[int, Sequence[TreeNode]], leaves: Sequence[TreeNode], age: int) -> TreeNode | None:
    highest: Sequence[TreeNode] = next((nodes[level] for level in reversed(CLIMBED) if nodes[level]), ())
    if not highest and len(leaves) == 1:
        highest = leaves
    if not highest:
        return None
    root = TreeNode(age=age, level=max(CLIMBED) + 1, mask=0, children=list(highest))
    for node in highest:
        root.mask |= node.mask
        node.parent = root
    return root


def _as_printed(links: Links) -> Links:
    gpus = range(links.gpu_count)
    levels = tuple(tuple(None if links.nvlinks[a][b] else links.levels[a][b] for b in gpus) for a in gpus)
    return Links(levels, links.nvlinks, links.numa_nodes)
