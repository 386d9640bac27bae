"""The NVSwitch fabric: what of it takes a GPU out of use, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.host.facts.health import GpuEvent, GpuState
from dracaena.kubelet_plugin.discovery.health.gpu_health import (
    CLEAR_POLLS,
    GpuHealth,
    HealthClass,
    Rules,
    noted,
    polled,
    xid_fault,
)

GPU = "GPU-1"
COMPLETED = GpuState(GPU, recovery_action=0, fabric_state=3, fabric_status=0, fabric_health=0)


def values(health: GpuHealth) -> list[tuple[str, HealthClass]]:
    return [(fault.value, fault.health_class) for fault in health.faults]


@pytest.mark.parametrize("state", [None, 0, 3, 17])
def test_where_there_is_no_fabric_or_it_is_complete_nothing_is_said(state: int | None) -> None:
    assert polled(GpuHealth(), replace(COMPLETED, fabric_state=state)) == GpuHealth()


@pytest.mark.parametrize(
    ("changes", "value", "health_class"),
    [
        ({"fabric_state": 1}, "not-started", HealthClass.FATAL),
        ({"fabric_state": 2}, "in-progress", HealthClass.UNREADY),
        ({"fabric_status": 999}, "failed", HealthClass.FATAL),
        ({"fabric_health": 0x1}, "degraded", HealthClass.DEGRADED),
        ({"fabric_health": 0x10 | 5 << 8}, "degraded", HealthClass.DEGRADED),
        ({"fabric_state": 2, "fabric_status": 999}, "in-progress", HealthClass.UNREADY),
    ],
)
def test_a_fabric_that_is_not_complete_is_told_at_once_and_gone_with_the_first_poll_that_shows_it_complete(
    changes: dict[str, int], value: str, health_class: HealthClass
) -> None:
    health = polled(GpuHealth(), replace(COMPLETED, **changes))  # type: ignore[arg-type]
    assert values(health) == [(value, health_class)]
    assert values(polled(health, COMPLETED)) == []


def test_a_gpu_that_does_not_answer_keeps_what_its_fabric_last_said() -> None:
    health = polled(GpuHealth(), replace(COMPLETED, fabric_state=1))
    assert values(polled(health, GpuState(GPU, silent="TIMEOUT"))) == [("not-started", HealthClass.FATAL)]


@pytest.mark.parametrize("mask", [0, 2, 0x2 | 0x8 | 0x20 | 0x80 | 0x100 | 0x1000 | 0x4000])
def test_parts_of_the_health_that_are_well_or_not_supported_are_no_fault(mask: int) -> None:
    assert polled(GpuHealth(), replace(COMPLETED, fabric_health=mask)) == GpuHealth()


def test_the_words_name_each_part_that_is_wrong() -> None:
    health = polled(GpuHealth(), replace(COMPLETED, fabric_health=0x1 | 0x10 | 4 << 8 | 2 << 14))
    assert health.faults[0].message == (
        "the NVSwitch fabric reports degraded bandwidth, unhealthy route, incorrect configuration, "
        "fabric manager disconnected"
    )


def test_a_fabric_that_came_up_is_no_relapse_for_what_fails_later() -> None:
    health = polled(polled(GpuHealth(), replace(COMPLETED, fabric_state=1)), COMPLETED)
    fault = xid_fault(GpuEvent(GPU, 79), Rules())
    assert fault is not None
    assert [held.clear_after for held in noted(health, fault).held] == [CLEAR_POLLS]
