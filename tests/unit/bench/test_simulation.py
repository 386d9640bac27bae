from __future__ import annotations

from collections import Counter

import pytest

from bench.baselines import BASELINES
from bench.baselines.answer import Fault
from bench.machines import recorded
from bench.simulation import DAY_S, Cluster, Job, Placement, run, trace
from bench.systems import LEFT_OUT, baseline_system, baseline_systems, our_system

DGX_1V, PCIE = recorded("dgx-1v"), recorded("a5000-pix-pxb")


def test_a_trace_is_the_same_for_the_same_seed_and_offers_its_load() -> None:
    machines = [DGX_1V] * 4
    jobs = trace(machines, 0.7, seed=1)
    assert jobs == trace(machines, 0.7, seed=1) != trace(machines, 0.7, seed=2)
    asked = sum(job.gpus * job.duration_s for job in jobs)
    assert asked / (32 * DAY_S) == pytest.approx(0.7, rel=0.1)
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)


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


def test_a_baseline_that_refuses_on_one_node_is_asked_on_the_next_and_counted() -> None:
    outcome = run([PCIE, DGX_1V], [Job(0, 2, 1)], baseline_system(BASELINES["MAPA preserve"]))
    assert outcome.faults == {Fault.REFUSED: 1}
    assert outcome.placed_by_size == {2: 1}


def test_a_job_that_gets_too_many_gpus_holds_them_all() -> None:
    jobs = [Job(0, 3, 100), Job(10, 1, 1)]
    outcome = run([PCIE], jobs, baseline_system(BASELINES["topology tree"]))
    assert outcome.faults == {Fault.OVER_ALLOCATED: 1}
    assert outcome.wait_s_by_size[1] == 90


def test_every_baseline_is_a_system_or_left_out_with_a_reason() -> None:
    assert set(baseline_systems()) | set(LEFT_OUT) == set(BASELINES)
    assert not set(baseline_systems()) & set(LEFT_OUT)
