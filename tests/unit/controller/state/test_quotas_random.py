"""Whatever comes between, no namespace gets more than its quota, and nobody waits for what he may have."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from dracaena.controller.state.quotas import Quotas
from dracaena.controller.state.records import Records
from support.quota_world import QuotaWorld

STEPS = 60


def run(seed: int) -> QuotaWorld:
    world = QuotaWorld(random.Random(seed))
    for number in range(STEPS):
        world.step()
        if number % 20 == 19:
            world.settle()
            assert world.could_be_served() == []
    return world


def is_found(seeds: range) -> bool:
    for seed in seeds:
        try:
            run(seed)
        except AssertionError:
            return True
    return False


def test_no_quota_is_exceeded_and_nobody_waits_in_vain() -> None:
    worlds = [run(seed) for seed in range(12)]
    assert sum(world.served for world in worlds) > 40
    assert sum(world.refused for world in worlds) > 40


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 2_000, 100))
def test_no_quota_is_exceeded_in_many_worlds(start: int) -> None:
    for seed in range(start, start + 100):
        run(seed)


def test_a_count_of_what_is_written_alone_is_found() -> None:
    decide = Records.decide

    def uncounted(self: Records, *args: object) -> bool:
        holdings = self._changed.__self__.inventory.holdings  # type: ignore[attr-defined]
        follow, holdings.follow = holdings.follow, None
        try:
            return decide(self, *args)  # type: ignore[arg-type]
        finally:
            holdings.follow = follow

    with mock.patch.object(Records, "decide", uncounted):
        assert is_found(range(40))


def test_a_change_that_wakes_nobody_is_found() -> None:
    change = Quotas.change

    def silently(self: Quotas, namespace: str, text: str | None) -> bool:
        change(self, namespace, text)
        return False

    with mock.patch.object(Quotas, "change", silently):
        assert is_found(range(40))
