"""NVML in Python: an object whose methods are the symbols of libnvidia-ml.so.1, called by the real pynvml.

It stands for any dracaena.api.machine.Machine. A field that the machine does not have is answered NOT_SUPPORTED.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pynvml

from dracaena.api.machine import Gpu, Machine
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.nvml_words import ARCHITECTURES, BRANDS
from support.fake_nvml_values import (
    FakeEventSet,
    FakeFabric,
    FakeHealth,
    FakeLink,
    FakeMig,
    confidential_of,
    gpu_address,
    links_of,
)

OK = pynvml.NVML_SUCCESS
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT

_GPU_HANDLE, _MIG_HANDLE, _INSTANCE_HANDLE, _EVENT_SET = 0x1000, 0x2000, 0x3000, 0x4000

WHOLE_GPU = 0xFFFFFFFF
_NVLINK_VERSION = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7, 6: 8}
_NUMBER_OF_BRAND = {word: number for number, word in BRANDS.items()}
_NUMBER_OF_ARCHITECTURE = {word: number for number, word in ARCHITECTURES.items()}

_WORK_CLOSED = frozenset({"nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"})
"""What can be called before nvmlInit."""

SYMBOLS = (
    "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetName",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkVersion",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlSystemGetConfComputeCapabilities",
    "nvmlSystemGetConfComputeState",
)
"""What the plugin asks of a driver of today."""


class FakeNvml:
    """One driver. `refuse()` makes calls fail, `missing` holds symbols that the library does not have.

    As the real one: nothing but nvmlInit works before it, an event goes to the sets that are open and asked for it and
    to nobody else, and a set with a GPU that is off the bus gives what it still has and then fails with GPU_IS_LOST.
    """

    def __init__(self, machine: Machine, migs: tuple[FakeMig, ...] = ()) -> None:
        self.machine = machine
        self.migs = migs
        self.missing: set[str] = set()
        self.calls: list[str] = []
        self.wedged: dict[str, threading.Event] = {}
        """Symbol → event that its calls wait for, as a call into a hanging driver does."""
        self.hanging = 0
        """Calls that wait so right now."""
        self.health = [FakeHealth() for _ in machine.gpus]
        self.fabric: dict[int, FakeFabric] = {}
        """Ordinal → what nvmlDeviceGetGpuFabricInfo says; those that are not here: as the machine has it."""
        self.confidential = confidential_of(machine)
        """None: NOT_SUPPORTED."""
        self.vgpu_types: dict[int, dict[int, tuple[str, int]]] = {}
        """Ordinal → number of a type of vGPU → its name and bytes of framebuffer."""
        self.most_vgpus: dict[int, int] = {}
        """Number of a type of vGPU → how many of it a GPU has room for; others are not told."""
        self.lost: set[int] = set()
        """Ordinals of the GPUs that are off the bus."""
        self.opened = 0
        """How often nvmlInit was called without nvmlShutdown."""
        self._sets: dict[int, FakeEventSet] = {}
        self._sets_made = 0
        self.links = [links_of(machine, ordinal) for ordinal in range(len(machine.gpus))]
        self._refusals: dict[tuple[str, int | None], int] = {}

    def refuse(self, symbol: str, code: int, gpu: int | None = None) -> None:
        """Answer all calls of a symbol with an error, or those for the GPU of one ordinal."""
        self._refusals[symbol, gpu] = code

    def allow(self) -> None:
        """Take back all refusals."""
        self._refusals.clear()

    @property
    def registered(self) -> set[int]:
        """Return the ordinals of the GPUs of which some open event set hears."""
        return {ordinal for event_set in self._sets.values() for ordinal in event_set.types}

    def report_xid(self, ordinal: int, xid: int, gpu_instance: int = WHOLE_GPU) -> bool:
        """Report an XID to the event sets that asked for it; return whether there was one."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        asked = [event_set for event_set in self._sets.values() if event_set.types.get(ordinal, 0) & kind]
        for event_set in asked:
            event_set.events.append((ordinal, kind, xid, gpu_instance))
        return bool(asked)

    def address(self, ordinal: int) -> PciAddress:
        """Return a GPU's PCI address, one of our own where the machine tells none."""
        return gpu_address(self.machine, ordinal)

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        """Return a function of the library; AttributeError as ctypes raises it for a missing symbol."""
        if not symbol.startswith("nvml") or symbol in self.missing:
            raise AttributeError(symbol)
        function = getattr(type(self), f"_{symbol}", None)
        if function is None:
            raise AttributeError(symbol)

        def call(*arguments: Any) -> Any:
            self.calls.append(symbol)
            if symbol in self.wedged:
                self.hanging += 1
                self.wedged[symbol].wait()
                self.hanging -= 1
            ordinal = _ordinal(arguments[0]) if arguments else None
            if symbol == "nvmlDeviceGetHandleByIndex_v2":
                ordinal = self._ordinal_of_index(arguments[0].value)
            for key in ((symbol, None), (symbol, ordinal)):
                if key in self._refusals:
                    return self._refusals[key]
            if not self.opened and symbol not in _WORK_CLOSED:
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            if ordinal in self.lost:
                return int(pynvml.NVML_ERROR_GPU_IS_LOST)
            return function(self, *arguments)

        return call

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        self.opened += 1
        return int(OK)

    def _nvmlShutdown(self) -> int:
        self.opened -= 1
        if not self.opened:
            self._sets.clear()
        return int(OK)

    def _nvmlErrorString(self, _code: int) -> bytes:
        return b"an error that only the library knows"

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _length: Any) -> int:
        return _set_text(buffer, self.machine.driver_version)

    def _nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        text = self.machine.cuda_driver_version
        if text is None:
            return int(NOT_SUPPORTED)
        major, minor = text.split(".")
        return _set(version, int(major) * 1000 + int(minor) * 10)

    def _nvmlSystemGetConfComputeCapabilities(self, capabilities: Any) -> int:
        if self.confidential is None:
            return int(NOT_SUPPORTED)
        capabilities._obj.gpusCaps = self.confidential.capable
        return int(OK)

    def _nvmlSystemGetConfComputeState(self, state: Any) -> int:
        if self.confidential is None:
            return int(NOT_SUPPORTED)
        state._obj.ccFeature = self.confidential.feature
        state._obj.devToolsMode = self.confidential.dev_tools
        return int(OK)

    def _nvmlSystemGetConfComputeGpusReadyState(self, ready: Any) -> int:
        """Without the feature nobody has to say that the GPUs are ready, and nobody does."""
        return int(NOT_SUPPORTED) if self.confidential is None else _set(ready, self.confidential.ready)

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        return _set(count, len(self.machine.gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        ordinal = self._ordinal_of_index(index.value)
        return int(INVALID_ARGUMENT) if ordinal is None else _set_handle(handle, _GPU_HANDLE + ordinal)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        if self.lost:  # whichever it is: nvml.h
            return int(pynvml.NVML_ERROR_GPU_IS_LOST)
        wanted = getattr(uuid, "value", uuid).decode()
        found = [ordinal for ordinal, gpu in enumerate(self.machine.gpus) if gpu.uuid == wanted]
        return _set_handle(handle, _GPU_HANDLE + found[0]) if found else int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, _length: Any) -> int:
        mig = self._mig(handle)
        return _set_text(buffer, mig.uuid if mig is not None else self._gpu(handle).uuid)

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        return _set_address(info, self.address(_ordinal_of(handle)))

    def _nvmlDeviceGetMinorNumber(self, handle: Any, minor: Any) -> int:
        return _set(minor, self._gpu(handle).minor)

    def _nvmlDeviceGetModuleId(self, handle: Any, module: Any) -> int:
        return _set(module, self._gpu(handle).module_id)

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, _length: Any) -> int:
        mig = self._mig(handle)
        return _set_text(buffer, mig.name if mig is not None else self._gpu(handle).product_name)

    def _nvmlDeviceGetSupportedVgpus(self, handle: Any, count: Any, numbers: Any) -> int:
        known = sorted(self.vgpu_types.get(_ordinal_of(handle), {}))
        fits = numbers is not None or not known
        _set(count, len(known))
        for place, number in enumerate(known if fits else ()):
            numbers[place] = number
        return int(pynvml.NVML_SUCCESS if fits else pynvml.NVML_ERROR_INSUFFICIENT_SIZE)

    def _vgpu_type(self, number: int) -> tuple[str, int]:
        return next(types[number] for types in self.vgpu_types.values() if number in types)

    def _nvmlVgpuTypeGetName(self, number: int, buffer: Any, _length: Any) -> int:
        return _set_text(buffer, self._vgpu_type(number)[0])

    def _nvmlVgpuTypeGetFramebufferSize(self, number: int, size: Any) -> int:
        return _set(size, self._vgpu_type(number)[1])

    def _nvmlVgpuTypeGetMaxInstances(self, _handle: Any, number: int, count: Any) -> int:
        return _set(count, self.most_vgpus.get(number))

    def _nvmlDeviceGetBrand(self, handle: Any, brand: Any) -> int:
        word = self._gpu(handle).brand
        return _set(brand, None if word is None else _NUMBER_OF_BRAND[word])

    def _nvmlDeviceGetArchitecture(self, handle: Any, architecture: Any) -> int:
        word = self._gpu(handle).architecture
        return _set(architecture, None if word is None else _NUMBER_OF_ARCHITECTURE[word])

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        text = self._gpu(handle).cuda_compute_capability
        if text is None:
            return int(NOT_SUPPORTED)
        major._obj.value, minor._obj.value = map(int, text.split("."))
        return int(OK)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        total = self._gpu(handle).memory_bytes
        if total is None:
            return int(NOT_SUPPORTED)
        memory._obj.total = memory._obj.free = total
        return int(OK)

    def _nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, generation: Any) -> int:
        return _set(generation, self._gpu(handle).pcie_generation)

    def _nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, width: Any) -> int:
        return _set(width, self._gpu(handle).pcie_width)

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, level: Any) -> int:
        known = self.machine.topology.link(_ordinal_of(one), _ordinal_of(other)).level
        return int(pynvml.NVML_ERROR_UNKNOWN) if known is None else _set(level, known.value)

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, state: Any) -> int:
        found = self._link(handle, link)
        return (
            int(NOT_SUPPORTED if not self.links[_ordinal_of(handle)] else INVALID_ARGUMENT)
            if found is None
            else _set(state, found.state)
        )

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, _link: int, version: Any) -> int:
        generation = self._gpu(handle).nvlink_generation
        return _set(version, None if generation is None else _NVLINK_VERSION[generation])

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, info: Any) -> int:
        found = self._link(handle, link)
        if found is None or found.remote is None:
            return int(NOT_SUPPORTED)
        return _set_address(info, found.remote)

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, remote_type: Any) -> int:
        found = self._link(handle, link)
        return int(INVALID_ARGUMENT) if found is None else _set(remote_type, found.remote_type)

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int:
        if info._obj.version != pynvml.nvmlGpuFabricInfo_v2:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        told = self._nvmlDeviceGetGpuFabricInfo(handle, info)
        info._obj.healthMask = self.fabric.get(_ordinal_of(handle), FakeFabric()).health_mask
        return told

    def _nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> int:
        clique = self._gpu(handle).fabric_clique
        fabric = self.fabric.get(_ordinal_of(handle), FakeFabric() if clique is not None else None)
        if fabric is None:
            return int(NOT_SUPPORTED)
        info._obj.state, info._obj.status = fabric.state, fabric.status
        if clique is not None and fabric.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED:
            cluster, _, number = clique.rpartition(".")
            info._obj.clusterUuid = (ctypes.c_uint8 * 16)(*uuid.UUID(cluster).bytes)
            info._obj.cliqueId = int(number)
        return int(OK)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        mode = int(any(mig.parent == _ordinal_of(handle) for mig in self.migs))
        _set(current, mode)
        return _set(pending, mode)

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        return _set(count, 7)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, number: Any, mig_handle: Any) -> int:
        for place, mig in enumerate(self.migs):
            if (mig.parent, mig.number) == (_ordinal_of(handle), number.value):
                return _set_handle(mig_handle, _MIG_HANDLE + place)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, number: Any) -> int:
        mig = self._mig(handle)
        return _set(number, None if mig is None else mig.gpu_instance)

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, number: Any) -> int:
        mig = self._mig(handle)
        return _set(number, None if mig is None else mig.compute_instance)

    def _nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:
        mig = self._mig(handle)
        if mig is None:
            return int(NOT_SUPPORTED)
        attributes._obj.memorySizeMB = mig.memory_mib
        attributes._obj.multiprocessorCount = mig.multiprocessors
        slices = re.search(r"(?:(\d)c\.)?(\d)g\.", mig.name)
        if slices is not None:
            attributes._obj.gpuInstanceSliceCount = int(slices[2])
            attributes._obj.computeInstanceSliceCount = int(slices[1] or slices[2])
        attributes._obj.sharedCopyEngineCount = 1
        return int(OK)

    def _nvmlDeviceGetGpuInstanceById(self, handle: Any, number: int, instance: Any) -> int:
        for place, mig in enumerate(self.migs):
            if (mig.parent, mig.gpu_instance) == (_ordinal_of(handle), number):
                return _set_handle(instance, _INSTANCE_HANDLE + place)
        return int(pynvml.NVML_ERROR_NOT_FOUND)

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> int:
        mig = self.migs[_pointer(instance) - _INSTANCE_HANDLE]
        info._obj.id = mig.gpu_instance
        info._obj.placement.start, info._obj.placement.size = mig.start, mig.size
        return int(OK)

    def _nvmlEventSetCreate(self, event_set: Any) -> int:
        self._sets_made += 1
        self._sets[_EVENT_SET + self._sets_made] = FakeEventSet()
        return _set_handle(event_set, _EVENT_SET + self._sets_made)

    def _nvmlEventSetFree(self, event_set: Any) -> int:
        return int(INVALID_ARGUMENT if self._sets.pop(_pointer(event_set), None) is None else OK)

    def _nvmlDeviceGetSupportedEventTypes(self, handle: Any, types: Any) -> int:
        return _set(types, self.health[_ordinal_of(handle)].event_types)

    def _nvmlDeviceRegisterEvents(self, handle: Any, types: Any, event_set: Any) -> int:
        found = self._sets.get(_pointer(event_set))
        if found is None:
            return int(INVALID_ARGUMENT)
        found.types[_ordinal_of(handle)] = int(getattr(types, "value", types))
        return int(OK)

    def _nvmlEventSetWait_v2(self, event_set: Any, data: Any, _timeout_ms: Any) -> int:
        found = self._sets.get(_pointer(event_set))
        if found is None:
            return int(INVALID_ARGUMENT)
        if found.events:
            ordinal, kind, number, instance = found.events.popleft()
            _set_handle_value(data._obj, _GPU_HANDLE + ordinal)
            data._obj.eventType, data._obj.eventData = kind, number
            data._obj.gpuInstanceId, data._obj.computeInstanceId = instance, instance
            return int(OK)
        return int(pynvml.NVML_ERROR_GPU_IS_LOST if found.types.keys() & self.lost else pynvml.NVML_ERROR_TIMEOUT)

    def _nvmlDeviceGetFieldValues(self, handle: Any, _count: Any, values: Any) -> int:
        health = self.health[_ordinal_of(handle)]
        for value in values._obj:
            told = {230: health.recovery_action, 52: health.nvlink_replays, 59: health.nvlink_recoveries}[value.fieldId]
            is_short = value.fieldId == 230
            value.nvmlReturn = NOT_SUPPORTED if told is None else OK
            value.valueType = (
                pynvml.NVML_VALUE_TYPE_UNSIGNED_INT if is_short else pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            )
            setattr(value.value, "uiVal" if is_short else "ullVal", told or 0)
        return int(OK)

    def _nvmlDeviceGetSramEccErrorStatus(self, handle: Any, status: Any) -> int:
        exceeded = self.health[_ordinal_of(handle)].sram_exceeded
        status._obj.bThresholdExceeded = int(exceeded or False)
        return int(NOT_SUPPORTED if exceeded is None else OK)

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, _kind: Any, _counter: Any, count: Any) -> int:
        return _set(count, self.health[_ordinal_of(handle)].uncorrected_ecc)

    def _nvmlDeviceGetRemappedRows(self, handle: Any, one: Any, two: Any, pending: Any, failed: Any) -> int:
        health = self.health[_ordinal_of(handle)]
        for reference, value in ((one, 0), (two, 0), (pending, health.remap_pending), (failed, health.remap_failed)):
            _set(reference, int(value))
        return int(OK)

    def _nvmlDeviceGetRetiredPagesPendingStatus(self, handle: Any, pending: Any) -> int:
        value = self.health[_ordinal_of(handle)].retirement_pending
        return _set(pending, None if value is None else int(value))

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, reasons: Any) -> int:
        return _set(reasons, self.health[_ordinal_of(handle)].clock_reasons)

    def _gpu(self, handle: Any) -> Gpu:
        return self.machine.gpus[_ordinal_of(handle)]

    def _mig(self, handle: Any) -> FakeMig | None:
        place = _pointer(handle) - _MIG_HANDLE
        return self.migs[place] if 0 <= place < len(self.migs) else None

    def _link(self, handle: Any, link: int) -> FakeLink | None:
        links = self.links[_ordinal_of(handle)]
        return links[link] if link < len(links) else None

    def _ordinal_of_index(self, index: int) -> int | None:
        return next((ordinal for ordinal, gpu in enumerate(self.machine.gpus) if gpu.index == index), None)


