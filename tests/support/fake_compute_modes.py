"""The compute modes of a fake NVML: what `dracaena mps` asks besides what the plugin does."""

from __future__ import annotations

from typing import Any

import pynvml

from dracaena.api.machine import Machine
from support.fake_nvml import FakeNvml


class FakeNvmlWithModes(FakeNvml):
    """Ordinal → compute mode in `modes`; all begin as the driver's default."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.modes: dict[int, int] = dict.fromkeys(range(len(machine.gpus)), pynvml.NVML_COMPUTEMODE_DEFAULT)

    def _nvmlDeviceGetComputeMode(self, handle: Any, mode: Any) -> int:
        mode._obj.value = self.modes[self.machine.gpus.index(self._gpu(handle))]
        return int(pynvml.NVML_SUCCESS)

    def _nvmlDeviceSetComputeMode(self, handle: Any, mode: Any) -> int:
        self.modes[self.machine.gpus.index(self._gpu(handle))] = int(mode.value)
        return int(pynvml.NVML_SUCCESS)
