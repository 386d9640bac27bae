"""The bench of decisions beside an open page (tests/bench/page_open.py), on a few nodes."""

from __future__ import annotations

import pytest

from bench import page_open
from bench.decision import World
from bench.page_open import Figures, Looked, section


def test_both_are_measured_and_the_page_shows_the_cluster_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_open, "OF_A_ROUND", 5)
    monkeypatch.setattr(page_open, "SNAPSHOTS_OF_A_ROUND", 1)
    looked = Looked(World(4))
    found = page_open.measure(looked, 1)
    assert len(found.closed) == 5
    assert len(found.opened) >= 5
    assert found.snapshots >= 1
    watched = looked._watched()
    assert (len(watched.nodes), len(watched.slices)) == (4, 4)
    assert len(watched.claims) == len(looked.world.running) > 0


def test_a_page_that_slows_decisions_down_is_seen() -> None:
    made = section(Figures([1.0] * 100, [1.0] * 98 + [4.0] * 2, snapshots=3))
    ratios = {row.name.rpartition(", ")[2]: row.ratio for row in made.rows}
    assert ratios == {"mean": pytest.approx(1 / 1.06), "p50": 1.0, "p99": 0.25}
    assert made.notes[0].startswith("3 snapshots")


@pytest.mark.parametrize(("mean_ms", "holds"), [(1.2, True), (1.3, False)])
def test_the_page_may_not_cost_a_decision_a_fifth_of_the_interpreter(mean_ms: float, holds: bool) -> None:
    (floor,) = section(Figures([1.0] * 10, [mean_ms] * 10, snapshots=1)).floors
    assert floor.holds is holds
