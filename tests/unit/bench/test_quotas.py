"""What a quota costs a decision, as the bench measures it: on a small cluster, and with figures made up."""

from __future__ import annotations

import pytest

from bench import quotas
from bench.decision import World


def test_the_same_jobs_are_decided_with_all_limits_and_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(16)
    world.fill()
    monkeypatch.setattr(quotas, "filled", lambda: world)
    monkeypatch.setattr(quotas, "WARM", 20)
    monkeypatch.setattr(quotas, "JOBS", 40)
    found = quotas.rows(lambda text: None)
    assert found.notes[0].startswith("40 decisions of each kind")
    assert all(row.ours and row.theirs for row in found.rows)


def test_a_decision_that_takes_longer_with_quotas_breaks_the_floor() -> None:
    without = quotas.Figures(decisions=[1.0, 1.0, 9.0], changes=[1.0] * 3)
    slower = quotas.Figures(decisions=[1.2, 1.2, 1.2], changes=[1.0] * 3)
    (floor,) = quotas.section(without, slower).floors
    assert not floor.holds
    (floor,) = quotas.section(without, without).floors
    assert floor.reaches_goal
