"""The cluster bench: how it judges what was allocated, and what it makes of the rounds. No cluster is started."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from bench.cluster.figures import ALONE, Run, section
from bench.cluster.processes import Memory
from bench.cluster.quality import Allocated, Judge
from bench.cluster.world import CALM_PODS, COUNTS, WORST_USE, Calm, Outcome, Side, mix, most_pods
from e2e.made_up_nodes import DRIVER, KINDS, MadeUpNode, gpu_uuid

OURS = Side("ours", ())
GATED = Side("ours with gates", (), gated=True)
SIDES = (Side(ALONE, None), OURS)


def claim(node: int, *ordinals: int) -> dict[str, Any]:
    pool = MadeUpNode(node).name
    results = [{"driver": DRIVER, "pool": pool, "device": gpu_uuid(node, ordinal).lower()} for ordinal in ordinals]
    return {"status": {"allocation": {"devices": {"results": results}}}}


OURS_HAS: dict[str, Any] = {
    "cpu_s": {"kube-apiserver": 2.0, "dracaena-controller": 1.0},
    "memory": Memory(90.0, 100.0),
    "idle_cpu_share": 0.01,
}


def outcome(side: str, pods: int, seconds: float, **fields: Any) -> Outcome:
    values: dict[str, Any] = {
        "latencies_s": [0.1, 0.2],
        "calm": Calm([0.1], [0.2]),
        "refused": 0,
        "cpu_s": {"kube-apiserver": 2.0},
        "allocated": Allocated(0.9, pods, 10, 0),
        **(OURS_HAS if side == "ours" else {}),
        **fields,
    }
    return Outcome(side=side, pods=pods, seconds=seconds, **values)


def test_made_up_nodes_publish_devices_of_their_own() -> None:
    names = [d["name"] for number in range(8) for d in MadeUpNode(number).slice_documents()[0]["spec"]["devices"]]
    assert len(names) == len(set(names)) == 64
    assert {MadeUpNode(number).kind for number in range(8)} == set(KINDS)


def test_only_the_devices_of_a_side_that_is_ours_are_tainted() -> None:
    for tainted in (True, False):
        devices = MadeUpNode(0).slice_documents(tainted=tainted)[0]["spec"]["devices"]
        assert [bool(device.get("taints")) for device in devices] == [tainted] * 8


def test_the_judge_gives_the_best_pair_the_whole_ideal_and_a_bad_pair_less() -> None:
    judge = Judge(4)
    assert KINDS[1] == "dgx-1v"
    best = judge.judge([claim(1, 0, 3)])
    assert best == Allocated(1.0, 1, 1, 0)
    bad = judge.judge([claim(1, 0, 7)])
    assert bad.share_of_ideal is not None
    assert bad.share_of_ideal < 0.5


def test_the_judge_counts_devices_that_were_given_twice() -> None:
    judge = Judge(4)
    assert judge.judge([claim(1, 0), claim(1, 1), claim(2, 0)]).twice == 0
    assert judge.judge([claim(1, 0, 1), claim(1, 1)]).twice == 1


def test_a_claim_of_one_gpu_says_nothing_about_links() -> None:
    assert Judge(4).judge([claim(1, 0), {"status": {}}]) == Allocated(None, 1, 1, 0)


def test_the_judge_refuses_a_device_that_nobody_published() -> None:
    with pytest.raises(KeyError):
        Judge(1).judge([claim(1, 0, 1)])


def test_every_side_gets_the_same_pods_in_the_same_order() -> None:
    assert mix(30, random.Random(1)) == mix(30, random.Random(1))
    assert Counter(mix(30, random.Random(1))) == dict.fromkeys(COUNTS, 10)


def test_all_pods_fit_however_they_are_placed() -> None:
    for nodes in (100, 1_000, 5_000):
        pods = most_pods(nodes) + CALM_PODS
        assert sum(mix(pods, random.Random(1))) <= nodes * WORST_USE


def test_a_run_counts_all_its_rounds() -> None:
    run = Run((outcome("ours", 100, 2.0), outcome("ours", 100, 3.0)))
    assert run.pods_per_s("ours") == 40.0


@pytest.mark.parametrize(("seconds", "holds", "goal"), [(3.0, True, True), (4.0, True, False), (6.0, False, False)])
def test_the_floor_is_judged_by_the_ratio_to_kube_scheduler_alone(seconds: float, holds: bool, goal: bool) -> None:
    run = Run((outcome(ALONE, 100, 10.0), outcome("ours", 100, seconds)))
    (floor,) = section(1_000, SIDES, [run]).floors
    assert floor.measured == pytest.approx(10.0 / seconds)
    assert (floor.holds, floor.reaches_goal) == (holds, goal)


@pytest.mark.parametrize(
    ("nodes", "rate", "calm"),
    [(100, (1.1, 1.5), (2.0, 1.3)), (1_000, (2.0, 3.0), (1.0, 0.7)), (5_000, (2.5, 5.0), (1.0, 0.4))],
)
def test_gates_are_judged_by_the_rate_of_the_burst_and_by_what_a_pod_waits_that_comes_alone(
    nodes: int, rate: tuple[float, float], calm: tuple[float, float]
) -> None:
    gated = {**OURS_HAS, "calm": Calm([0.1], [0.06, 0.06, 9.0])}
    run = Run(
        (
            outcome(ALONE, 100, 10.0, calm=Calm([0.1], [0.1, 0.1, 0.1])),
            outcome("ours", 100, 5.0),
            outcome("ours with gates", 100, 6.0, **gated),
        )
    )
    floors = {floor.name: floor for floor in section(nodes, (*SIDES, GATED), [run]).floors}
    burst = floors[f"pods bound per second with gates, {nodes:,} nodes, against {ALONE}"]
    assert (round(burst.measured, 2), burst.floor, burst.goal, burst.at_least) == (1.67, *rate, True)
    alone = floors[f"created to bound with gates, one by one, p50, {nodes:,} nodes, against {ALONE}"]
    assert (round(alone.measured, 2), alone.floor, alone.goal, alone.at_least) == (0.6, *calm, False)


def test_cpu_for_a_pod_is_told_by_program_for_those_at_once_and_for_those_one_by_one() -> None:
    calm = Calm([0.1] * 4, [0.2] * 4, {"kube-apiserver": 0.1, "kube-scheduler": 0.02})
    run = Run((outcome(ALONE, 100, 10.0, calm=calm), outcome("ours", 100, 5.0)))
    _, at_once, one_by_one = section(1_000, SIDES, [run]).tables
    assert at_once.header[:-1] == ("side", "dracaena-controller", "kube-apiserver", "all")
    assert [row[1:4] for row in at_once.rows] == [("-", "20.0", "20.0"), ("10.0", "20.0", "30.0")]
    assert one_by_one.header == ("side", "kube-apiserver", "kube-scheduler", "all")
    assert one_by_one.rows == ((ALONE, "25.0", "5.0", "30.0"), ("ours", "-", "-", "-"))


def test_memory_is_judged_by_the_most_of_all_rounds_at_5000_nodes() -> None:
    runs = [
        Run((outcome(ALONE, 100, 10.0), outcome("ours", 100, 2.0, memory=Memory(1.0, peak)))) for peak in (300.0, 600.0)
    ]
    memory = section(5_000, SIDES, runs).floors[1]
    assert (memory.measured, memory.holds) == (600.0, False)


def test_settings_can_be_compared_without_kube_scheduler_alone() -> None:
    sides = (OURS, Side("ours --workers=8", ("--workers=8",)))
    runs = [
        Run(
            (
                outcome("ours", 100, 10.0),
                outcome("ours --workers=8", 100, 5.0, cpu_s={"dracaena-controller": 1.0}, memory=Memory(1, 2)),
            )
        )
    ]
    found = section(1_000, sides, runs)
    assert found.floors == ()
    assert [row.ratio for row in found.rows] == [None] * len(found.rows)
