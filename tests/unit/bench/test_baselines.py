"""Each rule of the systems before us, and each of their known flaws, on machines of our own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.bench.drawn_links import DGX_1V, FLAT_4, PIX_PAIRS, bridged, tree

from bench.baselines import BASELINES, go_gpuallocator, gpu_manager, gsoc, hami, koordinator, mapa, topology_tree
from bench.baselines.answer import Answer, Fault, Links
from bench.baselines.go_gpuallocator import NIL, best_effort, iterate_partitions, partition_count
from bench.baselines.pair_points import pair_points
from bench.machines import recorded

ALL_8 = tuple(range(8))


def free_but(*used: int, count: int = 8) -> tuple[int, ...]:
    return tuple(gpu for gpu in range(count) if gpu not in used)


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in {"gpu-manager on text", "GSoC simple"}])
def test_more_gpus_than_are_free_are_refused(name: str) -> None:
    assert BASELINES[name](PIX_PAIRS, (1, 2), 3) == Answer(fault=Fault.REFUSED)


@given(st.sets(st.sampled_from(ALL_8), min_size=1), st.data())
def test_what_is_handed_out_without_a_fault_is_free_and_as_many_as_asked_for(
    free: set[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(free)))
    for name, choose in BASELINES.items():
        for links in (DGX_1V, PIX_PAIRS):
            answer = choose(links, tuple(sorted(free)), count)
            if answer.fault is None:
                assert len(answer.gpus) == count, name
                assert set(answer.gpus) <= free, name


def test_first_fit_takes_the_lowest_and_volcano_the_highest() -> None:
    assert BASELINES["first fit"](PIX_PAIRS, (1, 4, 6, 7), 2).gpus == (1, 4)
    assert BASELINES["highest first"](PIX_PAIRS, (1, 4, 6, 7), 2).gpus == (6, 7)


# go-gpuallocator


def test_go_adds_all_links_of_a_pair_up() -> None:
    points = pair_points(DGX_1V, through_switches=False)
    assert (points[0][3], points[0][1], points[0][5], points[2][3]) == (230, 150, 10, 250)


def test_go_takes_the_best_set_of_the_best_partition() -> None:
    assert go_gpuallocator.choose_best_effort(DGX_1V, ALL_8, 2).gpus == (0, 3)
    assert go_gpuallocator.choose_best_effort(DGX_1V, ALL_8, 4).gpus == (0, 1, 2, 3)


def test_go_hands_out_a_set_that_is_not_the_best_one() -> None:
    points = pair_points(DGX_1V, through_switches=False)
    chosen = go_gpuallocator.choose_best_effort(DGX_1V, (0, 1, 2, 3, 6), 3).gpus
    assert chosen == (0, 1, 3)
    assert sum(points[a][b] for a, b in [(0, 1), (0, 3), (1, 3)]) == 510
    assert sum(points[a][b] for a, b in [(0, 2), (0, 3), (2, 3)]) == 610


def test_go_hands_out_a_nil_when_the_padded_set_wins() -> None:
    five = bridged(tree((1,), (1,), (1,), (1,), (1,)), {(3, 4): 12})
    answer = go_gpuallocator.choose_best_effort(five, (0, 1, 2, 3, 4), 3)
    assert answer == Answer((3, 4, NIL), Fault.CRASHED)
    machine = recorded("h100-pcie-bridged-numa-3-5")
    assert go_gpuallocator.choose_best_effort(machine.links, (1, 2, 3, 5, 6), 3).fault is Fault.CRASHED


def test_go_forgets_its_best_partition_of_seven_sets() -> None:
    """The array that holds it is shared with the partitions that are walked after it."""
    twelve, fourteen = (
        pair_points(bridged(tree(*[(1,)] * count), {(a, a + 1): 2 for a in range(0, count, 2)}), through_switches=False)
        for count in (12, 14)
    )
    assert best_effort(twelve, range(12), [8], 2, None).gpus == (8, 9)
    assert best_effort(fourteen, range(14), [10], 2, None).gpus == (10, 13)


def test_go_counts_no_link_that_ends_at_a_switch() -> None:
    switched = bridged(PIX_PAIRS, {(a, b): 12 for a in ALL_8 for b in ALL_8 if a < b}, switched=True)
    assert pair_points(switched, through_switches=False) == pair_points(PIX_PAIRS, through_switches=False)
    assert pair_points(switched, through_switches=True)[0][7] == 1210


def test_go_breaks_pairs_with_single_gpus() -> None:
    cards = bridged(tree((1, 1), (1, 1), socket="NODE"), {(0, 3): 2, (1, 2): 2})
    taken = [go_gpuallocator.choose_best_effort(cards, free_but(*range(used), count=4), 1).gpus for used in range(2)]
    assert taken == [(0,), (1,)]
    assert go_gpuallocator.choose_best_effort(cards, (2, 3), 2).gpus == (2, 3)


def test_go_prefers_a_sum_of_pairs_that_no_ring_can_use() -> None:
    six = bridged(tree((1, 1, 1), (1, 1, 1), socket="SYS"), {(0, 1): 2, (1, 2): 2, (3, 4): 1, (4, 5): 1, (3, 5): 1})
    assert go_gpuallocator.choose_best_effort(six, free_but(count=6), 3).gpus == (0, 1, 2)


@pytest.mark.parametrize(
    ("gpus", "size", "count"),
    [(8, 2, 105), (12, 3, 15_400), (14, 2, 135_135), (16, 2, 2_027_025), (16, 4, 2_627_625), (5, 3, 10), (4, 4, 1)],
)
def test_go_walks_so_many_partitions(gpus: int, size: int, count: int) -> None:
    assert partition_count(gpus, size) == count
    if count <= 105:
        assert len(iterate_partitions(range(gpus), size)) == count


def test_go_walks_sixteen_gpus_by_threes_twenty_two_million_times() -> None:
    assert 2.2e7 < partition_count(16, 3) < 2.3e7
    assert go_gpuallocator.choose_best_effort(recorded("dgx-2").links, tuple(range(16)), 3).fault is Fault.NOT_RUN


def test_a_static_policy_has_its_sets_and_no_other_size() -> None:
    volta = replace(DGX_1V, product="Tesla V100-SXM2-16GB")
    assert go_gpuallocator.choose_static(volta, free_but(0), 2).gpus == (1, 2)
    assert go_gpuallocator.choose_static(volta, ALL_8, 3).fault is Fault.REFUSED
    assert go_gpuallocator.choose_static(volta, free_but(0, 4), 4).fault is Fault.REFUSED
    assert go_gpuallocator.choose_static(PIX_PAIRS, ALL_8, 2).fault is Fault.REFUSED


# gpu-manager


def test_gpu_manager_takes_the_nearest_level_and_then_the_fewest_free() -> None:
    assert gpu_manager.choose(PIX_PAIRS, ALL_8, 2).gpus == (0, 1)
    assert gpu_manager.choose(PIX_PAIRS, free_but(0), 2).gpus == (2, 3)
    assert gpu_manager.choose(PIX_PAIRS, free_but(0, 2, 4), 3).gpus == (5, 6, 7)
    assert gpu_manager.choose(PIX_PAIRS, free_but(0, 1), 2).gpus == (2, 3)


def test_gpu_manager_takes_one_card_from_what_is_broken() -> None:
    assert gpu_manager.choose(PIX_PAIRS, free_but(2), 1).gpus == (3,)


def test_gpu_manager_breaks_a_pair_with_the_lowest_indices() -> None:
    assert gpu_manager.choose(PIX_PAIRS, free_but(6), 5).gpus == (0, 1, 2, 3, 4)


def test_gpu_manager_does_not_see_nvlinks() -> None:
    assert gpu_manager.choose(DGX_1V, ALL_8, 2) == gpu_manager.choose(PIX_PAIRS, ALL_8, 2)


def test_gpu_manager_shares_the_fullest_card_that_fits() -> None:
    assert gpu_manager.share({0: 50, 1: 100, 2: 30}, 40).gpus == (0,)
    assert gpu_manager.share({0: 50, 1: 100, 2: 30}, 60).gpus == (1,)
    assert gpu_manager.share({0: 50}, 60).fault is Fault.REFUSED


def contradictory(*pix: tuple[int, int], count: int) -> Links:
    """PIX for some pairs although that is not transitive, SYS for the others."""
    base = tree(*[(1,)] * count)
    near = [[base.levels[a][b] for b in range(count)] for a in range(count)]
    pix_level = PIX_PAIRS.levels[0][1]
    for a, b in pix:
        near[a][b] = near[b][a] = pix_level
    return replace(base, levels=tuple(map(tuple, near)))


def test_gpu_manager_hands_out_a_gpu_in_use_where_levels_contradict_each_other() -> None:
    """GPU 2 is in the masks of two switches and climbs through the first, so the second keeps it when it is taken."""
    links = contradictory((0, 3), (1, 2), (2, 3), count=4)
    assert gpu_manager.choose(links, (0, 1), 2) == Answer((1, 2), Fault.IN_USE)


def test_gpu_manager_loses_gpus_of_a_printed_matrix() -> None:
    """NV# hides the level, and SYS is no word that it knows."""
    links = bridged(tree((2,), (1,), (1,)), {(2, 3): 4})
    assert gpu_manager.choose_on_text(links, (0, 2), 1).gpus == (0,)
    assert gpu_manager.choose_on_text(links, (2, 3), 1).fault is Fault.CUT_APART
    assert gpu_manager.choose_on_text(links, (0, 1, 2, 3), 2).fault is Fault.CRASHED