def _set(reference: Any, value: int | None) -> int:
    if value is None:
        return int(NOT_SUPPORTED)
    reference._obj.value = value
    return int(OK)


def _set_text(buffer: Any, text: str | None) -> int:
    if text is None:
        return int(NOT_SUPPORTED)
    buffer.value = text.encode()
    return int(OK)


def _set_address(info: Any, address: PciAddress) -> int:
    bus_id = f"{address.domain:08X}:{address.bus:02X}:{address.device:02X}.{address.function:X}"
    info._obj.busId = bus_id.encode()
    info._obj.domain, info._obj.bus, info._obj.device = address.domain, address.bus, address.device
    return int(OK)


def _set_handle(reference: Any, value: int) -> int:
    ctypes.cast(ctypes.pointer(reference._obj), ctypes.POINTER(ctypes.c_void_p)).contents.value = value
    return int(OK)


def _set_handle_value(data: Any, value: int) -> None:
    data.device = ctypes.cast(ctypes.c_void_p(value), pynvml.c_nvmlDevice_t)


def _pointer(handle: Any) -> int:
    return int.from_bytes(handle, sys.byteorder)  # the pointer itself: ctypes.cast takes ten times as long


def _ordinal_of(handle: Any) -> int:
    return _pointer(handle) - _GPU_HANDLE


def _ordinal(argument: Any) -> int | None:
    """Return the ordinal if the first argument of a call is the handle of a GPU."""
    if not isinstance(argument, pynvml.c_nvmlDevice_t):
        return None
    ordinal = _ordinal_of(argument)
    return ordinal if 0 <= ordinal < _MIG_HANDLE - _GPU_HANDLE else None
