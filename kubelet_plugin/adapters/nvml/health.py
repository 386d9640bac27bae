"""The health of all GPUs through NVML: events since the last look, and states."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any

import pynvml

from dracaena.host.adapters.nvml.events import NvmlEvents
from dracaena.host.adapters.nvml.library import GONE, NvmlError, NvmlLibrary
from dracaena.host.facts.health import GpuEvent, GpuState, Poll
from dracaena.host.facts.machine import LeftOut
from dracaena.kubelet_plugin.adapters.nvml.confidential import confidential_state
from dracaena.kubelet_plugin.discovery.health import gpu_health

_RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_NVLINK_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
"""Counters of all links together. Drivers do not have them for each generation of NVLinks."""
_RESET_DUE = 1
"""NVML_GPU_RECOVERY_ACTION_GPU_RESET."""


class _LostError(Exception):
    """NVML says that the GPU is gone."""


class NvmlHealth:
    """Uses a library that others open and close too. One thread at a time."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._events = NvmlEvents(library)

    def events(self) -> tuple[GpuEvent, ...]:
        """See NvmlEvents.events(): nothing before the first poll(), which also registers again for the events of GPUs
        that answer.
        """
        return self._events.events()

    def poll(self) -> Poll:
        """Return the states of all GPUs. Raises NvmlError if the driver is not ready or does not tell their number.

        NVML is closed then, and also if not a single GPU can be named: the handles may belong to a driver that has
        been reloaded since.
        """
        try:
            self._library.open()
            poll = self._poll()
        except NvmlError:
            self._library.close()
            raise
        if not poll.states:
            self._library.close()
        return poll

    def _poll(self) -> Poll:
        gpus = self._events.gpus()
        ready = confidential_state(self._library).ready
        states = tuple(self._state(uuid, handle, cc_ready=ready) for uuid, handle in gpus.handles.items())
        answered = {state.uuid for state in states if state.lost is None and state.silent is None}
        self._events.watch_again({uuid: handle for uuid, handle in gpus.handles.items() if uuid in answered})
        return Poll(states, gpus.lost, gpus.refused)

    def _state(self, uuid: str, handle: Any, *, cc_ready: bool | None) -> GpuState:
        asked = _Questions(uuid, self._library)
        try:
            told = _states(asked.ask, handle)
        except _LostError as error:
            return GpuState(uuid, lost=str(error))
        if asked.unanswered and not asked.has_answered:
            return GpuState(uuid, silent=next(iter(asked.unanswered.values())))
        if asked.reset_due:
            told["recovery_action"] = told["recovery_action"] or _RESET_DUE
        unwatched = self._events.unwatched(uuid)
        return GpuState(uuid, unwatched=unwatched, cc_ready=cc_ready, unanswered=asked.unanswered, **told)


class _Questions:
    """Asks for the states of one GPU. A question that one driver does not answer must not hide what others show."""

    def __init__(self, uuid: str, library: NvmlLibrary) -> None:
        self._uuid = uuid
        self._library = library
        self.unanswered: dict[str, str] = {}
        """See GpuState."""
        self.has_answered = False
        self.reset_due = False

    def ask(self, key: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer of a call, None if there is none; `key` is that of the fault that it would show. Raises
        _LostError.
        """
        answer = self._library.ask(self._uuid, call, *arguments, refused=partial(self._note, key))
        self.has_answered |= answer is not None
        return answer

    def _note(self, key: str, question: LeftOut, code: int | None) -> None:
        says = f"{question.call} says {question.reason}"
        if code in GONE:
            raise _LostError(says)
        if code == pynvml.NVML_ERROR_RESET_REQUIRED:
            self.has_answered = self.reset_due = True
        elif question.may_pass:
            self.unanswered.setdefault(key, says)


_Ask = Callable[..., Any]
"""_Questions.ask()."""


def _states(ask: _Ask, handle: Any) -> dict[str, Any]:
    """Return the fields of GpuState that the driver tells."""
    action = ask(gpu_health.RECOVERY_ACTION, pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION_FIELD])
    links = ask(gpu_health.NVLINK_ERRORS, pynvml.nvmlDeviceGetFieldValues, handle, list(_NVLINK_FIELDS))
    ecc = ask(
        gpu_health.ECC,
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    rows = ask(gpu_health.ROW_REMAP, pynvml.nvmlDeviceGetRemappedRows, handle)
    pages = ask(gpu_health.PAGE_RETIREMENT, pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    clocks = ask(gpu_health.SLOWDOWN, pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    has_sram = ask(gpu_health.SRAM, pynvml.nvmlDeviceGetSramEccErrorStatus, handle, byref(sram)) is not None
    return {
        "recovery_action": None if action is None else _field(action[0]),
        "nvlink_replays": None if links is None else _field(links[0]),
        "nvlink_recoveries": None if links is None else _field(links[1]),
        "uncorrected_ecc": ecc,
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "retirement_pending": None if pages is None else pages == pynvml.NVML_FEATURE_ENABLED,
        "clock_reasons": clocks,
        "sram_exceeded": bool(sram.bThresholdExceeded) if has_sram else None,
        **_fabric(ask, handle),
    }


def _fabric(ask: _Ask, handle: Any) -> dict[str, Any]:
    """Return the fields about the fabric, from the newest call that the driver knows; the first form has no health."""
    info: Any = pynvml.c_nvmlGpuFabricInfo_v2_t()
    told = ask(gpu_health.FABRIC, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info))
    if told is None:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        told = ask(gpu_health.FABRIC, pynvml.nvmlDeviceGetGpuFabricInfo, handle, byref(info))
    if told is None:
        return {}
    return {
        "fabric_state": int(info.state),
        "fabric_status": int(info.status),
        "fabric_health": int(getattr(info, "healthMask", 0)),
    }


def _field(value: Any) -> int | None:
    """Return the number of a field, None if the driver does not have it."""
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    is_short = value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    return int(value.value.uiVal if is_short else value.value.ullVal)
