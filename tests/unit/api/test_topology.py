from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.links import UNKNOWN_LINK, Link, LinkLevel
from dracaena.api.topology import Nic, Topology, TopologyError
from support.topologies import topology_from_matrix

TOKENS = st.sampled_from(["PSB", "PIX", "PXB", "PHB", "NODE", "SYS", "?", "NV1", "NV18"])


@st.composite
def matrices(draw: st.DrawFn, largest: int = 9) -> list[list[str]]:
    """Symmetric rows of tokens, contradictory ones among them."""
    count = draw(st.integers(0, largest))
    rows = [["X"] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        rows[a][b] = rows[b][a] = draw(TOKENS)
    return rows


@given(matrices())
def test_matrix_comes_back_as_it_went_in(rows: list[list[str]]) -> None:
    topology = topology_from_matrix(rows)
    topology.check()
    assert [list(row) for row in topology.matrix()] == rows


@given(matrices())
def test_link_is_the_cell_of_the_matrix_in_either_order(rows: list[list[str]]) -> None:
    topology = topology_from_matrix(rows)
    for a, b in combinations(range(len(rows)), 2):
        assert topology.link(a, b) == topology.link(b, a)
        assert topology.link(a, b).token == rows[a][b]


def test_nvlink_hides_the_level_and_a_level_means_no_nvlink() -> None:
    topology = topology_from_matrix([["X", "NV4", "PIX"], ["NV4", "X", "?"], ["PIX", "?", "X"]])
    assert topology.link(0, 1) == Link(level=None, nvlinks=4)
    assert topology.link(0, 2) == Link(level=LinkLevel.PIX, nvlinks=0)
    assert topology.link(1, 2) == UNKNOWN_LINK
    assert topology.nvlink_peers(0) == (1,)
    assert topology.nvlink_peers(2) == ()


def test_unknown_level_is_assumed_by_numa_node_a_known_one_never() -> None:
    rows = [["X", "NV4", "NV4", "PIX"], ["NV4", "X", "NV4", "NV4"], ["NV4", "NV4", "X", "?"], ["PIX", "NV4", "?", "X"]]
    topology = topology_from_matrix(rows, numa_nodes=[0, 0, 1, None])
    levels = {pair: topology.level_or_assumed(*pair).name for pair in combinations(range(4), 2)}
    assert levels == {
        (0, 1): "NODE",
        (0, 2): "SYS",
        (0, 3): "PIX",
        (1, 2): "SYS",
        (1, 3): "SYS",
        (2, 3): "SYS",
    }


def test_soc_of_old_tools_crosses_sockets() -> None:
    assert topology_from_matrix([["X", "SOC"], ["SOC", "X"]]).link(0, 1).level is LinkLevel.SYS


def test_levels_are_nvml_numbers_from_near_to_far() -> None:
    assert [level.value for level in LinkLevel] == [0, 10, 20, 30, 40, 50]
    assert sorted(LinkLevel) == list(LinkLevel)


PAIR = (Link(LinkLevel.PIX, 0),)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (Topology(3, PAIR, (0, 0, 0)), "3 GPUs have 3 pairs, got 1"),
        (Topology(2, PAIR, (0,)), "NUMA nodes of 1"),
        (Topology(2, PAIR, (0, -1)), "NUMA node -1 is negative"),
        (Topology(2, (Link(None, -1),), (0, 0)), "-1 NVLinks"),
        (Topology(2, PAIR, (0, 0), (Nic("NIC0", (None,)),)), "NIC0 has levels to 1 of 2 GPUs"),
        (Topology(2, PAIR, (0, 0), (Nic("a", (None, None)),) * 2), "two NICs share a name: a, a"),
    ],
)
def test_check_names_the_invariant_that_does_not_hold(topology: Topology, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topology.check()
    assert message in str(caught.value)


def test_pair_outside_of_the_matrix_is_an_error() -> None:
    topology = Topology(2, PAIR, (0, 0))
    for a, b in ((0, 0), (0, 2), (-1, 1)):
        with pytest.raises(IndexError):
            topology.link(a, b)
