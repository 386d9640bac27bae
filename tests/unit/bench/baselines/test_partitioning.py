"""The rules of other systems that cut GPUs, on small clusters worked out by hand."""

from __future__ import annotations

from bench.baselines.partitioning import BALANCED, HAMI_TEMPLATES, FirstFit, Templates, by_demand, rules
from bench.mig import LeastLoss
from dracaena.controller.allocation.score.partitions import PartitionTable
from support.mig_tables import A100, geometry

TABLE = PartitionTable(geometry(A100))


def starts(rule: FirstFit | LeastLoss, *profiles: str) -> list[tuple[int, int] | None]:
    """GPU and start of each."""
    found = [rule.take(profile) for profile in profiles]
    return [None if one is None else (one[0], TABLE.geometry.places[one[1]].start) for one in found]


def test_first_fit_takes_the_first_gpu_and_the_lowest_start() -> None:
    rule = FirstFit(TABLE, [TABLE.geometry.there] * 2)
    assert starts(rule, "1g.10gb", "4g.40gb", "3g.40gb", "3g.40gb") == [(0, 0), (1, 0), (0, 4), (1, 4)]


def test_ours_keeps_start_0_for_the_large_profile() -> None:
    rule = LeastLoss(TABLE, 1)
    assert starts(rule, "1g.10gb", "4g.40gb", "2g.20gb", "7g.80gb") == [(0, 6), (0, 0), (0, 4), None]


def test_hami_keeps_a_template_until_the_gpu_is_empty() -> None:
    rule = Templates([()], HAMI_TEMPLATES)
    first = rule.take("1g.10gb")
    assert first == (0, 0)
    assert rule.take("2g.20gb") is None
    rule.give_back(first)
    assert rule.take("2g.20gb") == (0, 0)
    assert rule.layouts == [HAMI_TEMPLATES[1]]


def test_hami_has_no_template_for_four_slices_of_compute_but_the_whole_gpu() -> None:
    assert Templates([()], HAMI_TEMPLATES).take("4g.40gb") == (0, 0)
    rule = Templates([()], HAMI_TEMPLATES)
    rule.take("4g.40gb")
    assert rule.layouts == [("7g.80gb",)]


def test_a_static_layout_gives_the_smallest_instance_that_will_do() -> None:
    rule = Templates([BALANCED])
    assert [rule.take("1g.10gb") for _ in range(5)] == [(0, 0), (0, 1), (0, 2), (0, 3), None]
    assert rule.take("4g.40gb") is None


def test_static_layouts_follow_the_slices_that_are_asked_for() -> None:
    assert by_demand(3, {"7g.80gb": 0.5, "3g.40gb": 0.5}).count(("7g.80gb",)) == 2
    assert set(rules(2, {"1g.10gb": 1.0})) == {"first fit", "HAMi", "static, balanced", "static, by demand"}
