"""Limits on how much of a GPU's memory a cgroup may take, by NVML: nvmlDeviceSetMemoryLimits_v1 of driver R615."""

from __future__ import annotations

from typing import Any, Final

import pynvml

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.nvml.library import GpuDriverNotReadyError, NvmlLibrary, error_name, gpu_handle
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError

NONE_BYTES: Final = int(pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
"""The hard limit that means no limit."""

_NOT_OFFERED: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "this GPU has no memory limits: it is divided into MIG devices, or the driver was "
    "loaded with RmMemacctMode=0; load it without that",
    pynvml.NVML_ERROR_NO_PERMISSION: "only root may set memory limits: the kubelet plugin must run privileged",
    pynvml.NVML_ERROR_NOT_FOUND: "that cgroup has no dmem files: write `+dmem` into cgroup.subtree_control of every "
    "folder above it, or load the GPU driver with RmMemacctMode=1",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "this GPU driver has no memory limits, which came with R615: "
    "install a newer one",
}
_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_UNINITIALIZED,
    }
)


class NvmlMemoryLimits:
    """Sets them through a library that others open and close too; only for the driver's thread."""

    def __init__(self, library: NvmlLibrary, *, stays_open: bool) -> None:
        """`stays_open`: whether NVML is left open after a call."""
        self._library = library
        self._stays_open = stays_open

    def set(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """Limit how much of a GPU (UUID) the processes below a cgroup take, in bytes that are also reserved for them;
        None: no limit and no reservation.

        Raises GpuGoneError, also if NVML cannot be opened, NotOfferedError saying who must act, and TemporaryError for
        what may pass.
        """
        was_open = self._library.is_open
        try:
            self._library.open()
        except (GpuDriverNotReadyError, GpuDriverReleasedError) as error:
            raise GpuGoneError(f"no memory limit of {gpu} is set: {error}") from error
        try:
            self._set(gpu, cgroup, limit_bytes)
        except pynvml.NVMLError as error:
            raise _in_words(error, gpu, cgroup) from error
        finally:
            if not (was_open or self._stays_open):
                self._library.close()

    def _set(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        handle = self._library.call(gpu, _handle, gpu, named="nvmlDeviceGetHandleByUUID")
        hard_bytes = NONE_BYTES if limit_bytes is None else limit_bytes
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(cgroup.encode(), limit_bytes or 0, hard_bytes)
        self._library.call(gpu, pynvml.nvmlDeviceSetMemoryLimits_v1, handle, wanted)
        if limit_bytes is None:
            return
        seen = pynvml.c_nvmlGetMemoryLimits_v1_t(cgroup.encode())
        self._library.call(gpu, pynvml.nvmlDeviceGetMemoryLimits_v1, handle, seen)
        if seen.hardLimit == NONE_BYTES:  # any other number is the limit as the driver rounded it
            raise TemporaryError(f"the GPU driver took a memory limit of {gpu} for {cgroup} and shows none")


def _handle(gpu: str) -> Any:
    try:
        return gpu_handle(gpu)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # of the GPU, not of the cgroup
            raise GpuGoneError(f"the GPU driver does not know {gpu}") from error
        raise


def _in_words(error: pynvml.NVMLError, gpu: str, cgroup: str) -> Exception:
    name = error_name(error)
    text = f"the GPU driver sets no memory limit of {gpu} for {cgroup}: "
    if error.value in _GONE:
        return GpuGoneError(f"{text}{name}")
    if error.value in _NOT_OFFERED:
        return NotOfferedError(f"{text}{_NOT_OFFERED[error.value]} ({name})")
    return TemporaryError(f"{text}{name}")
