"""The types of vGPU that the driver of the host knows for one GPU, through NVML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pynvml

from dracaena.host.adapters.nvml.mig import Ask
from dracaena.kubelet_plugin.discovery.vm.vgpus import VgpuTypeFacts


class VgpuTypeReader:
    """Reads the types of one GPU, including those without room for another vGPU, which the lists in sysfs lack."""

    def __init__(self, ask: Ask, device: str, index: int) -> None:
        self._ask = ask
        self._device = device
        self._index = index

    def read(self) -> Mapping[str, VgpuTypeFacts]:
        """Return them by number; those without a name are left out."""
        handle = self._ask(self._device, pynvml.nvmlDeviceGetHandleByIndex, self._index)
        if handle is None:
            return {}
        numbers = self._ask(self._device, pynvml.nvmlDeviceGetSupportedVgpus, handle) or ()
        found = {str(number): self._type(handle, number) for number in map(int, numbers)}
        return {number: one for number, one in found.items() if one is not None}

    def _type(self, handle: Any, number: int) -> VgpuTypeFacts | None:
        device = f"vGPU type {number} of {self._device}"
        name = self._ask(device, pynvml.nvmlVgpuTypeGetName, number)
        size = self._ask(device, pynvml.nvmlVgpuTypeGetFramebufferSize, number)
        most = self._ask(device, pynvml.nvmlVgpuTypeGetMaxInstances, handle, number)
        return None if name is None else VgpuTypeFacts(name, int(size) if size else None, int(most) if most else None)