def test_gpu_manager_does_not_start_on_a_printed_matrix_without_a_known_level() -> None:
    assert gpu_manager.choose_on_text(recorded("hgx-h100").links, ALL_8, 2).fault is Fault.CRASHED


# HAMi


def test_hami_takes_the_most_points_whatever_is_left() -> None:
    assert hami.choose(DGX_1V, ALL_8, 2).gpus == (6, 7)
    assert hami.choose(DGX_1V, (0, 1, 2, 3), 2).gpus == (2, 3), "leaves a single NVLink where 0-3 would leave two"


def test_hami_takes_the_one_gpu_that_is_linked_worst() -> None:
    five = bridged(tree((2, 2, 1)), {})
    assert hami.choose(five, free_but(count=5), 1).gpus == (4,)
    assert hami.choose(FLAT_4, free_but(count=4), 1).gpus == (3,), "ties go to the first in reverse order"


def test_hami_keeps_to_one_numa_node_by_starting_over() -> None:
    assert hami.numa_bound([0, 0, 1], range(3), 2).gpus == (0, 1)
    assert hami.numa_bound([0, 1, 0], range(3), 2).fault is Fault.REFUSED


# koordinator


def test_koordinator_takes_the_deepest_scope_and_of_equals_the_used_one() -> None:
    assert koordinator.choose(PIX_PAIRS, free_but(5), 1).gpus == (4,)
    assert koordinator.choose(PIX_PAIRS, free_but(5), 2).gpus == (6, 7)
    assert koordinator.choose(PIX_PAIRS, free_but(5), 4).gpus == (0, 1, 2, 3)


