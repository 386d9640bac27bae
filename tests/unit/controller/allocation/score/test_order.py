from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from dracaena.api.config.v1alpha1 import NicAlignment, NodeStrategy, NumaAlignment, Objective, TopologyPolicy
from dracaena.controller.allocation.score.order import (
    Order,
    Prices,
    Score,
    first_difference,
    first_differences,
    one_number,
    order_of,
)

BEST = Score(
    bandwidth_gb_s=100,
    ring_gb_s=50,
    ideal_gb_s=0,
    gpus=2,
    taken_gpus=2,
    damage_gb_s=(0, 0, 0),
    damage_ring_gb_s=0,
    bound_level=10,
    damage_levels=0,
    numa_nodes=1,
    nic_distance=2,
    pair_sum_gb_s=100,
    worst_pair_gb_s=50,
    worst_level=10,
    free_gpus=3,
)
WORSE = {
    "bandwidth_gb_s": {"bandwidth_gb_s": 99},
    "ring_gb_s": {"ring_gb_s": 49},
    "damage_8_gb_s": {"damage_gb_s": (1, 0, 0)},
    "damage_4_gb_s": {"damage_gb_s": (0, 1, 0)},
    "damage_2_gb_s": {"damage_gb_s": (0, 0, 1)},
    "damage_ring_gb_s": {"damage_ring_gb_s": 1},
    "bound_level": {"bound_level": 20},
    "worst_pair_gb_s": {"worst_pair_gb_s": 49},
    "damage_levels": {"damage_levels": 1},
    "numa_nodes": {"numa_nodes": 2},
    "pair_sum_gb_s": {"pair_sum_gb_s": 99},
    "worst_level": {"worst_level": 20},
    "nic_levels": {"nic_distance": 3},
    "free_gpus": {"free_gpus": 4},
}
"""Each part alone one step worse, in the order in which the parts count."""


def worse_in(*names: str, order: Order) -> Score:
    score = replace(BEST, order=order)
    for name in names:
        score = replace(score, **WORSE[name])  # type: ignore[arg-type]
    return score


def names(order: Order) -> list[str]:
    return [name for name, _ in replace(BEST, order=order).parts()]


def test_the_parts_count_in_their_order() -> None:
    assert names(Order()) == list(WORSE)


@pytest.mark.parametrize("node_strategy", list(NodeStrategy))
def test_a_part_outweighs_all_after_it(node_strategy: NodeStrategy) -> None:
    order = Order(node_strategy=node_strategy)
    worse = {**WORSE, "free_gpus": {"free_gpus": 2 if node_strategy is NodeStrategy.SPREAD else 4}}
    listed = names(order)
    assert sorted(listed) == sorted(WORSE)
    best = replace(BEST, order=order)
    for place, name in enumerate(listed):
        loses = replace(best, **worse[name])  # type: ignore[arg-type]
        assert best > loses
        assert best.first_difference(loses) == name
        wins_early = best
        for later in listed[place + 1 :]:
            wins_early = replace(wins_early, **worse[later])  # type: ignore[arg-type]
        assert wins_early > loses or place == len(listed) - 1


@pytest.mark.parametrize("order", [Order(), Order(Objective.PACK), Order(node_strategy=NodeStrategy.SPREAD)], ids=str)
def test_the_sets_of_one_node_compare_alike_whatever_compares_nodes(order: Order) -> None:
    assert order.set_names == tuple(name for name in WORSE if name != "free_gpus")
    best = replace(BEST, order=order)
    for place, name in enumerate(order.set_names):
        loses = worse_in(name, order=order)
        assert worse_in(*order.set_names[place + 1 :], order=order).rank() < loses.rank() > best.rank()
        assert best.first_difference(loses, on_one_node=True) == name


@pytest.mark.parametrize("node_strategy", list(NodeStrategy))
def test_pack_takes_the_fullest_node_and_of_equally_full_ones_where_most_is_gained(node_strategy: NodeStrategy) -> None:
    order = Order(Objective.PACK, node_strategy)
    assert order.node_names == ("free_gpus", "net_gain_gpus", "bandwidth_percent_of_ideal")
    fuller = replace(BEST, order=order, free_gpus=2, bandwidth_gb_s=9)
    assert fuller.node_rank() < replace(BEST, order=order).node_rank()
    priced = replace(PRICED, order=replace(order, prices=PRICES))
    assert priced.node_rank() < replace(priced, bandwidth_gb_s=9).node_rank()
    assert priced.node_rank() == replace(priced, pair_sum_gb_s=9).node_rank()


def test_spread_takes_the_emptier_node_before_damage_counts() -> None:
    order = Order(node_strategy=NodeStrategy.SPREAD)
    assert names(order)[:3] == ["bandwidth_gb_s", "ring_gb_s", "free_gpus"]
    emptier = replace(BEST, order=order, free_gpus=8, damage_gb_s=(50, 0, 0))
    assert emptier > replace(BEST, order=order)


def test_what_is_ignored_does_not_count_and_is_not_shown() -> None:
    order = Order(numa_counts=False, nic_counts=False)
    assert {"numa_nodes", "nic_levels"}.isdisjoint(names(order))
    assert worse_in("numa_nodes", "nic_levels", order=order).rank() == replace(BEST, order=order).rank()
    assert worse_in("numa_nodes", order=order).first_difference(replace(BEST, order=order)) is None


