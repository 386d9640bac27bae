from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.api.config.v1alpha1 import NicAlignment, NodeStrategy, NumaAlignment, Objective, TopologyPolicy
from dracaena.controller.allocation.score.order import Order, Score, order_of

BEST = Score(
    bandwidth_gb_s=100,
    ring_gb_s=50,
    ideal_gb_s=0,
    ideal_ring_gb_s=0,
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


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("node_strategy", list(NodeStrategy))
def test_a_part_outweighs_all_after_it(objective: Objective, node_strategy: NodeStrategy) -> None:
    order = Order(objective, node_strategy)
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


def test_pack_puts_damage_before_bandwidth() -> None:
    first = ["damage_8_gb_s", "damage_4_gb_s", "damage_2_gb_s", "damage_ring_gb_s", "bandwidth_gb_s", "ring_gb_s"]
    assert names(Order(Objective.PACK))[:6] == first


def test_spread_takes_the_emptier_node_before_damage_counts() -> None:
    order = Order(node_strategy=NodeStrategy.SPREAD)
    assert names(order)[:3] == ["bandwidth_gb_s", "ring_gb_s", "free_gpus"]
    emptier = replace(BEST, order=order, free_gpus=8, damage_gb_s=(50, 0, 0))
    assert emptier > replace(BEST, order=order)
    assert names(Order(Objective.PACK, NodeStrategy.SPREAD))[0] == "free_gpus"


def test_what_is_ignored_does_not_count_and_is_not_shown() -> None:
    order = Order(numa_counts=False, nic_counts=False)
    assert {"numa_nodes", "nic_levels"}.isdisjoint(names(order))
    assert worse_in("numa_nodes", "nic_levels", order=order).rank() == replace(BEST, order=order).rank()
    assert worse_in("numa_nodes", order=order).first_difference(replace(BEST, order=order)) is None


def test_between_nodes_the_share_of_the_ideal_may_count_instead_of_bandwidth() -> None:
    """A pair that is all its node can give beats half of what a faster node can give."""
    order = Order(relative=True)
    slow = replace(BEST, order=order, bandwidth_gb_s=27, ring_gb_s=27, ideal_gb_s=27, ideal_ring_gb_s=27)
    ideal = replace(BEST, order=order, ideal_gb_s=450, ideal_ring_gb_s=450)
    fast = replace(ideal, bandwidth_gb_s=225, ring_gb_s=225)
    assert slow > fast
    assert replace(fast, order=Order()) > replace(slow, order=Order())
    whole = replace(ideal, bandwidth_gb_s=450, ring_gb_s=450, damage_gb_s=(0, 0, 450))
    assert slow > whole, "at equal share the damage decides"
    assert fast.parts()[0] == ("bandwidth_percent_of_ideal", 50)
    assert fast.parts()[-1] == ("bandwidth_gb_s", 225)
    assert slow.first_difference(fast) == "bandwidth_percent_of_ideal"
    mesh = replace(BEST, order=order, bandwidth_gb_s=150, ring_gb_s=50, ideal_gb_s=150, ideal_ring_gb_s=50)
    assert mesh > whole, "so does the ring: all that the node can give"


def test_inside_one_node_the_share_orders_as_the_bandwidth_does() -> None:
    for ideal in (1, 27, 1800, 36_000):
        one = replace(BEST, order=Order(relative=True), ideal_gb_s=ideal, ideal_ring_gb_s=ideal)
        several = range(max(0, ideal - 50), ideal + 1)
        for scores in (
            [replace(one, bandwidth_gb_s=found) for found in several],
            [replace(one, ring_gb_s=found) for found in several],
        ):
            assert scores == sorted(scores)
            assert len({score.rank() for score in scores}) == len(scores)


def test_the_first_request_that_says_something_decides_for_the_pod() -> None:
    policies = [
        TopologyPolicy(nic_alignment=NicAlignment.IGNORED),
        TopologyPolicy(objective=Objective.PACK, numa_alignment=NumaAlignment.REQUIRED),
        TopologyPolicy(objective=Objective.BANDWIDTH, node_strategy=NodeStrategy.SPREAD),
    ]
    assert order_of(policies) == Order(Objective.PACK, NodeStrategy.SPREAD, numa_counts=True, nic_counts=False)
    assert order_of([]) == Order()
