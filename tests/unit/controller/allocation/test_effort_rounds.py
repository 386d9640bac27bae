from __future__ import annotations

import pytest

from dracaena.controller.allocation import effort
from dracaena.controller.allocation.effort import COUNT_EVERY, Rounds


@pytest.mark.parametrize("names", [0, 1])
def test_pods_that_went_while_they_were_overdue_are_forgotten_some_day(
    monkeypatch: pytest.MonkeyPatch, names: int
) -> None:
    monkeypatch.setattr(effort, "MAX_NAMES", 1_000)
    held = Rounds()
    for number in range(10_000):
        held.of(f"p{number}")(0).update(f"n{name}" for name in range(names))
        assert len(held._tried) <= 500 + COUNT_EVERY
    asked = held.of("last")(0)
    asked.add("n")
    assert held.of("last")(0) == {"n"}
    assert held.is_under_way("last")
