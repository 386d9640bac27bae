"""The state of confidential computing through the real pynvml over a fake library, and every refusal."""

from __future__ import annotations

from collections.abc import Iterator

import pynvml
import pytest

from dracaena.host.adapters.nvml.library import ERROR_NAMES, NvmlLibrary
from dracaena.host.facts.machine import LASTING
from dracaena.kubelet_plugin.adapters.nvml.confidential import confidential_state
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeConfidential
from support.machines import plain_machine

CALLS = ("nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeGpusReadyState")
UNKNOWN = {CALLS[0]: ConfidentialState(), CALLS[1]: ConfidentialState("on")}


class Driver:
    """An open driver whose GPUs compute confidentially."""

    def __init__(self) -> None:
        self.nvml = FakeNvml(plain_machine(2, cc_capable=True, cc_mode="on"))
        self.errors: list[tuple[str, str]] = []
        self.library = NvmlLibrary(lambda: self.nvml, lambda call, error: self.errors.append((call, error)))
        self.library.open()

    @property
    def says(self) -> FakeConfidential:
        assert self.nvml.confidential is not None
        return self.nvml.confidential


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.library.close()


def test_gpus_are_ready_once_somebody_has_said_so(driver: Driver) -> None:
    assert confidential_state(driver.library) == ConfidentialState("on", ready=False)
    driver.says.ready = 1
    assert confidential_state(driver.library) == ConfidentialState("on", ready=True)
    driver.says.dev_tools = 1
    assert confidential_state(driver.library) == ConfidentialState("devtools", ready=True)


def test_where_nobody_has_to_say_so_the_drivers_no_means_nothing(driver: Driver) -> None:
    driver.says.feature = 0
    assert driver.says.ready == 0
    assert confidential_state(driver.library) == ConfidentialState("off", ready=None)


def test_a_ready_state_that_is_no_number_of_nvmls_is_not_taken_for_ready(driver: Driver) -> None:
    driver.says.ready = 2
    assert confidential_state(driver.library) == ConfidentialState("on", ready=None)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_refused_is_not_known_and_only_what_may_pass_is_counted(driver: Driver, call: str) -> None:
    driver.says.ready = 1
    for code in sorted(code for code in ERROR_NAMES if code != 0):
        driver.errors.clear()
        driver.nvml.refuse(call, code)
        assert confidential_state(driver.library) == UNKNOWN[call], ERROR_NAMES[code]
        assert driver.errors == ([] if ERROR_NAMES[code] in LASTING else [(call, ERROR_NAMES[code])])


@pytest.mark.parametrize("call", CALLS)
def test_an_older_library_has_no_such_call(driver: Driver, call: str) -> None:
    driver.nvml.missing.add(call)
    assert confidential_state(driver.library) == UNKNOWN[call]
    assert ERROR_NAMES[pynvml.NVML_ERROR_FUNCTION_NOT_FOUND] in LASTING
