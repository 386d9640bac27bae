"""The rules of other systems for a part of a GPU, on states in which they differ."""

from __future__ import annotations

import pytest

from bench.baselines.sharing import HAMI_SHARES, RULES, Load

EMPTY = Load()


@pytest.mark.parametrize(
    ("rule", "place"),
    [("first fit", (0, 1)), ("gpu-manager share", (1, 0)), ("HAMi binpack", (1, 1)), ("HAMi spread", (0, 1))],
)
def test_each_rule_takes_its_own_gpu(rule: str, place: tuple[int, int]) -> None:
    nodes = [
        [Load(70, 0, 1), Load(0, 0, 0)],
        [Load(10, 60, 1), Load(40, 40, 2)],
    ]
    assert RULES[rule](nodes, 20, 20, 80) == place


@pytest.mark.parametrize("rule", RULES)
def test_what_has_room_nowhere_is_refused(rule: str) -> None:
    assert RULES[rule]([[Load(70, 0, 1), Load(0, 90, 1)]], 20, 20, 80) is None


def test_hami_puts_ten_shares_on_a_gpu_at_most() -> None:
    full = Load(1, 1, HAMI_SHARES)
    assert RULES["HAMi binpack"]([[full, EMPTY]], 1, 1, 80) == (0, 1)
