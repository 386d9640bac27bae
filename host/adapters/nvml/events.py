"""The events of all GPUs through NVML: XIDs, and that something else has happened to a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from dracaena.host.adapters.nvml.library import GONE, NvmlError, NvmlLibrary, error_name
from dracaena.host.facts.health import GpuEvent
from dracaena.host.facts.machine import LASTING
from dracaena.host.facts.troubles import GpuDriverReleasedError

EVENT_TYPES = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeDramRetirementEvent
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
"""Only XIDs have a meaning of their own; of the others one only learns that the GPU's state is worth a look."""

MAX_EVENTS = 256
"""Most events taken from one GPU per look: a GPU that floods events must not keep the driver's thread busy forever."""

_WHOLE_GPU = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class NamedGpus:
    """The GPUs that the driver lists, as far as they can be named."""

    handles: Mapping[str, Any]
    """By UUID; valid until NVML is closed."""
    lost: str | None
    """The error for a GPU that cannot be named because it is lost."""
    refused: str | None
    """The error for a GPU that cannot be named for another reason."""


@dataclass(frozen=True, slots=True)
class _Unwatched:
    """Why no event set covers a GPU."""

    reason: str
    lasting: bool


class NvmlEvents:
    """Uses a library that others open and close too. One thread at a time.

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

    def events(self) -> tuple[GpuEvent, ...]:
        """Return what happened since the last look, without waiting; nothing before the first watch() or gpus(). If
        NVML was reopened since then, for example by a change of the MIG mode, this registers for the events again.

        A GPU whose events cannot be read counts as unwatched until the next watch_again(). A lost GPU is an event too,
        so that its state is looked at immediately. Raises GpuDriverReleasedError while the driver is released.
        """
        try:
            self._library.obey()
        except GpuDriverReleasedError:
            if not self._kept:
                raise  # otherwise report what came before first
        found, self._kept = [*self._kept, *self._take()], []
        if self._session and self._library.is_open and self._session != self._library.session:
            with suppress(NvmlError):  # the next call of gpus() says what is wrong
                self.gpus()
        return tuple(found)

    def watch(self) -> None:
        """Register for the events of all GPUs, again for those that are unwatched. NVML must be open, and stays so.

        Raises NvmlError if the driver does not report how many GPUs there are.
        """
        self.watch_again(self.gpus().handles)

    def gpus(self) -> NamedGpus:
        """Register for the events of all GPUs that can be named, once in a session, and return them. NVML must be open.

        Raises NvmlError if the driver does not report how many GPUs there are.
        """
        count = self._library.needed("how many GPUs there are", pynvml.nvmlDeviceGetCount)
        handles: dict[str, Any] = {}
        lost = refused = None
        for index in range(count):
            try:
                handle = self._library.needed(f"the handle of GPU {index}", pynvml.nvmlDeviceGetHandleByIndex, index)
                handles[self._library.needed(f"the UUID of GPU {index}", pynvml.nvmlDeviceGetUUID, handle)] = handle
            except NvmlError as error:
                if error.code in GONE:
                    lost = str(error)
                else:
                    refused = str(error)
        if self._session != self._library.session:  # handles and event sets are those of an earlier one
            self._session = self._library.session
            self._sets, self._unwatched = {}, {}
        self._watch({u: h for u, h in handles.items() if u not in self._sets and u not in self._unwatched})
        return NamedGpus(handles, lost, refused)

    def watch_again(self, handles: Mapping[str, Any]) -> None:
        """Register again for the events of those of these GPUs that are unwatched, unless that lasts."""
        again = {uuid for uuid in handles.keys() & self._unwatched.keys() if not self._unwatched[uuid].lasting}
        for uuid in again:
            del self._unwatched[uuid]
        self._watch({uuid: handle for uuid, handle in handles.items() if uuid in again})

    def unwatched(self, uuid: str) -> str | None:
        """Return why the events of a GPU are not reported, None if they are."""
        return self._unwatched[uuid].reason if uuid in self._unwatched else None

    def _watch(self, handles: Mapping[str, Any]) -> None:
        for uuid, handle in handles.items():
            event_set = None
            try:
                call: Any = pynvml.nvmlEventSetCreate
                event_set = self._library.call(uuid, call)
                call = pynvml.nvmlDeviceGetSupportedEventTypes
                kinds = self._library.call(uuid, call, handle) & EVENT_TYPES
                call = pynvml.nvmlDeviceRegisterEvents
                self._library.call(uuid, call, handle, kinds, event_set)
            except pynvml.NVMLError as error:
                self._library.note(call.__name__, error_name(error))
                self._drop(uuid, event_set, f"events of this GPU are not reported: {call.__name__} says", error)
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
        return [event for uuid, event_set in tuple(self._sets.items()) for event in self._take_of(uuid, event_set)]

    def _take_of(self, uuid: str, event_set: Any) -> list[GpuEvent]:
        found: list[GpuEvent] = []
        try:
            while len(found) < MAX_EVENTS:
                found.append(_event(uuid, self._library.call(uuid, pynvml.nvmlEventSetWait_v2, event_set, 0)))
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


def _event(uuid: str, data: Any) -> GpuEvent:
    is_xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
    instance = int(data.gpuInstanceId)
    return GpuEvent(
        uuid,
        xid=int(data.eventData) if is_xid else None,
        gpu_instance=None if instance == _WHOLE_GPU else instance,
    )
