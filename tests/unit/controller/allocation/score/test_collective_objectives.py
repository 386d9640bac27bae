from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.config.v1alpha1 import LinkBandwidth
from dracaena.api.links import LinkLevel
from dracaena.api.machine import Gpu
from dracaena.api.topology import Nic, Topology
from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of
from dracaena.controller.allocation.score.class_table import ClassTable
from dracaena.controller.allocation.score.collective import (
    collective,
    make_fabric,
    minimum_cut,
    nic_steps,
    pair_kb_s,
    pair_level,
)
from dracaena.controller.allocation.score.nominal_rates import gpu_rates, make_box
from support.allocation import blocks, matrix
from support.recorded import recorded_machines

MACHINES = {machine.name: machine for machine in recorded_machines()}


def box(topology: Topology, **traits: object) -> Box:
    gpus = {o: Gpu(uuid=f"GPU-{o}", index=o, **traits) for o in range(topology.gpu_count)}  # type: ignore[arg-type]
    return make_box(topology, gpus)


def recorded(name: str) -> Box:
    machine = MACHINES[name]
    return make_box(machine.topology, dict(enumerate(machine.gpus)))


def gb_s(made: Box, *ordinals: int, figures: LinkBandwidth | None = None) -> float:
    fabric = make_fabric(made, figures) if figures is not None else make_fabric(made)
    return collective(fabric, mask_of(ordinals)).kb_s / 1e6


VOLTA = recorded("dgx-1v")


@pytest.mark.parametrize(
    ("ordinals", "expected"),
    [((0,), 0), ((0, 3), 50), ((0, 1), 25), ((1, 2, 3), 75), ((0, 1, 2, 3), 100), (tuple(range(8)), 150)],
)
def test_bandwidth_on_a_dgx_1v_is_the_minimum_cut(ordinals: tuple[int, ...], expected: int) -> None:
    assert gb_s(VOLTA, *ordinals) == expected


@pytest.mark.parametrize(
    ("gpu", "nvlink", "links"),
    [
        (Gpu("", 0, nvlink_generation=1), 20, 4),
        (Gpu("", 0, nvlink_generation=2), 25, 6),
        (Gpu("", 0, nvlink_generation=3), 25, 12),
        (Gpu("", 0, product_name="NVIDIA A800-SXM4-80GB", nvlink_generation=3, nvlink_count=8), 25, 8),
        (Gpu("", 0, nvlink_generation=4), 25, 18),
        (Gpu("", 0, nvlink_generation=5), 50, 18),
        (Gpu("", 0, nvlink_generation=6), 50, 36),
        (Gpu("", 0, product_name="NVIDIA A40", nvlink_generation=3), 14.0625, 4),
        (Gpu("", 0, product_name="NVIDIA GeForce RTX 3090 Ti"), 14.0625, 4),
        (Gpu("", 0, cuda_compute_capability="8.6", nvlink_generation=3), 14.0625, 4),
        (Gpu("", 0, product_name="NVIDIA RTX A4000"), 25, 18),
        (Gpu("", 0, architecture="Pascal"), 20, 4),
        (Gpu("", 0, architecture="Blackwell"), 50, 18),
        (Gpu("", 0), 25, 18),
        (Gpu("", 0, nvlink_generation=99, nvlink_count=-3), 25, 18),
    ],
)
def test_a_link_is_worth_what_its_product_or_generation_says(gpu: Gpu, nvlink: float, links: int) -> None:
    found = gpu_rates(gpu)
    assert (found.nvlink_kb_s / 1e6, found.nvlinks) == (nvlink, links)


def test_the_slower_end_of_a_pair_decides() -> None:
    links = matrix("X NV4\nNV4 X")
    mixed = make_box(links, {0: Gpu("a", 0, nvlink_generation=5), 1: Gpu("b", 1, product_name="NVIDIA A40")})
    assert gb_s(mixed, 0, 1) == 56.25
    lanes = matrix("X PIX\nPIX X")
    mixed = make_box(lanes, {0: Gpu("a", 0, pcie_generation=5), 1: Gpu("b", 1, pcie_generation=4, pcie_width=8)})
    assert int(gb_s(mixed, 0, 1)) == 13


@pytest.mark.parametrize(("level", "expected"), [("PIX", 27), ("PXB", 27), ("PHB", 25), ("NODE", 23), ("SYS", 18)])
def test_pcie_is_worth_its_worst_level(level: str, expected: int) -> None:
    four = box(blocks(2, 2, inside="PIX", outside=level), pcie_generation=4, pcie_width=16)
    assert int(gb_s(four, 0, 1, 2, 3)) == expected
    assert int(gb_s(four, 0, 1)) == 27


