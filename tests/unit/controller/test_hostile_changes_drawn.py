"""A tenant's sequences of changes of every kind that it may write, drawn by chance and counted in work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dracaena.controller.queue.time_budgets import SLOW_S, TimeBudgets
from dracaena.controller.state.cluster import ClusterState
from dracaena.controller.state.records import Records
from support.hostile_changes import found
from support.hostile_patterns import PATTERNS
from support.seeds import sampled

SECONDS = 3


@pytest.mark.parametrize("seed", sampled(range(40), 1, 10))
def test_no_sequence_of_changes_delays_others_or_costs_much(seed: int) -> None:
    assert found(seed, 60, SECONDS, PATTERNS) == []


@pytest.mark.search
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_pattern_by_itself_does(pattern: str) -> None:
    assert found(1, 120, SECONDS, {pattern: PATTERNS[pattern]}) == []


def quadratic_names(patch: pytest.MonkeyPatch) -> None:
    """Each decision reads the names of all pods of its claim."""
    patch.setattr(Records, "is_shared", lambda records, key, pod_key: any(n != pod_key for n in records.naming(key)))
    patch.setattr(Records, "naming_count", lambda records, key: len(sorted(records.naming(key))))


def short_decisions_uncharged(patch: pytest.MonkeyPatch) -> None:
    charge = TimeBudgets._charge

    def only_slow(budgets: TimeBudgets, namespace: str, used_s: float) -> None:
        if used_s > SLOW_S:
            charge(budgets, namespace, used_s)

    patch.setattr(TimeBudgets, "_charge", only_slow)


def first_lane(patch: pytest.MonkeyPatch) -> None:
    """Each event of a claim wakes all its pods at once, before those that come later.

    What that costs is charged, which alone keeps the pods of others from waiting: so nothing short is charged either.
    """
    short_decisions_uncharged(patch)
    patch.setattr(ClusterState, "wake_users_of", lambda state, key: state.wake_all(state.records.naming(key)))


def retry_without_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Records, "refuse", lambda records, key, why, now_s, growth: None)


def unbounded_rest(patch: pytest.MonkeyPatch) -> None:
    """What comes behind others rests for ever after some work there."""
    charge = TimeBudgets.charge

    def resting(budgets: TimeBudgets, key: str, used_s: float, *, gave_devices: bool = False) -> float:
        return 1e6 * charge(budgets, key, used_s, gave_devices=gave_devices)

    patch.setattr(TimeBudgets, "charge", resting)


@pytest.mark.search
@pytest.mark.parametrize(
    ("plant", "pattern", "pods", "words"),
    [
        (quadratic_names, "annotations of claims", 400, "names of others"),
        (short_decisions_uncharged, "claims for storage", 400, "of a processor"),
        (first_lane, "annotations of claims", 400, "a pod of others waited"),
        # Each of the tenant's pods is written again and again: 60 of them are refused thousands of times.
        (retry_without_change, "labels of claims", 60, "refused"),
        # The tenant's pods do not even settle before the first change.
        (unbounded_rest, "annotations of claims", 400, "it never ends"),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], pattern: str, pods: int, words: str
) -> None:
    plant(monkeypatch)
    assert any(words in text for text in found(1, pods, SECONDS, {pattern: PATTERNS[pattern]}))
