"""Compute modes by NVML, which is only open during a call, so that we never block a driver update, and is not opened
while somebody has asked for the driver to be released.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pynvml

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.nvml.library import Always, NvmlLibrary, Permission, error_name, gpu_handle
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.mps.planning.state import ComputeMode
from dracaena.mps.ports import DriverReleasedError

_WORDS = {
    "GPU_IS_LOST": "it has fallen off the bus; look at `dmesg | grep -i nvrm`, a reset or restart brings it back",
    "NOT_FOUND": "the driver does not know it",
    "NO_PERMISSION": "only root may set it: the supervisor must run privileged",
    "NOT_SUPPORTED": "this product has no compute modes, so MPS cannot be made the only way in",
}


class NvmlComputeModes:
    """Implements dracaena.mps.ports.ComputeModes. Used by one thread."""

    def __init__(self, library: NvmlLibrary, permission: Permission | None = None) -> None:
        """`permission` is that of the library."""
        self._library = library
        self._permission = permission or Always()

    def refusal(self) -> str | None:
        """See ComputeModes."""
        return self._permission.refusal()

    def read(self, gpus: Collection[str]) -> Mapping[str, ComputeMode | str]:
        """See ComputeModes."""
        if not gpus:
            return {}
        try:
            self._library.open()
        except GpuDriverReleasedError as error:
            raise DriverReleasedError(str(error)) from error
        except TemporaryError as error:
            return dict.fromkeys(sorted(gpus), str(error))
        try:
            return {gpu: _mode(gpu) for gpu in sorted(gpus)}
        finally:
            self._library.close()

    def set(self, gpu: str, mode: ComputeMode) -> None:
        """See ComputeModes."""
        self._library.open()
        try:
            pynvml.nvmlDeviceSetComputeMode(gpu_handle(gpu), int(mode))
        except pynvml.NVMLError as error:
            raise TemporaryError(f"the compute mode of {gpu} cannot be set to {mode.name}: {_words(error)}") from error
        finally:
            self._library.close()


def _mode(gpu: str) -> ComputeMode | str:
    try:
        number = pynvml.nvmlDeviceGetComputeMode(gpu_handle(gpu))
    except pynvml.NVMLError as error:
        return f"the GPU driver does not report its compute mode: {_words(error)}"
    try:
        return ComputeMode(number)
    except ValueError:
        return f"the GPU driver says compute mode {number}, expected 0 to 3"


def _words(error: pynvml.NVMLError) -> str:
    name = error_name(error)
    return f"{_WORDS[name]} ({name})" if name in _WORDS else name
