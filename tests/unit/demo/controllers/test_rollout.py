"""Sizes of replica sets on the way from one template to the next: nothing is broken on any way."""

from __future__ import annotations

import random

import pytest

from dracaena.api.objects import ObjectMeta
from dracaena.demo.controllers.rollout import Rollout, next_sizes
from dracaena.demo.objects import ReplicaSetDocument


def replica_set(name: str, size: int, available: int) -> ReplicaSetDocument:
    status = {"replicas": size, "availableReplicas": available}
    return ReplicaSetDocument(ObjectMeta(name, uid=name), {"replicas": size}, status)


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "read"),
    [(4, "25%", "25%", (1, 1)), (1, "25%", "25%", (1, 0)), (5, "50%", "50%", (3, 2)), (3, 2, 0, (2, 0))],
)
def test_percentages_of_surge_are_rounded_up_and_of_missing_pods_down(
    replicas: int, surge: int | str, unavailable: int | str, read: tuple[int, int]
) -> None:
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    rollout = Rollout.of({"replicas": replicas, "strategy": strategy})
    assert (rollout.surge, rollout.unavailable) == read


def test_where_nothing_may_be_more_or_missing_one_may_be_missing() -> None:
    strategy = {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "10%"}}
    assert Rollout.of({"replicas": 3, "strategy": strategy}).unavailable == 1


@pytest.mark.parametrize("seed", range(60))
def test_every_rollout_ends_and_breaks_no_bound(seed: int) -> None:
    rng = random.Random(seed)
    replicas, surge = rng.randrange(0, 9), rng.randrange(0, 4)
    rollout = Rollout(replicas, surge, rng.randrange(0, 4) if surge else rng.randrange(1, 4), recreates=False)
    sizes = {"new": 0, "old": rng.randrange(0, replicas + 1)}
    sizes["older"] = replicas - sizes["old"]
    available = dict(sizes)
    most, least = replicas + surge, replicas - rollout.unavailable
    for _ in range(500):
        old = [replica_set(name, sizes[name], available[name]) for name in ("older", "old")]
        wanted = next_sizes(rollout, replica_set("new", sizes["new"], available["new"]), old)
        assert sum(wanted.values()) <= most
        deleted = {name: max(0, sizes[name] - wanted[name]) for name in sizes}
        # Pods that do not run go first, as the replica set controller has it.
        available = {name: min(available[name], sizes[name] - deleted[name]) for name in sizes}
        assert sum(available.values()) >= min(least, replicas)
        sizes = wanted
        if sizes == {"new": replicas, "old": 0, "older": 0} and available["new"] == replicas:
            return
        coming = [name for name in sizes if available[name] < sizes[name]]
        if coming and rng.random() < 0.7:
            available[rng.choice(coming)] += 1
    raise AssertionError(f"it did not end: {sizes}, {available}")


def test_a_deployment_that_recreates_waits_for_the_last_old_pod() -> None:
    rollout = Rollout(2, 0, 0, recreates=True)
    new, old = replica_set("new", 0, 0), replica_set("old", 2, 2)
    assert next_sizes(rollout, new, [old]) == {"old": 0, "new": 0}
    going = ReplicaSetDocument(old.metadata, {"replicas": 0}, {"replicas": 0, "terminatingReplicas": 1})
    assert next_sizes(rollout, new, [going]) == {"old": 0, "new": 0}
    gone = ReplicaSetDocument(old.metadata, {"replicas": 0}, {"replicas": 0})
    assert next_sizes(rollout, new, [gone]) == {"old": 0, "new": 2}


def test_pods_that_do_not_run_stay_while_the_new_ones_do_not_run_either() -> None:
    rollout = Rollout(3, surge=1, unavailable=1, recreates=False)
    old = replica_set("old", 1, 0)
    assert next_sizes(rollout, replica_set("new", 3, 0), [old]) == {"old": 1, "new": 3}
    assert next_sizes(rollout, replica_set("new", 3, 2), [old]) == {"old": 0, "new": 3}
