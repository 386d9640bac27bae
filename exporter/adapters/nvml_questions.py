"""The NVML calls that return numbers of a device, and the quantities of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from dracaena.exporter.series.readings import GpuQuantity

Q = GpuQuantity
Numbers = Mapping[GpuQuantity, float]


@dataclass(frozen=True, slots=True)
class NvmlQuestion:
    """One call. `ask` raises NVMLError."""

    call: str
    """Its name in error counts; unique."""
    tells: frozenset[GpuQuantity]
    ask: Callable[[Any], Numbers]


def _memory_clock(handle: Any) -> Numbers:
    return {Q.MEMORY_CLOCK_MHZ: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)}


def _sm_clock(handle: Any) -> Numbers:
    return {Q.SM_CLOCK_MHZ: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def _temperature(handle: Any) -> Numbers:
    """Use the newer call, or the old one if the driver is older than that."""
    try:
        degrees = pynvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        degrees = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    return {Q.GPU_TEMPERATURE_C: degrees}


_READ_AS: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


def _memory_temperature(handle: Any) -> Numbers:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return {Q.MEMORY_TEMPERATURE_C: float(getattr(value.value, _READ_AS[value.valueType]))}


def _utilization(handle: Any) -> Numbers:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {Q.GPU_UTILIZATION_PERCENT: rates.gpu, Q.MEMORY_UTILIZATION_PERCENT: rates.memory}


def _memory(handle: Any) -> Numbers:
    """The first version of the call counts reserved memory as used, and does not report it separately."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        reserved = {Q.MEMORY_RESERVED_BYTES: info.reserved}
    except pynvml.NVMLError as error:
        if error.value not in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
            raise
        info, reserved = pynvml.nvmlDeviceGetMemoryInfo(handle), {}
    return {
        Q.MEMORY_FREE_BYTES: info.free,
        Q.MEMORY_USED_BYTES: info.used,
        Q.MEMORY_TOTAL_BYTES: info.total,
        **reserved,
    }


def _remapped_rows(handle: Any) -> Numbers:
    corrected, uncorrected, _, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        Q.CORRECTABLE_REMAPPED_ROWS: corrected,
        Q.UNCORRECTABLE_REMAPPED_ROWS: uncorrected,
        Q.ROW_REMAP_FAILED: failed,
    }


def _licence(handle: Any) -> Numbers:
    told = pynvml.nvmlDeviceGetGridLicensableFeatures(handle)
    features = (told.gridLicensableFeatures[place] for place in range(told.licensableFeaturesCount))
    return {Q.VGPU_LICENSED: float(bool(told.isGridLicenseSupported) and any(each.featureState for each in features))}


def _single(call: str, quantity: GpuQuantity, *, first: bool = False) -> NvmlQuestion:
    """Return the question for a function that returns one number, or returns it first of several."""

    def ask(handle: Any) -> Numbers:
        answer = getattr(pynvml, call)(handle)
        return {quantity: answer[0] if first else answer}

    return NvmlQuestion(call, frozenset({quantity}), ask)


def _ecc_errors(quantity: GpuQuantity, kind: str, counter: str) -> NvmlQuestion:
    arguments = (getattr(pynvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), getattr(pynvml, f"NVML_{counter}_ECC"))

    def ask(handle: Any) -> Numbers:
        return {quantity: pynvml.nvmlDeviceGetTotalEccErrors(handle, *arguments)}

    return NvmlQuestion(f"nvmlDeviceGetTotalEccErrors({kind}, {counter})", frozenset({quantity}), ask)


MEMORY: Final = NvmlQuestion(
    "nvmlDeviceGetMemoryInfo",
    frozenset({Q.MEMORY_FREE_BYTES, Q.MEMORY_USED_BYTES, Q.MEMORY_TOTAL_BYTES, Q.MEMORY_RESERVED_BYTES}),
    _memory,
)
"""The question that MIG devices answer too."""

QUESTIONS: Final[tuple[NvmlQuestion, ...]] = (
    MEMORY,
    NvmlQuestion("nvmlDeviceGetClockInfo(SM)", frozenset({Q.SM_CLOCK_MHZ}), _sm_clock),
    NvmlQuestion("nvmlDeviceGetClockInfo(MEM)", frozenset({Q.MEMORY_CLOCK_MHZ}), _memory_clock),
    NvmlQuestion("nvmlDeviceGetTemperature", frozenset({Q.GPU_TEMPERATURE_C}), _temperature),
    NvmlQuestion("nvmlDeviceGetFieldValues(MEMORY_TEMP)", frozenset({Q.MEMORY_TEMPERATURE_C}), _memory_temperature),
    _single("nvmlDeviceGetPowerUsage", Q.POWER_MW),
    _single("nvmlDeviceGetTotalEnergyConsumption", Q.ENERGY_MJ),
    _single("nvmlDeviceGetPcieReplayCounter", Q.PCIE_REPLAYS),
    NvmlQuestion(
        "nvmlDeviceGetUtilizationRates",
        frozenset({Q.GPU_UTILIZATION_PERCENT, Q.MEMORY_UTILIZATION_PERCENT}),
        _utilization,
    ),
    _single("nvmlDeviceGetEncoderUtilization", Q.ENCODER_UTILIZATION_PERCENT, first=True),
    _single("nvmlDeviceGetDecoderUtilization", Q.DECODER_UTILIZATION_PERCENT, first=True),
    NvmlQuestion(
        "nvmlDeviceGetRemappedRows",
        frozenset({Q.CORRECTABLE_REMAPPED_ROWS, Q.UNCORRECTABLE_REMAPPED_ROWS, Q.ROW_REMAP_FAILED}),
        _remapped_rows,
    ),
    NvmlQuestion("nvmlDeviceGetGridLicensableFeatures", frozenset({Q.VGPU_LICENSED}), _licence),
    _ecc_errors(Q.CORRECTED_ECC_VOLATILE, "CORRECTED", "VOLATILE"),
    _ecc_errors(Q.UNCORRECTED_ECC_VOLATILE, "UNCORRECTED", "VOLATILE"),
    _ecc_errors(Q.CORRECTED_ECC_AGGREGATE, "CORRECTED", "AGGREGATE"),
    _ecc_errors(Q.UNCORRECTED_ECC_AGGREGATE, "UNCORRECTED", "AGGREGATE"),
)


def chosen(wanted: Iterable[GpuQuantity]) -> tuple[NvmlQuestion, ...]:
    """Return the questions that give any of the wanted quantities."""
    names = frozenset(wanted)
    return tuple(question for question in QUESTIONS if question.tells & names)
