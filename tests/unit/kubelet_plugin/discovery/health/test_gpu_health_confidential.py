"""The ready state of GPUs that compute confidentially: when it takes a GPU out of use, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.host.facts.health import GpuState
from dracaena.kubelet_plugin.discovery.health.gpu_health import (
    CLEAR_POLLS,
    GpuHealth,
    HealthClass,
    Rules,
    polled,
    taints,
)

READY = GpuState("GPU-1", recovery_action=0, cc_ready=True)
UNREADY = replace(READY, cc_ready=False)


@pytest.mark.parametrize("ready", [None, True])
def test_a_gpu_that_is_ready_or_needs_nobody_to_say_so_is_well(ready: bool | None) -> None:
    assert polled(GpuHealth(), replace(READY, cc_ready=ready)) == GpuHealth()


def test_a_gpu_that_was_not_attested_is_kept_from_new_pods_until_the_first_poll_that_shows_it_ready() -> None:
    health = polled(GpuHealth(), UNREADY)
    (taint,) = taints(health.faults, "gpu.dracaena.dev", Rules(evict=True))
    assert (taint.key, taint.value, taint.effect) == ("gpu.dracaena.dev/confidential", "not-ready", "NoSchedule")
    assert [fault.health_class for fault in health.faults] == [HealthClass.UNREADY]
    assert polled(health, READY).faults == ()


def test_waiting_for_the_attestation_is_no_sign_of_a_gpu_that_keeps_failing() -> None:
    health = GpuHealth()
    for _ in range(5):  # the driver is restarted again and again
        health = polled(polled(health, UNREADY), READY)
    assert health.relapses == 0
    failed = polled(health, replace(READY, recovery_action=1))
    assert failed.held[0].clear_after == CLEAR_POLLS


def test_a_driver_that_does_not_answer_proves_nothing() -> None:
    health = polled(GpuHealth(), UNREADY)
    assert polled(health, GpuState("GPU-1", silent="TIMEOUT")).faults == health.faults
