"""The health of all GPUs through NVML: events since the last look, and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pynvml

from dracaena.kubelet_plugin.adapters.nvml.confidential import confidential_state
from dracaena.kubelet_plugin.adapters.nvml.library import NvmlError, NvmlLibrary, error_name
from dracaena.kubelet_plugin.discovery.health import gpu_health
from dracaena.kubelet_plugin.discovery.health.facts import GpuEvent, GpuState, Poll
from dracaena.kubelet_plugin.discovery.health.troubles import GpuDriverReleasedError
from dracaena.kubelet_plugin.discovery.machine_facts import LASTING

EVENT_TYPES = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeDramRetirementEvent
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
"""Only XIDs have a meaning of their own; other events just trigger a poll of the states."""

MAX_EVENTS = 256
"""Most events taken from one GPU per look: a GPU that floods events must not keep the driver's thread busy forever."""

_WHOLE_GPU = 0xFFFFFFFF
_RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
_NVLINK_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
"""Counters of all links together. Drivers do not have them for each generation of NVLinks."""
_RESET_DUE = 1
"""NVML_GPU_RECOVERY_ACTION_GPU_RESET."""
GONE = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
"""Errors that say that a GPU is gone."""


class _LostError(Exception):
    """NVML says that the GPU is gone."""


@dataclass(frozen=True, slots=True)
class _Unwatched:
    """Why no event set covers a GPU."""

    reason: str
    lasting: bool