def test_a_policy_replaces_the_figures_it_names_and_no_others() -> None:
    figures = LinkBandwidth(nvlink=10, sys=40)
    assert gb_s(VOLTA, 0, 3, figures=figures) == 20
    assert gb_s(VOLTA, 0, 5, figures=figures) == 40
    assert gb_s(recorded("a5000-pix-pxb"), 0, 1, figures=figures) == gb_s(recorded("a5000-pix-pxb"), 0, 1)
    assert gb_s(VOLTA, 0, 3, figures=LinkBandwidth(nvlink=0)) < 12


def test_behind_nvswitches_the_count_of_a_pair_is_one_uplink_and_no_sum() -> None:
    hopper = recorded("hgx-h100")
    assert hopper.switched == 0xFF
    assert [gb_s(hopper, *range(count)) for count in (2, 3, 8)] == [450, 450, 450]


def test_switches_are_recognised_in_a_part_of_the_machine_and_without_the_count_of_a_gpu() -> None:
    assert box(blocks(4, inside="NV12", outside="NV12")).switched == 0b1111
    assert box(blocks(3, inside="NV18", outside="NV18"), nvlink_count=18).switched == 0b111
    assert box(blocks(4, inside="NV6", outside="NV6"), architecture="Volta").switched == 0b1111
    assert box(blocks(4, inside="NV4", outside="NV4"), nvlink_count=12).switched == 0
    assert VOLTA.switched == 0
    # Two GPUs left of eight: the pair shows no more than a GPU has, and is worth the same either way.
    pair = box(blocks(2, inside="NV18", outside="NV18"), nvlink_count=18)
    assert (pair.switched, gb_s(pair, 0, 1)) == (0, 450)


def test_an_uplink_with_fewer_links_bounds_every_set_that_it_is_in() -> None:
    rows = [["X" if a == b else "NV16" if 3 in (a, b) else "NV18" for b in range(4)] for a in range(4)]
    links = matrix("\n".join(map(" ".join, rows)))
    counts = {o: Gpu(f"{o}", o, nvlink_count=16 if o == 3 else 18, nvlink_generation=4) for o in range(4)}
    uneven = make_box(links, counts)
    assert uneven.switched == 0b1111
    assert (gb_s(uneven, 0, 1, 2), gb_s(uneven, 0, 1, 3)) == (450, 400)


def test_a_mesh_next_to_switches_is_still_a_mesh() -> None:
    """Four GPUs behind switches and three in a ring of single links: only the first are switched."""
    inside = [[0, 1, 2, 3], [4, 5, 6]]
    group = {gpu: place for place, gpus in enumerate(inside) for gpu in gpus}
    rows = [
        ["X" if a == b else "SYS" if group[a] != group[b] else ("NV12", "NV1")[group[a]] for b in range(7)]
        for a in range(7)
    ]
    both = box(matrix("\n".join(map(" ".join, rows))), nvlink_count=12, nvlink_generation=3)
    assert both.switched == 0b1111
    assert gb_s(both, 4, 5, 6) == 50
    assert gb_s(both, 0, 1, 2) == 300
    assert gb_s(both, 0, 4) < 12


