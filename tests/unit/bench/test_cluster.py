"""The cluster bench: how it judges what was allocated, and the pods that it creates. No cluster is started."""

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


def claim(node: int, *ordinals: int) -> dict[str, Any]:
    pool = MadeUpNode(node).name
    results = [{"driver": DRIVER, "pool": pool, "device": gpu_uuid(node, ordinal).lower()} for ordinal in ordinals]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def test_made_up_nodes_publish_devices_of_their_own() -> None:
    names = [d["name"] for number in range(8) for d in MadeUpNode(number).slice_documents()[0]["spec"]["devices"]]
    assert len(names) == len(set(names)) == 64
    assert {MadeUpNode(number).kind for number in range(8)} == set(KINDS)


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


@pytest.mark.parametrize(
    ("nodes", "gated_ratio", "broken"),
    [(100, 1.0, [" with gates"]), (1_000, 2.5, [" with gates"]), (1_000, 3.5, []), (5_000, 2.9, [" with gates"])],
)
def test_pods_bound_per_second_are_judged_by_floors_of_their_own_with_gates(
    nodes: int, gated_ratio: float, broken: list[str]
) -> None:
    sides = (Side(ALONE, None), Side("ours", ()), Side("gated", (), gated=True))
    rates = {ALONE: 10.0, "ours": 30.0, "gated": 10 * gated_ratio}
    cpu_s = {"dracaena-controller": 1.0}
    outcomes = (
        Outcome(name, 60, 60 / rate, (), Calm(), 0, cpu_s, Allocated(None, 60, 8, 0), Memory(200, 300))
        for name, rate in rates.items()
    )
    judged = [each for each in section(nodes, sides, [Run(tuple(outcomes))]).floors if "per second" in each.name]
    assert len(judged) == 2
    assert [each.name for each in judged if not each.holds] == [
        f"pods bound per second{what}, {nodes:,} nodes, against {ALONE}" for what in broken
    ]