def test_koordinator_breaks_a_pair_in_a_wide_scope() -> None:
    assert koordinator.choose(PIX_PAIRS, free_but(6), 5).gpus == (0, 1, 2, 3, 4)


def test_koordinator_takes_the_partition_that_leaves_most_whole_ones() -> None:
    assert koordinator.by_partition(free_but(4), 1).gpus == (5,)
    assert koordinator.by_partition(free_but(4), 2).gpus == (6, 7)
    assert koordinator.by_partition(free_but(0, 4), 4).fault is Fault.REFUSED
    assert koordinator.by_partition(free_but(0), 3).fault is Fault.REFUSED


def test_koordinator_goes_on_to_scopes_unless_the_table_is_to_be_honoured() -> None:
    hopper = recorded("hgx-h100").links
    assert koordinator.choose(hopper, free_but(2, 3), 3).gpus == (4, 5, 6)
    assert koordinator.choose_by_table(hopper, free_but(2, 3), 3).fault is Fault.REFUSED


# GSoC


def test_gsoc_prefers_the_farthest_pair() -> None:
    pairs = gsoc.choose_best_effort(PIX_PAIRS, (0, 1, 2, 4), 2).gpus
    assert pairs in {(0, 4), (1, 4), (2, 4)}


def test_gsoc_simple_stops_at_gpus_in_use() -> None:
    assert gsoc.choose_simple(PIX_PAIRS, free_but(1), 3) == Answer((0, 2), Fault.SHORT)
    assert gsoc.choose_simple(PIX_PAIRS, ALL_8, 3).gpus == (0, 1, 2)


