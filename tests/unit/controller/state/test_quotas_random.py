"""Whatever comes between, no namespace gets more than its quota, and nobody waits for what he may have."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from dracaena.api.device_id import DeviceId
from dracaena.api.gpu_quota import GPUS_BY_PRODUCT, KEYS, MIG_SLICES, SHARE_CORES, SHARE_MEMORY, Amounts, QuotaItem
from dracaena.controller.allocation.state import quota_usage
from dracaena.controller.allocation.state.quota_usage import PublishedGpu, QuotaUsage
from dracaena.controller.state.quotas import Quotas
from dracaena.controller.state.records import Records
from support.quota_world import QuotaWorld
from support.seeds import sampled

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


@pytest.mark.parametrize("first", sampled(range(0, 2_000, 10), 1, 6))
def test_no_quota_is_exceeded_and_nobody_waits_without_success(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + 10)]
    assert sum(world.served for world in worlds) > 10


@pytest.mark.search
def test_each_key_of_a_quota_is_met() -> None:
    refused = sum((run(seed).refused for seed in range(30)), Counter[str]())
    assert min(refused[key] for key in (*KEYS, "unread")) > 0, refused


@pytest.mark.search
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


@pytest.mark.search
def test_a_change_that_wakes_no_pod_is_found() -> None:
    change = Quotas.change

    def silently(self: Quotas, namespace: str, text: str | None) -> bool:
        change(self, namespace, text)
        return False

    with mock.patch.object(Quotas, "change", silently):
        assert is_found(range(40))


@pytest.mark.search
@pytest.mark.parametrize(
    ("key", "counted"),
    [(SHARE_MEMORY, lambda held: 0), (SHARE_CORES, lambda held: held // 2), (MIG_SLICES, lambda held: min(held, 1))],
)
def test_an_amount_that_is_counted_wrong_is_found(key: str, counted: Callable[[int], int]) -> None:
    count_amounts = quota_usage.count_amounts

    def wrong(*args: Any) -> tuple[Amounts, frozenset[str]]:
        amounts, unknown = count_amounts(*args)
        one = QuotaItem(key)
        return Counter({**amounts, **({one: counted(amounts[one])} if one in amounts else {})}), unknown

    with mock.patch.object(quota_usage, "count_amounts", wrong):
        assert is_found(range(40))


@pytest.mark.search
def test_a_count_that_forgets_nothing_is_found() -> None:
    hold = QuotaUsage.hold

    def never_less(self: QuotaUsage, holder: str, devices: frozenset[Any], others: frozenset[Any]) -> None:
        if devices:
            hold(self, holder, devices, others)

    with mock.patch.object(QuotaUsage, "hold", never_less):
        assert is_found(range(40))


def test_what_was_counted_before_its_slice_changed_is_counted_again_when_it_is_held() -> None:
    products = iter(("NVIDIA A100", "NVIDIA H100"))
    usage = QuotaUsage("gpu.example.com", lambda _device: PublishedGpu(next(products)))
    usage.begin("ml", [])
    devices = frozenset({DeviceId("gpu.example.com", "node-1", "gpu-0")})
    usage.wanted(devices, frozenset())
    usage.count_again({"node-1"})
    usage.hold("ml/claim", devices, frozenset())
    assert usage.held("ml")[QuotaItem(GPUS_BY_PRODUCT, "NVIDIA H100")] == 1
