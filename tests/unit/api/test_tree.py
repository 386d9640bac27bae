from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.fabric import HGX_FABRIC
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.topology import Topology, TopologyError
from dracaena.api.tree import TreeNode, build_tree, render_tree
from support.machines import plain_machine, topologies
from support.topologies import topology_from_matrix


def shape(node: TreeNode) -> str:
    """`PHB:7(PIX:3 PIX:4)`; an assumed level has a `~`, leaves are left out."""
    name = "ROOT" if node.level is None else node.level.name
    inner = " ".join(shape(child) for child in node.children if not child.is_leaf)
    return f"{'~' if node.assumed else ''}{name}:{len(node.ordinals)}" + (f"({inner})" if inner else "")


def tree_of(*rows: str, numa_nodes: list[int | None] | None = None) -> TreeNode:
    tree = build_tree(topology_from_matrix([row.split() for row in rows], numa_nodes=numa_nodes))
    tree.check()
    return tree


def two_switches(a: int, b: int) -> str:
    return "X" if a == b else "PIX" if (a < 3) == (b < 3) else "PHB"


def test_seven_gpus_below_two_switches() -> None:
    tree = tree_of(*(" ".join(two_switches(a, b) for b in range(7)) for a in range(7)))
    assert shape(tree) == "ROOT:7(PHB:7(PIX:3 PIX:4))"


def test_gpus_without_partner_hang_below_the_level_that_joins_them() -> None:
    tree = tree_of("X PIX SYS", "PIX X SYS", "SYS SYS X")
    assert shape(tree) == "ROOT:3(SYS:3(PIX:2))"
    assert tree.children[0].children[1].is_leaf


def test_single_gpu_hangs_below_the_root() -> None:
    tree = tree_of("X")
    assert shape(tree) == "ROOT:1"
    assert not tree.is_leaf
    assert [child.is_leaf for child in tree.children] == [True]


def test_machine_without_gpus_is_a_bare_root() -> None:
    assert shape(tree_of()) == "ROOT:0"


def test_a_leaf_tells_the_mode_of_a_gpu_that_can_compute_confidentially() -> None:
    def leaf(**facts: object) -> str:
        return render_tree(plain_machine(1, **facts))[1]

    assert leaf(cc_capable=True, cc_mode="on").endswith("GPU0  CC on")
    assert leaf(cc_capable=True, cc_mode="off").endswith("GPU0  CC off")
    assert leaf(cc_capable=True).endswith("GPU0  CC ?")
    assert leaf(cc_capable=False, cc_mode="off").endswith("GPU0")
    assert leaf().endswith("GPU0")


def test_unknown_levels_join_by_numa_node_and_are_marked() -> None:
    rows = ["X NV18 NV18 NV18", "NV18 X NV18 NV18", "NV18 NV18 X NV18", "NV18 NV18 NV18 X"]
    assert shape(tree_of(*rows, numa_nodes=[0, 0, 1, 1])) == "ROOT:4(~SYS:4(~NODE:2 ~NODE:2))"
    assert shape(tree_of(*rows, numa_nodes=[0, 0, None, None])) == "ROOT:4(~SYS:4(~NODE:2))"


def test_a_branch_that_reported_levels_hold_together_is_not_assumed() -> None:
    tree = tree_of("X NODE NODE", "NODE X NV4", "NODE NV4 X", numa_nodes=[0, 0, 0])
    assert shape(tree) == "ROOT:3(NODE:3)"


def test_contradicting_pairs_join_early_and_lose_no_gpu() -> None:
    """0-1 and 1-2 are near, 0-2 is far: a builder that stops early cuts GPU 2 off."""
    tree = tree_of("X PIX SYS", "PIX X PIX", "SYS PIX X")
    assert shape(tree) == "ROOT:3(PIX:3)"


@given(topologies())
def test_any_matrix_gives_each_gpu_once_below_rising_levels(topology: Topology) -> None:
    build_tree(topology).check()


@st.composite
def ultrametric_topologies(draw: st.DrawFn) -> Topology:
    """Machines as PCIe builds them: each GPU has a path of places from the socket down to the board."""
    paths = draw(st.lists(st.tuples(*[st.integers(0, 1)] * len(LinkLevel)), min_size=1, max_size=10))
    levels = sorted(LinkLevel, reverse=True)
    pairs = []
    for a, b in combinations(paths, 2):
        differing = [level for level, left, right in zip(levels, a, b, strict=True) if left != right]
        pairs.append(Link(max(differing, default=LinkLevel.PSB), 0))
    return Topology(len(paths), tuple(pairs), (None,) * len(paths))