# The topology tree


@pytest.mark.parametrize(("count", "gpus"), [(2, (0, 1)), (4, (0, 1, 2, 3)), (8, ALL_8)])
def test_the_topology_tree_takes_whole_branches(count: int, gpus: tuple[int, ...]) -> None:
    assert topology_tree.choose(PIX_PAIRS, ALL_8, count).gpus == gpus


@pytest.mark.parametrize("count", [3, 5, 6])
def test_the_topology_tree_hands_out_all_when_no_branch_fits(count: int) -> None:
    assert topology_tree.choose(PIX_PAIRS, ALL_8, count) == Answer(ALL_8, Fault.OVER_ALLOCATED)


def test_the_topology_tree_scores_a_branch_by_pairs_over_gpus() -> None:
    root = topology_tree.tree_of(PIX_PAIRS)
    scores = [topology_tree.branch_score(PIX_PAIRS, branch, ALL_8) for branch in (root, root.children[0])]
    assert [*scores, topology_tree.branch_score(PIX_PAIRS, root.children[0].children[0], ALL_8)] == [7.5, 5.5, 2.5]


def test_the_topology_tree_prunes_the_socket_that_has_the_pair() -> None:
    """Four cards on root ports of their own score higher than a pair and a half, and none of their branches fits."""
    links = tree((1, 1, 1, 1), (2, 2))
    assert topology_tree.choose(links, free_but(7), 2) == Answer((0, 1, 2, 3), Fault.OVER_ALLOCATED)


def test_the_topology_tree_finishes_broken_pairs_first() -> None:
    taken: list[int] = []
    while len(taken) < 8:
        taken += topology_tree.choose(PIX_PAIRS, free_but(*taken), 1).gpus
    assert taken == list(ALL_8)


# MAPA


def test_mapa_predicts_more_for_no_ring_than_for_a_ring_over_pcie() -> None:
    assert [round(mapa.predicted(0, 0, edges), 2) for edges in (0, 2, 3)] == [12.34, 10.37, 11.29]


def test_mapa_refuses_small_jobs_on_pcie() -> None:
    assert [mapa.choose(PIX_PAIRS, ALL_8, count).fault for count in (2, 3)] == [Fault.REFUSED, Fault.REFUSED]
    assert mapa.choose(PIX_PAIRS, ALL_8, 4).fault is None


def test_mapa_refuses_the_last_gpu_because_nothing_is_left_to_preserve() -> None:
    assert mapa.choose(DGX_1V, (5,), 1).fault is Fault.REFUSED
    assert mapa.choose(DGX_1V, (0, 3, 5), 1).gpus == (5,)


def test_mapa_takes_the_ring_with_the_highest_prediction() -> None:
    assert mapa.choose(DGX_1V, (0, 1, 3), 2).gpus == (0, 3)


# In all states of one machine


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("first fit", {}),
        ("go best-effort", {}),
        ("HAMi", {}),
        ("koordinator", {}),
        ("gpu-manager", {}),
        ("topology tree", {Fault.OVER_ALLOCATED: 178}),
        ("MAPA preserve", {Fault.REFUSED: 46}),
    ],
)
def test_faults_in_all_states_of_a_dgx_1v(name: str, counts: dict[Fault, int]) -> None:
    found: dict[Fault, int] = {}
    for mask in range(256):
        free = tuple(gpu for gpu in ALL_8 if mask >> gpu & 1)
        for count in range(2, len(free) + 1):
            fault = BASELINES[name](DGX_1V, free, count).fault
            if fault is not None:
                found[fault] = found.get(fault, 0) + 1
    assert found == counts