class NvmlHealth:
    """Uses a library that others open and close too. One thread at a time; others may read `doing`.

    Each GPU has its own event set: nvmlEventSetWait fails for a whole set as soon as one of its GPUs is lost, and NVML
    has no call that takes a GPU out of a set.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        library.before_close = self._let_go
        self._session = 0
        self._sets: dict[str, Any] = {}
        self._unwatched: dict[str, _Unwatched] = {}
        self._kept: list[GpuEvent] = []
        self.doing = ""

    def events(self) -> tuple[GpuEvent, ...]:
        """Return what happened since the last look, without waiting; nothing before the first poll(). If NVML was
        reopened since then, for example by a change of the MIG mode, this registers for the events again.

        A GPU whose events cannot be read counts as unwatched in the next poll(), which registers for them again. A lost
        GPU is an event too, so that the poll follows at once. Raises GpuDriverReleasedError while the driver is
        released.
        """
        try:
            self._library.obey()
        except GpuDriverReleasedError:
            if not self._kept:
                raise  # otherwise report what came before first
        found, self._kept = [*self._kept, *self._take()], []
        if self._session and self._library.is_open and self._session != self._library.session:
            with suppress(NvmlError):  # the next poll says what is wrong
                self._name_and_watch()
            self.doing = ""
        return tuple(found)

    def poll(self) -> Poll:
        """Return the states of all GPUs. Raises NvmlError if the driver is not ready or does not tell their number.

        NVML is closed then, and also if not a single GPU can be named: the handles may belong to a driver that has
        been reloaded since.
        """
        self.doing = "nvmlInit"
        try:
            self._library.open()
            poll = self._poll()
        except NvmlError:
            self._library.close()
            raise
        finally:
            self.doing = ""
        if not poll.states:
            self._library.close()
        return poll

    def watch(self) -> None:
        """Register for the events of all GPUs without reading states, which would cost some more calls for each GPU.

        NVML must be open, and stays so. Raises NvmlError if the driver does not report how many GPUs there are.
        """
        try:
            handles, _, _ = self._name_and_watch()
            self._watch_again(handles)
        finally:
            self.doing = ""

    def _poll(self) -> Poll:
        handles, lost, refused = self._name_and_watch()
        self.doing = "nvmlSystemGetConfComputeState"
        ready = confidential_state(self._library).ready
        states = tuple(self._state(uuid, handle, cc_ready=ready) for uuid, handle in handles.items())
        answered = {state.uuid for state in states if state.lost is None and state.silent is None}
        self._watch_again({uuid: handle for uuid, handle in handles.items() if uuid in answered})
        return Poll(states, lost, refused)

    def _name_and_watch(self) -> tuple[Mapping[str, Any], str | None, str | None]:
        """Register for the events of all GPUs that can be named; return them, and why one is lost or not named."""
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
                if error.code in GONE:
                    lost = str(error)
                else:
                    refused = str(error)
        if self._session != self._library.session:  # handles and event sets are those of an earlier one
            self._session = self._library.session
            self._sets, self._unwatched = {}, {}
        self._watch({u: h for u, h in handles.items() if u not in self._sets and u not in self._unwatched})
        return handles, lost, refused

    def _gpu(self, index: int) -> tuple[str, Any]:
        self.doing = f"nvmlDeviceGetHandleByIndex of GPU {index}"
        with self._library.needed("nvmlDeviceGetHandleByIndex", f"the handle of GPU {index}"):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.doing = f"nvmlDeviceGetUUID of GPU {index}"
        with self._library.needed("nvmlDeviceGetUUID", f"the UUID of GPU {index}"):
            return pynvml.nvmlDeviceGetUUID(handle), handle

    def _watch_again(self, handles: Mapping[str, Any]) -> None:
        """Register again for the events of GPUs that answer. Their states say that they were unwatched until now."""
        again = {uuid for uuid in handles.keys() & self._unwatched.keys() if not self._unwatched[uuid].lasting}
        for uuid in again:
            del self._unwatched[uuid]
        self._watch({uuid: handle for uuid, handle in handles.items() if uuid in again})

    def _watch(self, handles: Mapping[str, Any]) -> None:
        """Register for the events of these GPUs."""
        for uuid, handle in handles.items():
            event_set = None
            try:
                self.doing = call = "nvmlEventSetCreate"
                event_set = pynvml.nvmlEventSetCreate()
                self.doing = call = "nvmlDeviceGetSupportedEventTypes"
                kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENT_TYPES
                self.doing = call = "nvmlDeviceRegisterEvents"
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, event_set)
            except pynvml.NVMLError as error:
                self._library.note(call, error_name(error))
                self._drop(uuid, event_set, f"events of this GPU are not reported: {call} says", error)
                continue
            self._sets[uuid] = event_set
            if not kinds & pynvml.nvmlEventTypeXidCriticalError:
                self._unwatched[uuid] = _Unwatched("the driver does not report XIDs of this GPU", lasting=True)

    def _drop(self, uuid: str, event_set: Any, what: str, error: pynvml.NVMLError) -> None:
        """Free an event set that does not work."""
        self._unwatched[uuid] = _Unwatched(f"{what} {error_name(error)}", lasting=error_name(error) in LASTING)
        self._sets.pop(uuid, None)
        if event_set is not None:
            with suppress(pynvml.NVMLError):  # then it goes with the session
                pynvml.nvmlEventSetFree(event_set)

    def _take(self) -> list[GpuEvent]:
        if not self._library.is_open or self._session != self._library.session:
            return []
        found: list[GpuEvent] = []
        try:
            for uuid, event_set in tuple(self._sets.items()):
                self.doing = f"nvmlEventSetWait of {uuid}"
                found += self._take_of(uuid, event_set)
        finally:
            self.doing = ""
        return found

    def _take_of(self, uuid: str, event_set: Any) -> list[GpuEvent]:
        found: list[GpuEvent] = []
        try:
            while len(found) < MAX_EVENTS:
                found.append(_event(uuid, pynvml.nvmlEventSetWait_v2(event_set, 0)))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._library.note("nvmlEventSetWait", error_name(error))
                self._drop(uuid, event_set, "events of this GPU cannot be read: nvmlEventSetWait says", error)
            if error.value in GONE:
                found.append(GpuEvent(uuid))
        return found

    def _let_go(self) -> None:
        """Free all event sets, which keep the driver in use too, and save their events for the next look."""
        self._kept += self._take()
        for event_set in self._sets.values():
            with suppress(pynvml.NVMLError):  # then it goes with the session
                pynvml.nvmlEventSetFree(event_set)
        self._sets = {}

    def _state(self, uuid: str, handle: Any, *, cc_ready: bool | None) -> GpuState:
        asked = _Questions(uuid, self._library, self._begin)
        try:
            told = _states(asked.ask, handle)
        except _LostError as error:
            return GpuState(uuid, lost=str(error))
        if asked.unanswered and not asked.has_answered:
            return GpuState(uuid, silent=next(iter(asked.unanswered.values())))
        if asked.reset_due:
            told["recovery_action"] = told["recovery_action"] or _RESET_DUE
        unwatched = self._unwatched[uuid].reason if uuid in self._unwatched else None
        return GpuState(uuid, unwatched=unwatched, cc_ready=cc_ready, unanswered=asked.unanswered, **told)

    def _begin(self, doing: str) -> None:
        self.doing = doing


class _Questions:
    """Asks for the states of one GPU. A question that one driver does not answer must not hide what others show."""

    def __init__(self, uuid: str, library: NvmlLibrary, begin: Callable[[str], None]) -> None:
        self._uuid = uuid
        self._library = library
        self._begin = begin
        self.unanswered: dict[str, str] = {}
        """See GpuState."""
        self.has_answered = False
        self.reset_due = False

    def ask(self, key: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer of a call, None if there is none; `key` is that of the fault that it would show. Raises
        _LostError.
        """
        self._begin(f"{call.__name__} of {self._uuid}")
        try:
            answer = call(*arguments)
        except pynvml.NVMLError as error:
            self._note(key, call.__name__, error)
            return None
        self.has_answered = True
        return answer

    def _note(self, key: str, call: str, error: pynvml.NVMLError) -> None:
        self._library.note(call, error_name(error))
        if error.value in GONE:
            raise _LostError(f"{call} says {error_name(error)}") from error
        if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
            self.has_answered = self.reset_due = True
        elif error_name(error) not in LASTING:
            self.unanswered.setdefault(key, f"{call} says {error_name(error)}")


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


def _event(uuid: str, data: Any) -> GpuEvent:
    is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
    instance = int(data.gpuInstanceId)
    return GpuEvent(
        uuid,
        xid=int(data.eventData) if is_xid else None,
        gpu_instance=None if instance == _WHOLE_GPU else instance,
    )
