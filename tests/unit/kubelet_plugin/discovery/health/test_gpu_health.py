"""Faults of a GPU: which class, how long they hold, which taints they make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.limits import DEVICE_TAINTS
from dracaena.host.facts.health import GpuEvent, GpuState, Poll
from dracaena.kubelet_plugin.discovery.health.gpu_health import (
    CLEAR_POLLS,
    INFORMED_POLLS,
    LASTS_POLLS,
    MAX_DOUBLINGS,
    MAX_MESSAGE,
    RELAPSE_POLLS,
    Fault,
    GpuHealth,
    HealthClass,
    Rules,
    counted_faults,
    effect,
    message,
    noted,
    on_device,
    polled,
    shown_faults,
    taints,
    with_last_counts,
    xid_class,
    xid_fault,
)

DRIVER = "gpu.dracaena.dev"
GPU = "GPU-1"
WELL = GpuState(GPU, recovery_action=0, uncorrected_ecc=0, remap_pending=False, remap_failed=False, clock_reasons=1)
OLD_DRIVER = GpuState(GPU)
LOST = GpuState(GPU, lost="GPU_IS_LOST")
SILENT = GpuState(GPU, silent="TIMEOUT")
RULES = Rules()


def xid(number: int, gpu_instance: int | None = None, rules: Rules = RULES) -> Fault:
    fault = xid_fault(GpuEvent(GPU, number, gpu_instance), rules)
    assert fault is not None
    return fault


def after(health: GpuHealth, state: GpuState, polls: int) -> GpuHealth:
    for _ in range(polls):
        health = polled(health, state)
    return health


def polls_until_clear(health: GpuHealth, state: GpuState = WELL) -> int:
    for polls in range(1, 1000):
        health = polled(health, state)
        if not any(fault.blocks for fault in health.faults):
            return polls
    raise AssertionError("never cleared")


CLASSES = {
    HealthClass.APPLICATION: [13, 31, 43, 45, 68, 109],
    HealthClass.CONTAINED: [63, 94],
    HealthClass.FATAL: [48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 1, 999],
}


@pytest.mark.parametrize(("expected", "number"), [(c, n) for c, numbers in CLASSES.items() for n in numbers])
def test_an_xid_has_the_class_of_the_table_and_unlisted_is_fatal(expected: HealthClass, number: int) -> None:
    assert xid_class(number, RULES) is expected


def test_what_is_made_fatal_wins_over_what_is_ignored() -> None:
    assert xid_class(79, Rules(ignored_xids={79})) is HealthClass.APPLICATION
    assert xid_class(79, Rules(ignore_all=True)) is HealthClass.APPLICATION
    assert xid_class(13, Rules(fatal_xids={13}, ignore_all=True)) is HealthClass.FATAL
    assert xid_class(13, Rules(all_fatal=True, ignored_xids={13})) is HealthClass.FATAL


STATES = [
    (replace(WELL, recovery_action=1), "recovery-action", "gpu-reset", "NoSchedule"),
    (replace(WELL, recovery_action=2), "recovery-action", "node-reboot", "NoSchedule"),
    (replace(WELL, recovery_action=99), "recovery-action", "99", "NoSchedule"),
    (replace(WELL, remap_pending=True), "row-remap", "pending", "NoSchedule"),
    (replace(WELL, remap_failed=True), "row-remap", "failed", "NoSchedule"),
    (replace(WELL, retirement_pending=True), "page-retirement", "pending", "NoSchedule"),
    (replace(WELL, clock_reasons=0x40), "slowdown", "thermal", "None"),
    (replace(WELL, clock_reasons=0x80), "slowdown", "power-brake", "None"),
    (replace(WELL, unwatched="NOT_SUPPORTED"), "unmonitored", "", "None"),
    (LOST, "gpu-lost", "", "NoSchedule"),
    (SILENT, "silent", "", "NoSchedule"),
]


@pytest.mark.parametrize(("state", "key", "value", "wanted"), STATES)
def test_a_state_makes_the_taint_of_its_fault(state: GpuState, key: str, value: str, wanted: str) -> None:
    (taint,) = taints(shown_faults(state), DRIVER, RULES)
    assert (taint.key, taint.value, taint.effect) == (f"{DRIVER}/{key}", value, wanted)


@pytest.mark.parametrize("state", [WELL, OLD_DRIVER, replace(WELL, clock_reasons=0x27)])
def test_a_well_gpu_and_one_that_tells_nothing_have_no_fault(state: GpuState) -> None:
    assert shown_faults(state) == ()


def test_pods_are_evicted_only_from_what_is_lost_and_only_when_asked() -> None:
    lost = shown_faults(LOST)[0]
    evict = Rules(evict=True)
    assert effect(lost, RULES) == "NoSchedule"
    assert effect(lost, evict) == "NoExecute"
    assert [effect(xid(number), evict) for number in (79, 95, 119)] == ["NoExecute"] * 3
    assert [effect(xid(number), evict) for number in (48, 31)] == ["NoSchedule", "None"]


def test_several_faults_make_several_taints_the_worst_first_and_never_more_than_there_is_room() -> None:
    health = GpuHealth()
    for number in (31, 79, *range(200, 230)):
        health = noted(health, xid(number))
    health = polled(health, replace(WELL, remap_pending=True))
    found = taints(health.faults, DRIVER, RULES, room=DEVICE_TAINTS - 1)
    assert len(found) == DEVICE_TAINTS - 1
    assert {taint.effect for taint in found} == {"NoSchedule"}
    assert len({(taint.key, taint.value) for taint in found}) == len(found)
    assert (found[0].key, found[0].value) == (f"{DRIVER}/row-remap", "pending")


def test_a_harmless_xid_takes_no_fatal_one_away() -> None:
    health = noted(noted(GpuHealth(), xid(79)), xid(31))
    assert [fault.value for fault in health.faults] == ["79", "31"]


def test_a_fatal_xid_is_cleared_after_polls_in_which_the_driver_asks_for_nothing() -> None:
    health = noted(GpuHealth(), xid(79))
    assert after(health, WELL, CLEAR_POLLS - 1).faults
    assert not after(health, WELL, CLEAR_POLLS).faults
    waiting = after(health, replace(WELL, recovery_action=1), 50)
    assert {fault.key for fault in waiting.faults} == {"xid", "recovery-action"}
    assert polls_until_clear(waiting) == CLEAR_POLLS


def test_where_the_driver_tells_no_recovery_action_a_fatal_xid_stays_until_the_gpu_was_away() -> None:
    health = noted(GpuHealth(), xid(79))
    assert after(health, OLD_DRIVER, 1000).faults
    assert polls_until_clear(polled(health, LOST), OLD_DRIVER) == CLEAR_POLLS


def test_a_bad_poll_in_between_begins_the_count_anew() -> None:
    health = after(noted(GpuHealth(), xid(79)), WELL, CLEAR_POLLS - 1)
    for state in (SILENT, replace(WELL, recovery_action=1)):
        assert polls_until_clear(polled(health, state)) == CLEAR_POLLS


def test_a_lost_gpu_is_blocked_at_once_and_freed_after_good_polls() -> None:
    health = polled(GpuHealth(), LOST)
    assert [fault.key for fault in health.faults] == ["gpu-lost"]
    assert polls_until_clear(health) == CLEAR_POLLS


def test_a_short_silence_and_a_short_slowdown_are_no_fault() -> None:
    for state in (SILENT, replace(WELL, clock_reasons=0x40)):
        assert not after(GpuHealth(), state, LASTS_POLLS - 1).faults
        assert after(GpuHealth(), state, LASTS_POLLS).faults
        assert not after(after(GpuHealth(), state, LASTS_POLLS - 1), WELL, 1).held


def test_what_is_only_told_is_told_for_ten_minutes() -> None:
    health = noted(GpuHealth(), xid(31))
    assert after(health, WELL, INFORMED_POLLS - 1).faults
    assert not after(health, WELL, INFORMED_POLLS).faults


def test_each_relapse_doubles_the_wait_up_to_a_limit_and_a_calm_hour_forgets() -> None:
    health, waits = GpuHealth(), []
    for _ in range(MAX_DOUBLINGS + 3):
        health = noted(health, xid(48))
        wait = polls_until_clear(health)
        health = after(health, WELL, wait)
        waits.append(wait // CLEAR_POLLS)
    assert waits == [1, 2, 4, 8, 16, 16, 16]
    assert polls_until_clear(noted(after(health, WELL, RELAPSE_POLLS), xid(48))) == CLEAR_POLLS


def test_a_mig_device_has_the_faults_of_its_gpu_and_of_its_own_instance() -> None:
    faults = (xid(48, gpu_instance=1), xid(13, gpu_instance=2), *shown_faults(replace(WELL, remap_pending=True)))
    assert [(f.key, f.value) for f in on_device(faults, 1)] == [("xid", "48"), ("row-remap", "pending")]
    assert [(f.key, f.value) for f in on_device(faults, 2)] == [("xid", "13"), ("row-remap", "pending")]
    assert len(on_device(faults, None)) == 3


def test_ecc_errors_are_counted_from_poll_to_poll() -> None:
    before = replace(WELL, uncorrected_ecc=3)
    assert counted_faults(None, before) == ()
    assert counted_faults(before, replace(before, uncorrected_ecc=0)) == ()
    (fault,) = counted_faults(before, replace(before, uncorrected_ecc=5))
    assert (fault.health_class, fault.message) == (HealthClass.CONTAINED, "2 uncorrectable ECC errors")


def test_errors_of_nvlinks_since_the_last_poll_inform_for_ten_minutes() -> None:
    before = replace(WELL, nvlink_replays=3, nvlink_recoveries=0)
    assert counted_faults(before, before) == ()
    assert counted_faults(before, replace(before, nvlink_replays=None)) == (), "nothing is made up"
    found = counted_faults(before, replace(before, nvlink_replays=53, nvlink_recoveries=1))
    assert [(f.key, f.value, f.blocks, f.message) for f in found] == [
        ("nvlink-errors", "replay", False, "50 packets were sent again over NVLinks"),
        ("nvlink-errors", "recovery", False, "1 NVLinks were trained again"),
    ]
    health = noted(GpuHealth(), found[0])
    assert after(health, WELL, INFORMED_POLLS - 1).faults
    assert not after(health, WELL, INFORMED_POLLS).faults


def test_errors_count_over_a_poll_that_did_not_have_the_counter() -> None:
    before = replace(WELL, uncorrected_ecc=3, nvlink_replays=7)
    gap = with_last_counts(before, replace(WELL, uncorrected_ecc=None, unanswered={"ecc": "TIMEOUT"}))
    assert (gap.uncorrected_ecc, gap.nvlink_replays) == (3, 7)
    (fault,) = counted_faults(gap, replace(before, uncorrected_ecc=4))
    assert fault.message == "1 uncorrectable ECC errors"


@pytest.mark.parametrize(
    ("shown", "key", "clears_after"),
    [
        ({"recovery_action": 1}, "recovery-action", CLEAR_POLLS),
        ({"remap_pending": True}, "row-remap", CLEAR_POLLS),
        ({"retirement_pending": True}, "page-retirement", CLEAR_POLLS),
        ({"fabric_state": 3, "fabric_status": 1}, "fabric", 1),
    ],
)
def test_a_fault_holds_while_the_question_that_shows_it_is_not_answered(
    shown: dict[str, Any], key: str, clears_after: int
) -> None:
    broken = polled(GpuHealth(), replace(WELL, **shown))
    assert [fault.key for fault in broken.faults] == [key]
    unknown: dict[str, Any] = dict.fromkeys(shown)
    dumb = replace(WELL, **unknown, unanswered={key: "nvmlCall says UNKNOWN"})
    held = after(broken, dumb, 100)
    assert [fault.key for fault in held.faults] == [key, "unmonitored"]
    assert held.faults[0].blocks
    assert any(fault.blocks for fault in after(held, WELL, clears_after - 1).faults)
    assert not any(fault.blocks for fault in after(held, WELL, clears_after).faults)


def test_a_fatal_xid_needs_the_drivers_word_and_no_silence_of_it() -> None:
    health = noted(GpuHealth(), xid(79))
    dumb = replace(WELL, recovery_action=None, unanswered={"recovery-action": "nvmlDeviceGetFieldValues says UNKNOWN"})
    away = after(polled(health, LOST), dumb, 100)
    assert any(fault.key == "xid" for fault in away.faults)


def test_a_question_that_keeps_failing_informs_after_a_minute_and_blocks_nothing() -> None:
    dumb = replace(WELL, unanswered={"page-retirement": "nvmlDeviceGetRetiredPagesPendingStatus says UNKNOWN"})
    assert after(GpuHealth(), dumb, LASTS_POLLS - 1).faults == ()
    (fault,) = after(GpuHealth(), dumb, LASTS_POLLS).faults
    assert (fault.key, fault.value, fault.blocks) == ("unmonitored", "partly", False)
    assert "page-retirement (nvmlDeviceGetRetiredPagesPendingStatus says UNKNOWN)" in fault.message
    assert after(after(GpuHealth(), dumb, 9), WELL, CLEAR_POLLS).faults == ()


def test_nvlinks_that_stay_down_inform_after_a_minute_and_a_worn_sram_at_once() -> None:
    down = replace(WELL, nvlinks_down=3)
    assert after(GpuHealth(), down, LASTS_POLLS - 1).faults == ()
    (fault,) = after(GpuHealth(), down, LASTS_POLLS).faults
    assert (fault.key, fault.value, fault.blocks) == ("nvlink", "down", False)
    assert fault.message == "3 of its NVLinks are down"
    (worn,) = polled(GpuHealth(), replace(WELL, sram_exceeded=True)).faults
    assert (worn.key, worn.value, worn.blocks) == ("sram", "threshold-exceeded", False)


def test_a_gpu_that_a_poll_does_not_name_is_lost_silent_or_gone() -> None:
    assert Poll((WELL,)).of(GPU) is WELL
    assert Poll(lost="a", refused="b").of(GPU) == GpuState(GPU, lost="a")
    assert Poll(refused="b").of(GPU) == GpuState(GPU, silent="b")
    assert Poll().of(GPU).lost == "the driver does not list this GPU any more"


def test_a_message_is_cut_to_what_kubelet_keeps() -> None:
    text = message([replace(xid(number), message="x" * 100) for number in range(200, 230)])
    assert len(text) == MAX_MESSAGE
    assert text.endswith("...")


STEPS = st.lists(
    st.sampled_from([WELL, WELL, WELL, LOST, SILENT, replace(WELL, recovery_action=1), 48, 31]), max_size=60
)


@settings(derandomize=True)
@given(STEPS)
def test_a_gpu_is_blocked_from_a_bad_sign_until_enough_good_polls_in_a_row(steps: list[GpuState | int]) -> None:
    """Against a slow version that reads the whole history each time, for drivers that tell a recovery action."""
    health = GpuHealth()
    for at, step in enumerate(steps):
        health = noted(health, xid(step)) if isinstance(step, int) else polled(health, step)
        blocked = any(fault.blocks for fault in health.faults)
        assert len(health.faults) == len({(f.key, f.value) for f in health.faults})
        history = steps[: at + 1]
        signs = [n for n, s in enumerate(history) if s == 48 or s is LOST or getattr(s, "recovery_action", 0) == 1]
        silences = _silences(history)
        if not signs and not silences:
            assert not blocked
            continue
        since = history[max([*signs, *silences]) + 1 :]
        if since.count(WELL) == 0:
            assert blocked
        in_row = _good_at_end(history)
        if in_row < CLEAR_POLLS and since.count(WELL) < CLEAR_POLLS:
            assert blocked
        if in_row >= CLEAR_POLLS << MAX_DOUBLINGS:
            assert not blocked


def _silences(history: list[GpuState | int]) -> list[int]:
    """Places where LASTS_POLLS polls in a row gave no answer; events in between do not count."""
    polls = [(n, s) for n, s in enumerate(history) if not isinstance(s, int)]
    row, found = 0, []
    for n, state in polls:
        row = row + 1 if state is SILENT else 0
        if row >= LASTS_POLLS:
            found.append(n)
    return found


def _good_at_end(history: list[GpuState | int]) -> int:
    count = 0
    for step in reversed(history):
        if step is not WELL and step != 31:
            break
        count += step is WELL
    return count
