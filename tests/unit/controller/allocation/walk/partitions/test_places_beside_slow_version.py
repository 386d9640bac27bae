"""Where parts of GPUs go, decided by the allocator over many nodes, against a slow version that tries every way."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.result import Allocation
from support.allocation import pod
from support.random_parts import RandomParts, sort
from support.seeds import sampled
from support.slow_partitions import best_place, ways_on


def check(case: RandomParts) -> str:
    allocator = Allocator()
    found = allocator.allocate(case.inventory(), pod("p", "c"), case.waiting_claims())
    says = {"agree": case.agree, "differ": case.differ, "agree_each": case.agree_each}
    wanted = best_place(allocator.engine, case.nodes, case.pod, **says)
    if wanted is None:
        assert isinstance(found, NoFit), (case.pod, found)
        return "nothing"
    assert isinstance(found, Allocation), (case.pod, wanted, found)
    node_name, way = wanted
    assert case.told(found) == (node_name, [sort(given) for given in way]), (case.pod, says)
    return "whole and parts" if any(one.profile is None for one in case.pod) else "parts"


@pytest.mark.parametrize("seed", sampled(range(3_000), 30, 300))
def test_every_pod_gets_what_a_look_at_every_way_finds_best(seed: int) -> None:
    check(RandomParts(seed))


@pytest.mark.parametrize("seed", sampled(range(1_500), 15, 150))
def test_equal_requests_get_what_a_look_at_every_way_finds_best(seed: int) -> None:
    check(RandomParts.several_equal(seed))


@pytest.mark.parametrize("seed", sampled(range(1_500), 15, 150))
def test_a_request_for_whole_gpus_or_parts_is_served_wherever_there_is_a_way(seed: int) -> None:
    case = RandomParts.either(seed)
    ways = {one.name: ways_on(one, case.pod) for one in case.nodes}
    inventory, allocator = case.inventory(), Allocator()
    found = allocator.allocate(inventory, pod("p", "c"), case.waiting_claims())
    if isinstance(found, NoFit):
        why = str(allocator.explain(inventory, pod("p", "c"), case.waiting_claims()))
        # With a whole GPU for a third request the rules may need more steps than they have (5 of 1,500 cases).
        there = [name for name, every in ways.items() if next(every, None) is not None]
        assert not there or "the search was cut off" in why, (case.pod, why)
        return
    assert isinstance(found, Allocation)
    node_name, way = case.told(found)
    assert any([sort(given) for given in each] == way for each in ways[node_name]), (case.pod, way)


@pytest.mark.parametrize("seed", sampled(range(200), 2, 20))
def test_on_16_gpus_a_pod_gets_what_a_look_at_every_way_finds_best(seed: int) -> None:
    check(RandomParts.many_gpus(seed))


def test_the_random_clusters_hold_what_they_should() -> None:
    seen = [check(RandomParts(seed)) for seed in range(40)]
    assert {"nothing", "parts", "whole and parts"} == set(seen)
