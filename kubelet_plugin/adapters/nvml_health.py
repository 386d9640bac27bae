"""The health of all GPUs through NVML: events since the last look, and states."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from dracaena.kubelet_plugin.adapters.nvml_library import NvmlError, NvmlLibrary, error_name
from dracaena.kubelet_plugin.discovery.health_facts import GpuEvent, GpuState, Poll
from dracaena.kubelet_plugin.discovery.inventory import LASTING

EVENT_TYPES = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeDramRetirementEvent
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
"""Only XIDs carry a meaning of their own; the others make the states worth a look at once."""

MAX_EVENTS = 256
"""Taken at one look: a GPU that floods events must not keep the driver's thread for ever."""

_WHOLE_GPU = 0xFFFFFFFF
_RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_RESET_DUE = 1
"""NVML_GPU_RECOVERY_ACTION_GPU_RESET."""
_GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})


class _LostError(Exception):
    """NVML says that the GPU is gone."""


class NvmlHealth:
    """Looks through a library that others open and close too. One thread at a time; `doing` may be read by others."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._session = 0
        self._set: Any = None
        self._uuids: dict[int, str] = {}  # by handle: an event names its GPU by it, also one that is lost
        self._unwatched: dict[str, str] = {}
        self.doing = ""

    def events(self) -> tuple[GpuEvent, ...]:
        """Return what happened since the last look, without waiting; nothing before the first poll() of a session.

        Raises NvmlError when events cannot be read. The next poll() asks for them anew.
        """
        if self._set is None or not self._library.is_open or self._session != self._library.session:
            return ()
        found: list[GpuEvent] = []
        self.doing = "nvmlEventSetWait"
        try:
            while len(found) < MAX_EVENTS:
                found.append(self._event(pynvml.nvmlEventSetWait_v2(self._set, 0)))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._library.note(self.doing, error_name(error))
                self._drop_set()
                if not found:
                    raise NvmlError(f"events cannot be read: {error_name(error)}", error.value) from error
        finally:
            self.doing = ""
        return tuple(found)

    def poll(self) -> Poll:
        """Return the states of all GPUs. Raises NvmlError when the driver is not ready or tells no count.

        While a GPU cannot be named NVML is closed again, as after a reading (NvmlReader): nobody may hold a GPU that is
        to be reset. Until it is back events are not heard, only states.
        """
        self.doing = "nvmlInit"
        try:
            self._library.open()
            poll = self._poll()
            if poll.lost is not None or poll.refused is not None:
                self._library.close()
            return poll
        finally:
            self.doing = ""

    def _poll(self) -> Poll:
        self.doing = "nvmlDeviceGetCount"
        with self._library.needed(self.doing, "how many GPUs there are"):
            count: int = pynvml.nvmlDeviceGetCount()
        handles: dict[str, Any] = {}
        lost = refused = None
        for index in range(count):
            try:
                uuid, handle = self._gpu(index)
                handles[uuid] = handle
            except NvmlError as error:
                if error.code in _GONE:
                    lost = str(error)
                else:
                    refused = str(error)
        if self._session != self._library.session:
            self._watch(handles)
        return Poll(tuple(self._state(uuid, handle) for uuid, handle in handles.items()), lost, refused)

    def _gpu(self, index: int) -> tuple[str, Any]:
        self.doing = f"nvmlDeviceGetHandleByIndex of GPU {index}"
        with self._library.needed("nvmlDeviceGetHandleByIndex", f"the handle of GPU {index}"):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.doing = f"nvmlDeviceGetUUID of GPU {index}"
        with self._library.needed("nvmlDeviceGetUUID", f"the UUID of GPU {index}"):
            return pynvml.nvmlDeviceGetUUID(handle), handle

    def _watch(self, handles: dict[str, Any]) -> None:
        """Ask for events, once a session: handles and event sets end with it."""
        self._session, self._set = self._library.session, None
        self._uuids = {_pointer(handle): uuid for uuid, handle in handles.items()}
        self._unwatched = {}
        self.doing = "nvmlEventSetCreate"
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._library.note(self.doing, error_name(error))
            self._unwatched = dict.fromkeys(handles, f"nvmlEventSetCreate says {error_name(error)}")
            return
        for uuid, handle in handles.items():
            try:
                self.doing = call = "nvmlDeviceGetSupportedEventTypes"
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENT_TYPES
                self.doing = call = "nvmlDeviceRegisterEvents"
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, self._set)
                if not kinds & pynvml.nvmlEventTypeXidCriticalError:
                    self._unwatched[uuid] = "the driver does not report XIDs of this GPU"
            except pynvml.NVMLError as error:
                self._library.note(call, error_name(error))
                self._unwatched[uuid] = f"events of this GPU are not reported: {error_name(error)}"
        if len(self._unwatched) == len(handles):
            self._set = None  # nothing will ever come

    def _drop_set(self) -> None:
        """Let go of an event set that does not work, so that the next poll makes another."""
        self._session = 0
        with suppress(pynvml.NVMLError):  # then it goes with the session
            pynvml.nvmlEventSetFree(self._set)

    def _event(self, data: Any) -> GpuEvent:
        is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        instance = int(data.gpuInstanceId)
        return GpuEvent(
            uuid=self._uuids.get(_pointer(data.device)),
            xid=int(data.eventData) if is_xid else None,
            gpu_instance=None if instance == _WHOLE_GPU else instance,
        )

    def _state(self, uuid: str, handle: Any) -> GpuState:
        troubles: list[str] = []

        def ask(call: Callable[..., Any], *arguments: Any) -> Any:
            self.doing = f"{call.__name__} of {uuid}"
            try:
                return call(*arguments)
            except pynvml.NVMLError as error:
                self._library.note(call.__name__, error_name(error))
                if error.value in _GONE:
                    raise _LostError(f"{call.__name__} says {error_name(error)}") from error
                if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
                    return error
                if error_name(error) not in LASTING:
                    troubles.append(f"{call.__name__} says {error_name(error)}")
                return None

        try:
            action = _action(ask(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_ACTION_FIELD]))
            ecc = ask(
                pynvml.nvmlDeviceGetTotalEccErrors,
                handle,
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                pynvml.NVML_VOLATILE_ECC,
            )
            rows = ask(pynvml.nvmlDeviceGetRemappedRows, handle)
            pages = ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
            clocks = ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        except _LostError as error:
            return GpuState(uuid, lost=str(error))
        reset_due = any(isinstance(answer, pynvml.NVMLError) for answer in (action, ecc, rows, pages, clocks))
        if troubles and not reset_due:
            return GpuState(uuid, silent=troubles[0])
        return GpuState(
            uuid,
            unwatched=self._unwatched.get(uuid),
            recovery_action=(_number(action) or _RESET_DUE) if reset_due else action,
            uncorrected_ecc=_number(ecc),
            remap_pending=bool(rows[2]) if isinstance(rows, tuple) else None,
            remap_failed=bool(rows[3]) if isinstance(rows, tuple) else None,
            retirement_pending=None if _number(pages) is None else pages == pynvml.NVML_FEATURE_ENABLED,
            clock_reasons=_number(clocks),
        )


def _action(values: Any) -> Any:
    """Return the field's number, the refusal that stands for a due reset, or None."""
    if values is None or isinstance(values, pynvml.NVMLError):
        return values
    return int(values[0].value.uiVal) if values[0].nvmlReturn == pynvml.NVML_SUCCESS else None


def _number(answer: Any) -> int | None:
    return answer if isinstance(answer, int) else None


def _pointer(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