@given(ultrametric_topologies())
def test_in_a_real_pcie_tree_the_lowest_common_branch_is_the_level_of_the_pair(topology: Topology) -> None:
    tree = build_tree(topology)
    tree.check()
    for a, b in combinations(range(topology.gpu_count), 2):
        assert lowest_common_level(tree, a, b) is topology.link(a, b).level


def lowest_common_level(node: TreeNode, a: int, b: int) -> LinkLevel | None:
    for child in node.children:
        if a in child.ordinals and b in child.ordinals:
            return lowest_common_level(child, a, b)
    return node.level


@given(topologies(largest=7))
def test_branches_are_what_a_slow_closure_over_each_level_finds(topology: Topology) -> None:
    found = {}
    for node in branches(build_tree(topology)):
        found[frozenset(node.ordinals)] = node.level
    expected: dict[frozenset[int], LinkLevel] = {}
    for level in LinkLevel:
        for group in slow_groups(topology, level):
            if len(group) > 1:
                expected.setdefault(group, level)
    assert found == expected


def branches(node: TreeNode) -> list[TreeNode]:
    own = [node] if node.level is not None else []
    return own + [branch for child in node.children for branch in branches(child)]


def slow_groups(topology: Topology, level: LinkLevel) -> set[frozenset[int]]:
    groups = {frozenset([ordinal]) for ordinal in range(topology.gpu_count)}
    for _ in range(topology.gpu_count):
        for a, b in combinations(range(topology.gpu_count), 2):
            known = topology.link(a, b).level
            numa_a, numa_b = topology.numa_nodes[a], topology.numa_nodes[b]
            assumed = LinkLevel.NODE if numa_a is not None and numa_a == numa_b else LinkLevel.SYS
            if (assumed if known is None else known) <= level:
                touched = {group for group in groups if group & {a, b}}
                groups = groups - touched | {frozenset().union(*touched)}
    return groups


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (TreeNode(LinkLevel.SYS, False, (0,)), "root has level"),
        (TreeNode(None, False, (0, 1), (TreeNode(None, False, (0,)),)), "expected each of 2 GPUs once"),
        (
            TreeNode(
                None,
                False,
                (0, 1),
                (TreeNode(LinkLevel.PIX, False, (0, 1), (TreeNode(LinkLevel.SYS, False, (0, 1), (
                    TreeNode(None, False, (0,)), TreeNode(None, False, (1,)))),)),),
            ),
            "joins nothing",
        ),
    ],
)  # fmt: skip
def test_check_names_what_does_not_hold(broken: TreeNode, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        broken.check()


def test_tree_is_drawn_with_numbers_products_numa_nodes_nvlinks_and_labels() -> None:
    topology = topology_from_matrix(
        [["X", "NV2", "SYS"], ["NV2", "X", "SYS"], ["SYS", "SYS", "X"]], numa_nodes=[0, 0, None]
    )
    gpus = (Gpu("GPU-a", 4, product_name="A100"), Gpu("GPU-b", 5, product_name="A100"), Gpu("GPU-c", 6))
    assert render_tree(Machine("m", gpus, topology), {0: "claim default/train", 2: "free"}) == (
        "ROOT:3",
        "└─ SYS:3",
        "   ├─ NODE:2 (assumed)",
        "   │  ├─ GPU4  A100  NUMA 0  NV2 to GPU5  [claim default/train]",
        "   │  └─ GPU5  A100  NUMA 0  NV2 to GPU4",
        "   └─ GPU6  [free]",
    )


def test_where_whole_partitions_alone_are_linked_they_are_listed_and_no_peers() -> None:
    machine = plain_machine(8)
    gpus = tuple(replace(gpu, module_id=place) for place, gpu in enumerate(machine.gpus, start=1))
    shared = replace(machine, gpus=gpus, fabric=HGX_FABRIC)
    assert render_tree(shared)[-3:] == (
        "whole partitions of 8: GPU0-7",
        "whole partitions of 4: GPU0-3; GPU4-7",
        "whole partitions of 2: GPU0,GPU2; GPU1,GPU3; GPU4,GPU6; GPU5,GPU7",
    )
    assert not any("NV18" in line for line in render_tree(shared))
    labels = {place: "free" if place != 3 else "claim default/a" for place in range(8)}
    assert render_tree(shared, labels)[-3:] == (
        "whole partitions of 8: GPU0-7",
        "whole partitions of 4: GPU0-3; GPU4-7 [free]",
        "whole partitions of 2: GPU0,GPU2 [free]; GPU1,GPU3; GPU4,GPU6 [free]; GPU5,GPU7 [free]",
    )
    assert render_tree(machine) == render_tree(shared, partitions=())
