"""Health through the real pynvml over a fake library: events, states, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pynvml
import pytest

from dracaena.api.machine import Gpu, Machine
from dracaena.host.adapters.nvml.events import MAX_EVENTS
from dracaena.host.adapters.nvml.library import ERROR_NAMES, NvmlError, NvmlLibrary
from dracaena.host.facts.health import GpuEvent, GpuState
from dracaena.host.facts.machine import LASTING
from dracaena.kubelet_plugin.adapters.nvml.health import NvmlHealth
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeConfidential, FakeFabric
from support.topologies import topology_from_matrix

UUIDS = [f"GPU-00000000-0000-0000-0000-{at:012}" for at in range(2)]
MACHINE = Machine(
    name="two",
    gpus=tuple(Gpu(uuid=uuid, index=at, minor=at) for at, uuid in enumerate(UUIDS)),
    topology=topology_from_matrix([["X", "PIX"], ["PIX", "X"]]),
)
STATE_CALLS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetSramEccErrorStatus",
)
NAMING_CALLS = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
EVENT_CALLS = ("nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents")
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND}
CODES = sorted(code for code in ERROR_NAMES if code != 0)


class FakeGpuDriver:
    """A fake GPU driver and what reads its health."""

    def __init__(self) -> None:
        self.nvml = FakeNvml(MACHINE)
        self.errors: list[tuple[str, str]] = []
        self.library = NvmlLibrary(lambda: self.nvml, lambda call, error: self.errors.append((call, error)))
        self.health = NvmlHealth(self.library)

    def state(self, gpu: int) -> GpuState:
        return self.health.poll().of(UUIDS[gpu])


@pytest.fixture
def gpu_driver() -> Iterator[FakeGpuDriver]:
    made = FakeGpuDriver()
    yield made
    made.library.close()


def refusing(call: str, *, gpu: int | None = None) -> Iterator[tuple[FakeGpuDriver, int, str]]:
    """Give a GPU driver that refuses a call for each error that there is, with the error's number and name. Hundreds of
    cases: what fails names the error in its message."""
    for code in CODES:
        made = FakeGpuDriver()
        made.nvml.refuse(call, code, gpu=gpu)
        yield made, code, ERROR_NAMES[code]
        made.library.close()


def test_a_well_gpu_tells_all_that_is_asked(gpu_driver: FakeGpuDriver) -> None:
    assert gpu_driver.state(0) == GpuState(
        UUIDS[0], recovery_action=0, uncorrected_ecc=0, remap_pending=False, remap_failed=False, clock_reasons=1
    )


def test_gpus_that_compute_confidentially_tell_whether_they_take_work(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.nvml.confidential = FakeConfidential(capable=1, feature=1)
    assert [gpu_driver.state(gpu).cc_ready for gpu in range(2)] == [False, False]
    gpu_driver.nvml.confidential.ready = 1
    assert gpu_driver.state(0).cc_ready is True
    gpu_driver.nvml.confidential = FakeConfidential(capable=1, feature=0, ready=0)
    assert gpu_driver.state(0).cc_ready is None, "in mode off the driver says that they are not ready"


def test_what_a_gpu_shows_is_read(gpu_driver: FakeGpuDriver) -> None:
    health = gpu_driver.nvml.health[1]
    health.recovery_action, health.uncorrected_ecc, health.clock_reasons = 2, 7, 0x40
    health.remap_pending = health.remap_failed = health.retirement_pending = True
    assert gpu_driver.state(1) == GpuState(
        UUIDS[1],
        recovery_action=2,
        uncorrected_ecc=7,
        remap_pending=True,
        remap_failed=True,
        retirement_pending=True,
        clock_reasons=0x40,
    )
    assert gpu_driver.state(0).recovery_action == 0


@pytest.mark.parametrize("old_gpu_driver", [False, True])
def test_the_state_of_the_fabric_is_read_in_the_newest_form_that_the_driver_knows(
    gpu_driver: FakeGpuDriver, old_gpu_driver: bool
) -> None:
    gpu_driver.nvml.fabric[1] = FakeFabric(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_ERROR_UNKNOWN, 0x5)
    if old_gpu_driver:
        gpu_driver.nvml.missing.add("nvmlDeviceGetGpuFabricInfoV")
    state = gpu_driver.state(1)
    assert (state.fabric_state, state.fabric_status) == (3, pynvml.NVML_ERROR_UNKNOWN)
    assert state.fabric_health == (0 if old_gpu_driver else 0x5)
    assert (gpu_driver.state(0).fabric_state, gpu_driver.errors) == (None, [])


def test_an_xid_is_told_once_with_its_gpu_and_instance(gpu_driver: FakeGpuDriver) -> None:
    assert gpu_driver.health.events() == ()
    gpu_driver.health.poll()
    gpu_driver.nvml.report_xid(1, 79)
    gpu_driver.nvml.report_xid(0, 13, gpu_instance=3)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0], 13, 3), GpuEvent(UUIDS[1], 79))
    assert gpu_driver.health.events() == ()


def test_a_flood_of_events_is_taken_in_parts(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    for _ in range(MAX_EVENTS + 1):
        gpu_driver.nvml.report_xid(0, 31)
    assert len(gpu_driver.health.events()) == MAX_EVENTS
    assert len(gpu_driver.health.events()) == 1


def test_after_nvml_was_opened_anew_events_are_asked_for_anew(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.library.close()
    assert gpu_driver.nvml.registered == set()
    assert gpu_driver.health.events() == ()
    gpu_driver.health.poll()
    assert gpu_driver.nvml.registered == {0, 1}
    gpu_driver.nvml.report_xid(0, 48)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0], 48),)


def test_where_another_step_opened_nvml_anew_the_next_look_at_events_asks_for_them(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.library.close()
    gpu_driver.library.open()  # as a change of the MIG mode does
    assert gpu_driver.health.events() == ()
    gpu_driver.nvml.report_xid(0, 79)
    gpu_driver.nvml.report_xid(1, 48)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0], 79), GpuEvent(UUIDS[1], 48))
    calls = len(gpu_driver.nvml.calls)
    gpu_driver.health.events()
    assert set(gpu_driver.nvml.calls[calls:]) == {"nvmlEventSetWait_v2"}


def test_a_driver_that_does_not_answer_when_events_are_asked_for_anew_is_left_to_the_poll(
    gpu_driver: FakeGpuDriver,
) -> None:
    gpu_driver.health.poll()
    gpu_driver.library.close()
    gpu_driver.library.open()
    gpu_driver.nvml.refuse("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
    assert gpu_driver.health.events() == ()
    with pytest.raises(NvmlError):
        gpu_driver.health.poll()


def test_what_happened_until_nvml_is_closed_is_told(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.nvml.report_xid(1, 79)
    gpu_driver.library.close()
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[1], 79),)
    assert gpu_driver.health.events() == ()


@pytest.mark.parametrize("code", [code for code in CODES if code not in {pynvml.NVML_ERROR_TIMEOUT, *LOST}])
def test_a_gpu_whose_events_cannot_be_read_is_unwatched_for_one_poll_and_asked_for_anew(
    gpu_driver: FakeGpuDriver, code: int
) -> None:
    gpu_driver.health.poll()
    gpu_driver.nvml.refuse("nvmlEventSetWait_v2", code)
    assert gpu_driver.health.events() == ()
    gpu_driver.nvml.allow()
    poll = gpu_driver.health.poll()
    assert all(ERROR_NAMES[code] in (poll.of(uuid).unwatched or "") for uuid in UUIDS)
    if ERROR_NAMES[code] in LASTING:
        assert gpu_driver.nvml.registered == set()
        return
    assert [gpu_driver.state(gpu).unwatched for gpu in range(2)] == [None, None]
    gpu_driver.nvml.report_xid(0, 48)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0], 48),)


def test_one_lost_gpu_silences_no_xid_of_another(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.nvml.lost.add(0)
    assert gpu_driver.nvml.report_xid(1, 48)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0]), GpuEvent(UUIDS[1], 48))
    for _ in range(3):
        poll = gpu_driver.health.poll()
        assert poll.of(UUIDS[0]).lost is not None
        assert poll.of(UUIDS[1]).unwatched is None
        assert gpu_driver.nvml.report_xid(1, 63)
        assert gpu_driver.health.events() == (GpuEvent(UUIDS[1], 63),)


def test_an_xid_that_came_before_a_gpu_was_lost_is_told(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.nvml.report_xid(0, 79)
    gpu_driver.nvml.lost.add(0)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[0], 79), GpuEvent(UUIDS[0]))


@pytest.mark.parametrize("lost_from_the_start", [False, True])
def test_a_gpu_that_is_back_is_watched_again(gpu_driver: FakeGpuDriver, lost_from_the_start: bool) -> None:
    if not lost_from_the_start:
        gpu_driver.health.poll()
    gpu_driver.nvml.lost.add(1)
    gpu_driver.health.events()
    gpu_driver.health.poll()
    gpu_driver.nvml.lost.clear()
    gpu_driver.health.poll()
    assert gpu_driver.state(1).unwatched is None
    assert gpu_driver.nvml.report_xid(1, 48)
    assert gpu_driver.health.events() == (GpuEvent(UUIDS[1], 48),)


@pytest.mark.parametrize("call", STATE_CALLS)
def test_a_refusal_means_lost_a_reset_or_a_question_without_an_answer(call: str) -> None:
    for gpu_driver, code, error in refusing(call, gpu=0):
        state = gpu_driver.state(0)
        if code in LOST:
            assert call.removesuffix("_v2") in (state.lost or ""), error
        elif code == pynvml.NVML_ERROR_RESET_REQUIRED:
            assert state.recovery_action == 1
            assert (state.lost, state.silent) == (None, None)
        else:
            assert (state.lost, state.silent) == (None, None), error
            assert any(error in why for why in state.unanswered.values()) == (error not in LASTING), error
    assert gpu_driver.state(1).recovery_action == 0


def test_one_question_that_keeps_failing_hides_nothing_that_others_show(gpu_driver: FakeGpuDriver) -> None:
    health = gpu_driver.nvml.health[0]
    health.recovery_action, health.remap_pending = 1, True
    gpu_driver.nvml.refuse("nvmlDeviceGetRetiredPagesPendingStatus", pynvml.NVML_ERROR_UNKNOWN, 0)
    state = gpu_driver.state(0)
    assert (state.silent, state.recovery_action, state.remap_pending) == (None, 1, True)
    assert state.unanswered == {"page-retirement": "nvmlDeviceGetRetiredPagesPendingStatus says UNKNOWN"}


def test_a_gpu_that_answers_nothing_is_silent(gpu_driver: FakeGpuDriver) -> None:
    for call in STATE_CALLS:
        gpu_driver.nvml.refuse(call, pynvml.NVML_ERROR_TIMEOUT, gpu=0)
    assert "TIMEOUT" in (gpu_driver.state(0).silent or "")
    assert gpu_driver.state(1).silent is None


def test_nvlink_counters_and_sram_are_read_where_the_driver_has_them(gpu_driver: FakeGpuDriver) -> None:
    health = gpu_driver.nvml.health[1]
    health.nvlink_replays, health.sram_exceeded = 1 << 33, True
    state = gpu_driver.state(1)
    assert (state.nvlink_replays, state.nvlink_recoveries, state.sram_exceeded) == (1 << 33, None, True)
    assert gpu_driver.state(0).sram_exceeded is None


@pytest.mark.parametrize("call", NAMING_CALLS)
def test_a_gpu_that_cannot_be_named_is_lost_or_silent(call: str) -> None:
    for gpu_driver, code, error in refusing(call, gpu=0):
        state = gpu_driver.state(0)
        assert error in ((state.lost if code in LOST else state.silent) or "")
        assert gpu_driver.state(1).recovery_action == 0, error


def test_when_not_one_gpu_can_be_named_nvml_is_opened_anew(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.nvml.lost = {0, 1}
    gpu_driver.health.poll()
    assert gpu_driver.nvml.opened == 0
    gpu_driver.nvml.lost.clear()
    assert gpu_driver.state(0).unwatched is None


@pytest.mark.parametrize("call", EVENT_CALLS)
def test_a_gpu_whose_events_are_refused_is_unwatched_and_no_more(call: str) -> None:
    for gpu_driver, _, error in refusing(call):
        state = gpu_driver.state(0)
        assert error in (state.unwatched or "")
        assert state.recovery_action == 0, error


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_without_driver_or_count_there_is_no_poll(call: str) -> None:
    for gpu_driver, _, error in refusing(call):
        with pytest.raises(NvmlError, match=error):
            gpu_driver.health.poll()
        assert gpu_driver.library.doing() == "", error


@pytest.mark.parametrize("symbol", [*STATE_CALLS, *EVENT_CALLS, "nvmlEventSetWait_v2"])
def test_a_library_without_a_function_leaves_its_field_out(gpu_driver: FakeGpuDriver, symbol: str) -> None:
    gpu_driver.nvml.missing.add(symbol)
    state = gpu_driver.state(0)
    assert (state.lost, state.silent) == (None, None)


@pytest.mark.parametrize(
    "call", [*STATE_CALLS, *NAMING_CALLS, *EVENT_CALLS, "nvmlInitWithFlags", "nvmlDeviceGetCount_v2"]
)
def test_each_refusal_is_counted_by_call_and_error_unless_it_stays_for_ever(call: str) -> None:
    plain = {"nvmlInitWithFlags": "nvmlInit", "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount"}
    name = plain.get(call, call.removesuffix("_v2"))
    for gpu_driver, _, error in refusing(call):
        with suppress(NvmlError):
            gpu_driver.health.poll()
        assert set(gpu_driver.errors) == (set() if error in LASTING else {(name, error)}), error


def test_events_that_cannot_be_read_are_counted_and_an_empty_look_is_not(gpu_driver: FakeGpuDriver) -> None:
    gpu_driver.health.poll()
    gpu_driver.health.events()
    assert gpu_driver.errors == []
    gpu_driver.nvml.refuse("nvmlEventSetWait_v2", pynvml.NVML_ERROR_UNKNOWN)
    gpu_driver.health.events()
    assert gpu_driver.errors == [("nvmlEventSetWait", "UNKNOWN")] * 2
