"""The section on what grows with the cluster: it measures what its rows say, and finds what has grown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench import scale
from bench.decision import World
from bench.report import Section
from bench.scale import NOWHERE, Figures, Hopeless, TaintRules, section
from dracaena.controller.allocation.state.inventory import Inventory, PoolChange

NODES = 4


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pools that were read again."""
    pools: list[str] = []
    genuine = Inventory._read_again

    def noted(inventory: Inventory, name: str) -> PoolChange:
        pools.append(name)
        return genuine(inventory, name)

    monkeypatch.setattr(Inventory, "_read_again", noted)
    return pools


def figures(
    decisions: Sequence[float] = (0.5,), *, lock_held: float = 1.0, one_pool: float = 2.0, all_pools: float = 0.01
) -> Figures:
    one = Hopeless(decision=1.0, explanation=8.0, lock_held=lock_held)
    return Figures(decisions, TaintRules((one_pool,), all_pools=all_pools, status=0.1), dict.fromkeys(NOWHERE, one))


def ratio(found: Section, name: str, place: int = 0) -> float | None:
    return [row for row in found.rows if row.name.startswith(name)][place].ratio


def test_rules_touch_the_pools_that_their_rows_speak_of(read: list[str]) -> None:
    world = World(NODES)
    names = sorted(world.kind_of)
    read.clear()
    scale._come_and_go(world, {"pool": names[1]})
    assert read == [names[1]] * 2
    read.clear()
    scale._come_change_and_go(world)
    assert read == [], "neither a rule for all devices nor its status reads a pool"
    world.cluster.check()


def test_a_small_bench_has_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "FEW": NODES,
        "MANY": 2 * NODES,
        "MEASURED": 8,
        "ROUNDS": 2,
        "RULES": 2,
        "EXPLAINED": 2,
    }.items():
        monkeypatch.setattr(scale, name, value)
    told: list[str] = []
    found = scale.rows(told.append)
    assert len(told) == 3
    assert all(row.ours is not None and row.ours > 0 for row in found.rows)
    assert len(found.tables[0].rows) == 2 * len(NOWHERE)


@pytest.mark.parametrize(("slowest_ms", "holds"), [(3.9, True), (4.1, False)])
def test_the_floor_is_for_the_larger_cluster(slowest_ms: float, holds: bool) -> None:
    found = section(figures((9.0,)), figures((slowest_ms,)))
    assert [floor.holds for floor in found.floors] == [holds, True, True]


@pytest.mark.parametrize(("held_ms", "holds"), [(49.0, True), (51.0, False)])
def test_an_explanation_may_hold_the_lock_as_long_as_a_decision(held_ms: float, holds: bool) -> None:
    found = section(figures(lock_held=90.0), figures(lock_held=held_ms))
    assert [floor.holds for floor in found.floors] == [True, True, holds]


def test_an_explanation_that_lets_go_of_the_lock_is_told_by_its_ratio() -> None:
    found = section(figures(lock_held=8.0), figures(lock_held=2.0))
    assert [ratio(found, "lock held by an explanation", place) for place in range(2)] == [1, 4]


def test_a_rule_for_one_pool_that_costs_more_in_a_larger_cluster_is_told_by_its_ratio() -> None:
    found = section(figures(one_pool=2.0), figures(one_pool=8.0))
    assert ratio(found, "lock held for a DeviceTaintRule that taints one pool") == 0.25


@pytest.mark.parametrize(("held_ms", "holds"), [(49.0, True), (51.0, False)])
def test_a_rule_for_all_pools_may_hold_the_lock_as_long_as_a_decision(held_ms: float, holds: bool) -> None:
    found = section(figures(all_pools=90.0), figures(all_pools=held_ms))
    assert [floor.holds for floor in found.floors] == [True, holds, True]
