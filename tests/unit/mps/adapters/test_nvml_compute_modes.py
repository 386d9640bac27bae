"""Compute modes through the real pynvml on a fake library."""

from __future__ import annotations

import pynvml
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.mps.adapters.nvml_compute_modes import NvmlComputeModes
from dracaena.mps.planning.state import ComputeMode
from support.fake_compute_modes import FakeNvmlWithModes

MACHINE = read_machine("hgx-h100")
UUIDS = [gpu.uuid for gpu in MACHINE.gpus]


class Ground:
    def __init__(self) -> None:
        self.nvml = FakeNvmlWithModes(MACHINE)
        self.modes = NvmlComputeModes(NvmlLibrary(lambda: self.nvml))


def test_modes_are_set_and_read_gpu_by_gpu() -> None:
    ground = Ground()
    ground.modes.set(UUIDS[1], ComputeMode.EXCLUSIVE_PROCESS)
    assert ground.modes.read(UUIDS[:2]) == {UUIDS[0]: ComputeMode.DEFAULT, UUIDS[1]: ComputeMode.EXCLUSIVE_PROCESS}
    assert ground.nvml.modes[1] == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def test_nvml_is_open_only_while_it_is_asked() -> None:
    ground = Ground()
    ground.modes.read(UUIDS)
    ground.modes.set(UUIDS[0], ComputeMode.DEFAULT)
    ground.nvml.lost = {0}
    with pytest.raises(TemporaryError):
        ground.modes.set(UUIDS[0], ComputeMode.DEFAULT)
    assert ground.nvml.opened == 0


def test_a_gpu_that_does_not_answer_is_said_in_words_beside_those_that_do() -> None:
    """With one GPU off the bus NVML finds none by UUID."""
    ground = Ground()
    ground.nvml.lost = {0}
    ground.modes.set(UUIDS[2], ComputeMode.EXCLUSIVE_PROCESS)
    assert ground.nvml.modes[2] == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    unknown = "GPU-00000000-0000-0000-0000-000000000000"
    told = ground.modes.read([UUIDS[0], UUIDS[1], unknown])
    assert told[UUIDS[1]] is ComputeMode.DEFAULT
    assert "fallen off the bus" in str(told[UUIDS[0]])
    assert "fallen off the bus" in str(told[unknown]), "whether it is the lost one is not known"
    ground.nvml.lost.clear()
    assert "does not know it (NOT_FOUND)" in str(ground.modes.read([unknown])[unknown])


def test_a_mode_that_there_is_not_is_said() -> None:
    ground = Ground()
    ground.nvml.modes[0] = 9
    assert ground.modes.read(UUIDS[:1]) == {UUIDS[0]: "the GPU driver says compute mode 9, expected 0 to 3"}


def test_a_refusal_names_the_gpu_the_mode_and_who_must_act() -> None:
    ground = Ground()
    ground.nvml.refuse("nvmlDeviceSetComputeMode", pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(TemporaryError, match=rf"{UUIDS[0]} cannot be set to EXCLUSIVE_PROCESS: only root may set it"):
        ground.modes.set(UUIDS[0], ComputeMode.EXCLUSIVE_PROCESS)


def test_without_a_driver_every_gpu_says_what_is_waited_for() -> None:
    def load() -> object:
        raise GpuDriverNotReadyError("waiting for the NVIDIA driver: no library")

    modes = NvmlComputeModes(NvmlLibrary(load))
    assert modes.read(UUIDS[:2]) == dict.fromkeys(sorted(UUIDS[:2]), "waiting for the NVIDIA driver: no library")
