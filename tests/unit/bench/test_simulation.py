from __future__ import annotations

from collections import Counter

import pytest
from unit.bench.drawn_links import PIX_PAIRS

from bench.baselines import BASELINES
from bench.baselines.answer import Fault, Links
from bench.machines import recorded
from bench.simulation import DAY_S, Cluster, Job, Node, Placement, run, trace
from bench.systems import LEFT_OUT, baseline_system, baseline_systems, our_system, topology_tree_likes
from bench.worth import GpuSet
from dracaena.controller.allocation.state.size_demand import SizeDemand

DGX_1V, PCIE, HOPPER = recorded("dgx-1v"), recorded("a5000-pix-pxb"), recorded("hgx-h100")
BRIDGED = recorded("h100-pcie-bridged-numa-3-5")


def test_a_trace_is_the_same_for_the_same_seed_and_offers_its_load() -> None:
    machines = [DGX_1V] * 4
    jobs = trace(machines, 0.7, seed=1)
    assert jobs == trace(machines, 0.7, seed=1) != trace(machines, 0.7, seed=2)
    asked = sum(job.gpus * job.duration_s for job in jobs)
    assert asked / (32 * DAY_S) == pytest.approx(0.7, rel=0.1)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)


def test_a_trace_asks_for_no_more_than_the_largest_machine_has() -> None:
    assert {job.gpus for job in trace([recorded("a100-pcie-pairs-cross-numa")] * 4, 0.7, seed=1)} == {1, 2, 4}


@pytest.mark.parametrize("system", ["ours", *baseline_systems()])
def test_no_gpu_is_held_by_two_jobs(system: str) -> None:
    inner = our_system() if system == "ours" else baseline_systems()[system]

    def checked(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        for index, node in enumerate(cluster.nodes):
            assert len(set(node.free)) == len(node.free)
            assert index in cluster.indices[node]
        assert sum(map(len, cluster.indices.values())) == len(cluster.nodes)
        assert cluster.stranded_gpus == sum(len(node.free) for node in cluster.nodes if len(node.free) < 4)
        placement = inner(cluster, count, faults)
        if placement is not None:
            assert set(placement.gpus) <= set(cluster.nodes[placement.node].free)
            assert len(placement.gpus) >= count
        return placement

    jobs = trace([DGX_1V, PCIE], 0.9, seed=3)
    outcome = run([DGX_1V, PCIE], jobs, checked)
    assert sum(outcome.placed_by_size.values()) + outcome.never_placed == len(jobs)


def test_a_job_waits_until_enough_gpus_are_free_and_a_smaller_one_overtakes() -> None:
    jobs = [Job(0, 4, 100), Job(10, 8, 50), Job(20, 4, 30)]
    outcome = run([DGX_1V], jobs, our_system())
    assert outcome.wait_s_by_size == {4: 0, 8: 90}
    assert outcome.wait_s == 90
    assert outcome.waited_by_size == {8: 1}


def test_links_are_counted_against_the_best_of_the_class() -> None:
    def worst(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        return Placement(0, (0, 7))

    outcome = run([DGX_1V], [Job(0, 2, 1)], worst)
    assert outcome.mean_ratio == 9 / 50
    assert (outcome.could_be_one_group, outcome.are_one_group, outcome.group_share) == (1, 0, 0.0)


def test_what_jobs_have_and_wait_for_is_what_the_controller_sees() -> None:
    seen = []

    def first(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        seen.append((cluster.now_s, dict(+cluster.gpus_asked), cluster.shares()))
        return Placement(0, cluster.nodes[0].free[:count]) if len(cluster.nodes[0].free) >= count else None

    run([DGX_1V], [Job(0, 4, 100), Job(10, 8, 50)], first)
    assert [(at_s, asked) for at_s, asked, _ in seen] == [(0, {4: 4}), (10, {4: 4, 8: 8}), (100, {8: 8})]
    sizes = SizeDemand()
    looks: list[tuple[float, dict[int, int]]] = [(0, {}), (10, {4: 4, 8: 8}), (100, {8: 8})]
    assert [shares for _, _, shares in seen] == [sizes.shares(asked, at_s) for at_s, asked in looks]


def test_free_gpus_on_nodes_with_few_of_them_are_counted_over_the_time_in_which_jobs_come() -> None:
    def first(cluster: Cluster, count: int, faults: Counter[Fault]) -> Placement | None:
        return Placement(0, cluster.nodes[0].free[:count])

    outcome = run([DGX_1V], [Job(0, 6, 10), Job(40, 1, 1)], first)
    assert (outcome.stranded_gpu_s, outcome.time_s, outcome.mean_stranded_gpus) == (20, 40, 0.5)


def test_a_baseline_that_refuses_on_one_node_is_asked_on_the_next_and_counted() -> None:
    outcome = run([PCIE, DGX_1V], [Job(0, 2, 1)], baseline_system(BASELINES["MAPA preserve"]))
    assert outcome.faults == {Fault.REFUSED: 1}
    assert outcome.placed_by_size == {2: 1}


def test_a_job_that_gets_too_many_gpus_holds_them_all() -> None:
    jobs = [Job(0, 3, 100), Job(10, 1, 1)]
    outcome = run([PCIE], jobs, baseline_system(BASELINES["topology tree"]))
    assert outcome.faults == {Fault.OVER_ALLOCATED: 1}
    assert outcome.wait_s_by_size[1] == 90


def test_a_baseline_takes_the_node_that_its_system_likes() -> None:
    nodes = Cluster([Node(PCIE, (0, 1)), Node(PCIE, (0, 1, 2))])
    by_first = baseline_system(BASELINES["topology tree"])
    by_rule = baseline_system(BASELINES["topology tree"], topology_tree_likes)
    chosen = [place(nodes, 1, Counter()) for place in (by_first, by_rule)]
    assert [placement and placement.node for placement in chosen] == [0, 1], "an odd number left is liked"


def test_the_topology_tree_likes_near_pairs() -> None:
    def likes(links: Links, free: GpuSet) -> float:
        return topology_tree_likes(links, free, 2)

    assert likes(PIX_PAIRS, (0, 1)) == 5 > likes(PIX_PAIRS, (0, 1, 4)) > likes(PIX_PAIRS, (0, 4)) == 1


def test_ours_leaves_the_faster_class_to_those_who_ask_for_it_and_takes_the_fuller_node_of_equals() -> None:
    for asked, node in (({}, 0), ({8: 800}, 1)):
        nodes = Cluster([Node(HOPPER, tuple(range(8))), Node(BRIDGED, tuple(range(8)))])
        nodes.gpus_asked.update(asked)
        nodes.now_s = 3_600.0
        placement = our_system()(nodes, 2, Counter())
        assert placement is not None
        assert placement.node == node
    halves = Cluster([Node(HOPPER, tuple(range(8))), Node(HOPPER, (0, 1, 2, 3))])
    placement = our_system()(halves, 4, Counter())
    assert placement is not None
    assert placement.node == 1


def test_every_baseline_is_a_system_or_left_out_with_a_reason() -> None:
    assert set(baseline_systems()) | set(LEFT_OUT) == set(BASELINES)
    assert not set(baseline_systems()) & set(LEFT_OUT)