def test_a_pair_is_worth_its_better_way() -> None:
    fabric = make_fabric(VOLTA)
    assert [pair_kb_s(fabric, 0, other) // 1_000_000 for other in (1, 3, 5)] == [25, 50, 9]
    assert [pair_level(fabric, 0, other) for other in (3, 5)] == [LinkLevel.PSB, LinkLevel.SYS]


@pytest.mark.parametrize(
    ("ordinals", "expected"),
    [
        ((0,), 0),
        ((0, 3), 50),  # the pair
        ((0, 1, 3), 25),  # NV1, NV1, NV2
        ((0, 3, 4), 9),  # two double links whose ends meet across sockets
        ((0, 2, 4, 6), 25),
        ((0, 2, 3, 4), 9),
        (tuple(range(8)), 50),
    ],
)
def test_a_ring_on_a_dgx_1v_is_as_fast_as_its_slowest_hop(ordinals: tuple[int, ...], expected: int) -> None:
    assert ClassTable(VOLTA).ring_gb_s(mask_of(ordinals)) == expected


def test_behind_nvswitches_a_ring_is_the_uplink_and_on_a_tree_the_farthest_level() -> None:
    assert {ClassTable(recorded("hgx-h100")).ring_gb_s((1 << count) - 1) for count in (2, 3, 8)} == {450}
    tree = ClassTable(box(blocks(2, 2, inside="PIX", outside="SYS"), pcie_generation=4, pcie_width=16))
    assert [tree.ring_gb_s(mask) for mask in (0b0011, 0b0101, 0b0111, 0b1111)] == [27, 18, 18, 18]


def test_a_ring_may_go_over_nvlinks_and_pcie_by_turns() -> None:
    """Two bridges under two switches: the collective B is bound by the diagonals, the ring is not."""
    square = ClassTable(box(matrix("X NV4 PIX SYS\nNV4 X SYS PIX\nPIX SYS X NV4\nSYS PIX NV4 X")))
    assert (square.gb_s(0b1111), square.ring_gb_s(0b1111)) == (9, 13)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_on_a_box_of_too_many_gpus_the_ring_is_no_slower_than_the_best(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, bound = ClassTable(recorded(name)), ClassTable(recorded(name))
    monkeypatch.setattr(bound, "_rings", None)
    everything = (1 << exact.box.gpu_count) - 1
    reached = exact.box.switched == everything or not any(exact.box.nvlink_peers)
    for mask in range(1, 1 << min(8, exact.box.gpu_count)):
        assert bound.ring_kb_s(mask) >= exact.ring_kb_s(mask)
        if reached or mask.bit_count() < 4:  # behind switches, on trees, and where two neighbours are all others
            assert bound.ring_kb_s(mask) == exact.ring_kb_s(mask)


def test_on_a_tree_of_32_gpus_a_ring_is_bound_by_the_farthest_level() -> None:
    tree = ClassTable(box(blocks(8, 8, 8, 8, inside="PIX", outside="SYS")))
    assert [tree.ring_gb_s(mask) for mask in (0xFF, 0x7F, 0x1FF, 0xFFFF, 0x101)] == [13, 13, 9, 9, 9]


def test_unknown_numa_nodes_count_as_one() -> None:
    made = box(
        matrix("\n".join(" ".join("X" if a == b else "SYS" for b in range(4)) for a in range(4)), [5, None, None, 7])
    )
    table = ClassTable(made)
    assert [table.numa_nodes(mask) for mask in (0b0001, 0b0110, 0b0111, 0b1111)] == [1, 1, 2, 3]


def test_the_nearest_nic_counts_and_a_nic_of_the_same_numa_node_is_not_across_nodes() -> None:
    topology = Topology(
        gpu_count=3,
        pairs=matrix("X SYS SYS\nSYS X SYS\nSYS SYS X").pairs,
        numa_nodes=(0, 1, None),
        nics=(
            Nic("a", (LinkLevel.SYS, LinkLevel.PXB, None), numa_node=0),
            Nic("b", (LinkLevel.SYS, LinkLevel.PIX, None), numa_node=1),
        ),
    )
    assert [nic_steps(box(topology), ordinal) for ordinal in range(3)] == [4, 1, 5]


def test_names_and_numbers_that_no_choice_depends_on_make_no_class_of_their_own() -> None:
    links = matrix("X PIX\nPIX X").pairs
    nic = (LinkLevel.PIX, LinkLevel.NODE)
    one = Topology(2, links, (0, 1), (Nic("mlx5_0", nic), Nic("mlx5_1", (LinkLevel.SYS, LinkLevel.SYS))))
    other = Topology(2, links, (4, 2), (Nic("ib0", nic),))
    assert box(one) == box(other)
    assert hash(box(one)) == hash(box(other))
    assert box(one) != box(Topology(2, links, (0, 0), (Nic("ib0", nic),)))
    assert box(one) != box(other, pcie_generation=4)


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_the_classes_of_recorded_machines_hold_their_invariants(name: str) -> None:
    recorded(name).check()


@given(st.integers(2, 6).flatmap(lambda n: st.lists(st.integers(0, 9), min_size=n * n, max_size=n * n)))
def test_the_minimum_cut_is_the_least_of_all_cuts(values: list[int]) -> None:
    size = int(len(values) ** 0.5)
    weights = [[values[min(a, b) * size + max(a, b)] if a != b else 0 for b in range(size)] for a in range(size)]
    cuts = [
        sum(weights[a][b] for a in side for b in range(size) if b not in side)
        for count in range(1, size)
        for side in combinations(range(size), count)
    ]
    assert minimum_cut(weights) == min(cuts)


@pytest.mark.parametrize("name", ["dgx-1v", "h100-pcie-bridged-numa-3-5", "a5000-pix-pxb", "dgx-a100"])
def test_the_table_of_a_class_says_the_same_as_the_objectives(name: str) -> None:
    table = ClassTable(recorded(name))
    for mask in range(1, 256):
        found = collective(table.fabric, mask)
        assert table.kb_s(mask) == found.kb_s
        assert table.most_kb_s(mask) >= found.kb_s
        assert len(ordinals_of(mask)) == mask.bit_count()
    table.check()