PRICES = Prices(shares=(16, 16, 16), usual_gb_s=(150, 150, 200))
"""A quarter of the GPUs for pods of 8, of 4, of 2 and of 1."""

PRICED = replace(BEST, order=Order(prices=PRICES), ideal_gb_s=100, gpus=2, taken_gpus=2, free_gpus=4)


@pytest.mark.parametrize(
    ("gpus", "usual_gb_s"), [(1, 200), (2, 200), (3, 150), (4, 150), (5, 150), (8, 150), (16, 150)]
)
def test_a_pod_of_any_size_has_a_usual_bandwidth(gpus: int, usual_gb_s: int) -> None:
    assert PRICES.usual_of(gpus) == usual_gb_s


@pytest.mark.parametrize(
    ("score", "net_gain_gpus"),
    [
        # 2 GPUs × 100 / 200, less a quarter of the place for 4 and of one for 2 that are taken.
        (PRICED, 1 - 1 - 0.5),
        (replace(PRICED, bandwidth_gb_s=400), 4 - 1.5),
        (replace(PRICED, bandwidth_gb_s=400, free_gpus=3), 4 - 0.5),
        # A quarter of 4 GPUs × 300 / 150 more.
        (replace(PRICED, bandwidth_gb_s=400, damage_gb_s=(0, 300, 0)), 4 - 1.5 - 2),
        (replace(PRICED, bandwidth_gb_s=400, damage_gb_s=(300, 0, 0)), 4 - 1.5 - 4),
        (replace(PRICED, bandwidth_gb_s=0, gpus=1, taken_gpus=1, free_gpus=8), -2 - 1 - 0.5),
    ],
)
def test_what_a_pod_gains_is_weighed_against_what_others_lose(score: Score, net_gain_gpus: float) -> None:
    assert score.net_gain_gpus == math.floor(net_gain_gpus + 0.5)
    assert score.parts()[0] == ("net_gain_gpus", score.net_gain_gpus)


def test_at_equal_gain_the_share_of_the_ideal_decides_and_then_the_fuller_node() -> None:
    listed = [name for name, _ in PRICED.parts()]
    assert listed[:5] == [
        "net_gain_gpus",
        "bandwidth_percent_of_ideal",
        "free_gpus",
        "loss_milligpus",
        "bandwidth_gb_s",
    ]
    worse = replace(PRICED, ideal_gb_s=200)
    assert PRICED.node_rank() < worse.node_rank()
    assert PRICED.first_difference(worse) == "bandwidth_percent_of_ideal"
    assert PRICED.first_difference(worse, on_one_node=True) is None


@pytest.mark.parametrize("damage_gb_s", [(0, 0, 0), (450, 900, 900)])
def test_no_set_of_the_node_of_the_same_bandwidth_comes_before_the_bound(damage_gb_s: tuple[int, int, int]) -> None:
    score = replace(PRICED, damage_gb_s=damage_gb_s)
    assert score.best_node_rank() <= score.node_rank()
    assert score.best_node_rank() <= replace(score, damage_gb_s=(0, 0, 0)).node_rank()
    unpriced = replace(BEST, damage_gb_s=damage_gb_s)
    assert unpriced.best_node_rank() == unpriced.node_rank()


def test_the_first_request_that_says_something_decides_for_the_pod() -> None:
    policies = [
        TopologyPolicy(nic_alignment=NicAlignment.IGNORED),
        TopologyPolicy(objective=Objective.PACK, numa_alignment=NumaAlignment.REQUIRED),
        TopologyPolicy(objective=Objective.BANDWIDTH, node_strategy=NodeStrategy.SPREAD),
    ]
    assert order_of(policies) == Order(Objective.PACK, NodeStrategy.SPREAD, numa_counts=True, nic_counts=False)
    assert order_of([]) == Order()


@pytest.mark.parametrize(
    ("shares", "usual_gb_s", "is_near"),
    [
        ((16, 16, 16), (150, 150, 200), True),
        ((17, 15, 16), (150, 150, 200), True),
        ((18, 16, 16), (150, 150, 200), False),
        ((16, 16, 14), (150, 150, 200), False),
        ((16, 16, 16), (150, 150, 212), True),
        ((16, 16, 16), (150, 150, 213), False),
        ((16, 16, 16), (140, 150, 200), False),
    ],
)
def test_prices_that_differ_by_little_are_about_the_same(
    shares: tuple[int, int, int], usual_gb_s: tuple[int, int, int], is_near: bool
) -> None:
    assert PRICES.is_near(Prices(shares, usual_gb_s)) == is_near
    assert not PRICES.is_near(None)


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_ranks_with_one_first_difference_are_those_of_looking_at_each(seed: int) -> None:
    rng = random.Random(seed)
    parts = sorted(tuple(rng.choice((-5, 0, 1, 2**40)) for _ in range(4)) for _ in range(rng.randrange(1, 60)))
    ranks = [one_number(rank) for rank in parts]
    found = list(first_differences(ranks[0], ranks))
    assert [place for place, start, end in found for _ in range(start, end)] == [
        first_difference(ranks[0], rank) for rank in ranks
    ]
    assert [start for _, start, _ in found] == [0, *(end for _, _, end in found[:-1])]
    assert len({place for place, _, _ in found}) == len(found), "one search for each part"
