"""A fake NVML that also tells what GPUs do: numbers, processes, and the means between two samples."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

from dracaena.api.machine import Machine
from support.fake_nvml import NOT_SUPPORTED, OK, FakeNvml, _ordinal_of, _set, _set_handle
from support.fake_nvml_values import FakeMig

_SAMPLE = 0x5000
_MIB = 1 << 20

BY_NUMBER: dict[str, str] = {
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetPcieReplayCounter": "pcie_replays",
}


@dataclass(slots=True)
class FakeProcess:
    """One process on a device."""

    pid: int
    memory_mib: int | None = 100
    sm_percent: int = 0


@dataclass(slots=True)
class FakeActivity:
    """What a GPU or a MIG device does. None: NOT_SUPPORTED."""

    sm_clock: int | None = 1410
    memory_clock: int | None = 1593
    temperature: int | None = 41
    memory_temperature: int | None = 55
    power_mw: int | None = 71_500
    energy_mj: int | None = 123_456_789
    pcie_replays: int | None = 3
    utilization: int | None = 0
    memory_utilization: int = 0
    encoder: int | None = 0
    decoder: int | None = 0
    memory_used_mib: int = 4
    memory_total_mib: int = 81_559
    memory_reserved_mib: int = 600
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    gpm: bool = False
    """Whether it is of Hopper or later."""
    tensor_percent: float = 0.0
    gpm_means: float = 1.0
    """All the other means of GPM."""
    processes: list[FakeProcess] = field(default_factory=list)
    graphics: list[FakeProcess] = field(default_factory=list)
    mps_clients: list[FakeProcess] = field(default_factory=list)
    sampled_us: int = 1_000_000
    """Time of the samples of use by process."""


class ExportingNvml(FakeNvml):
    """`activity[ordinal]` is a GPU's, `mig_activity[uuid]` a MIG device's."""

    def __init__(self, machine: Machine, migs: tuple[FakeMig, ...] = ()) -> None:
        super().__init__(machine, migs)
        self.activity = [FakeActivity() for _ in machine.gpus]
        self.mig_activity = {
            mig.uuid: FakeActivity(memory_total_mib=mig.memory_mib, memory_reserved_mib=0) for mig in migs
        }
        self.samples_alive = 0
        """GPM samples that were allocated and not freed."""

    def _does(self, handle: Any) -> FakeActivity:
        mig = self._mig(handle)
        return self.activity[_ordinal_of(handle)] if mig is None else self.mig_activity[mig.uuid]

    def _has_mig(self, handle: Any) -> bool:
        return self._mig(handle) is not None or any(mig.parent == _ordinal_of(handle) for mig in self.migs)

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:
        does = self._does(handle)
        return _set(
            clock, does.sm_clock if int(getattr(kind, "value", kind)) == pynvml.NVML_CLOCK_SM else does.memory_clock
        )

    def _nvmlDeviceGetTemperatureV(self, handle: Any, asked: Any) -> int:
        degrees = self._does(handle).temperature
        if degrees is None:
            return int(NOT_SUPPORTED)
        asked._obj.temperature = degrees
        return int(OK)

    def _nvmlDeviceGetTemperature(self, handle: Any, _sensor: Any, degrees: Any) -> int:
        return _set(degrees, self._does(handle).temperature)

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:
        value = values._obj[0]
        if value.fieldId != pynvml.NVML_FI_DEV_MEMORY_TEMP:
            return super()._nvmlDeviceGetFieldValues(handle, count, values)
        degrees = self._does(handle).memory_temperature
        value.nvmlReturn = NOT_SUPPORTED if degrees is None else OK
        value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = degrees or 0
        return int(OK)

    def _nvmlDeviceGetPowerUsage(self, handle: Any, power: Any) -> int:
        return _set(power, self._does(handle).power_mw)

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, energy: Any) -> int:
        return _set(energy, self._does(handle).energy_mj)

    def _nvmlDeviceGetPcieReplayCounter(self, handle: Any, replays: Any) -> int:
        return _set(replays, self._does(handle).pcie_replays)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        does = self._does(handle)
        if does.utilization is None or self._has_mig(handle):
            return int(NOT_SUPPORTED)
        rates._obj.gpu, rates._obj.memory = does.utilization, does.memory_utilization
        return int(OK)

    def _nvmlDeviceGetEncoderUtilization(self, handle: Any, percent: Any, period: Any) -> int:
        _set(period, 167_000)
        return _set(percent, None if self._has_mig(handle) else self._does(handle).encoder)

    def _nvmlDeviceGetDecoderUtilization(self, handle: Any, percent: Any, period: Any) -> int:
        _set(period, 167_000)
        return _set(percent, None if self._has_mig(handle) else self._does(handle).decoder)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, info: Any) -> int:
        does = self._does(handle)
        info._obj.total = does.memory_total_mib * _MIB
        info._obj.used = does.memory_used_mib * _MIB
        info._obj.reserved = does.memory_reserved_mib * _MIB
        info._obj.free = (does.memory_total_mib - does.memory_used_mib - does.memory_reserved_mib) * _MIB
        return int(OK)

    def _nvmlDeviceGetRemappedRows(self, handle: Any, one: Any, two: Any, pending: Any, failed: Any) -> int:
        super()._nvmlDeviceGetRemappedRows(handle, one, two, pending, failed)
        _set(one, self._does(handle).remapped_corrected)
        return _set(two, self._does(handle).remapped_uncorrected)

    def _nvmlDeviceGetGridLicensableFeatures_v4(self, _handle: Any, features: Any) -> int:
        features._obj.isGridLicenseSupported = 0
        features._obj.licensableFeaturesCount = 0
        return int(OK)

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        return _fill(self._does(handle).processes, count, infos)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        return _fill(self._does(handle).graphics, count, infos)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any, count: Any, infos: Any) -> int:
        return _fill(self._does(handle).mps_clients, count, infos)

    def _nvmlDeviceGetProcessUtilization(self, handle: Any, samples: Any, count: Any, since_us: Any) -> int:
        if self._has_mig(handle):
            return int(NOT_SUPPORTED)
        does = self._does(handle)
        found = [each for each in (*does.processes, *does.mps_clients) if does.sampled_us > since_us.value]
        if not found:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        if samples is None:
            _set(count, len(found))
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for sample, process in zip(samples, found, strict=False):
            sample.pid, sample.smUtil, sample.timeStamp = process.pid, process.sm_percent, does.sampled_us
        return _set(count, len(found))

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        support._obj.isSupportedDevice = int(self._does(handle).gpm)
        return int(OK)

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:
        self.samples_alive += 1
        return _set_handle(sample, _SAMPLE)

    def _nvmlGpmSampleFree(self, _sample: Any) -> int:
        self.samples_alive -= 1
        return int(OK)

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        _point(sample, _SAMPLE + 1 + _ordinal_of(handle))
        return int(OK)

    def _nvmlGpmMigSampleGet(self, handle: Any, _instance: Any, sample: Any) -> int:
        return self._nvmlGpmSampleGet(handle, sample)

    def _nvmlGpmMetricsGet(self, asked: Any) -> int:
        ordinal = (ctypes.cast(asked._obj.sample2, ctypes.c_void_p).value or 0) - _SAMPLE - 1
        does = self.activity[ordinal]
        for place in range(asked._obj.numMetrics):
            metric = asked._obj.metrics[place]
            metric.nvmlReturn = OK
            is_tensor = metric.metricId == pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
            metric.value = does.tensor_percent if is_tensor else does.gpm_means
        return int(OK)


def _fill(processes: list[FakeProcess], count: Any, infos: Any) -> int:
    if not processes:
        return _set(count, 0)
    if infos is None:
        _set(count, len(processes))
        return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    for info, process in zip(infos, processes, strict=False):
        info.pid = process.pid
        unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
        info.usedGpuMemory = unknown if process.memory_mib is None else process.memory_mib * _MIB
        info.gpuInstanceId = info.computeInstanceId = 0xFFFFFFFF
    return _set(count, len(processes))


def _point(sample: Any, value: int) -> None:
    ctypes.cast(ctypes.pointer(sample), ctypes.POINTER(ctypes.c_void_p)).contents.value = value
