"""The fields that are served, under the names, types and units of dcgm-exporter's default counters.

docs/exporter.md has the same as a table, with the fields that are left out and why; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dracaena.exporter.series.families import MetricType
from dracaena.exporter.series.readings import GpuQuantity

DRIVER_VERSION: Final = "DCGM_FI_DRIVER_VERSION"
"""A field that becomes a label of all others (type `label` in the file of fields)."""


@dataclass(frozen=True, slots=True)
class GpuField:
    """One field: its name, and its value in the readings."""

    name: str
    type: MetricType
    help: str
    quantity: GpuQuantity
    divisor: float = 1.0
    """Divide NVML's number by this to get the field's."""
    by_default: bool = True
    """Whether it is served without a file that chooses."""


_MILLI, _MIB, _PERCENT = 1000.0, float(1 << 20), 100.0
_Q = GpuQuantity

FIELDS: Final[tuple[GpuField, ...]] = (
    GpuField("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _Q.SM_CLOCK_MHZ),
    GpuField("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _Q.MEMORY_CLOCK_MHZ),
    GpuField("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Temperature of memory (in C).", _Q.MEMORY_TEMPERATURE_C),
    GpuField("DCGM_FI_DEV_GPU_TEMP", "gauge", "Temperature of the GPU (in C).", _Q.GPU_TEMPERATURE_C),
    GpuField("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", _Q.POWER_MW, _MILLI),
    GpuField(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy used since the driver was loaded (in mJ).",
        _Q.ENERGY_MJ,
    ),
    GpuField("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe retries.", _Q.PCIE_REPLAYS),
    GpuField("DCGM_FI_DEV_GPU_UTIL", "gauge", "Time during which the GPU was busy (in %).", _Q.GPU_UTILIZATION_PERCENT),
    GpuField(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "gauge",
        "Time during which memory was read or written (in %).",
        _Q.MEMORY_UTILIZATION_PERCENT,
    ),
    GpuField("DCGM_FI_DEV_ENC_UTIL", "gauge", "Use of the encoders (in %).", _Q.ENCODER_UTILIZATION_PERCENT),
    GpuField("DCGM_FI_DEV_DEC_UTIL", "gauge", "Use of the decoders (in %).", _Q.DECODER_UTILIZATION_PERCENT),
    GpuField("DCGM_FI_DEV_XID_ERRORS", "gauge", "The last XID that the driver reported; 0: none.", _Q.LAST_XID),
    GpuField("DCGM_FI_DEV_FB_FREE", "gauge", "Free framebuffer memory (in MiB).", _Q.MEMORY_FREE_BYTES, _MIB),
    GpuField("DCGM_FI_DEV_FB_USED", "gauge", "Used framebuffer memory (in MiB).", _Q.MEMORY_USED_BYTES, _MIB),
    GpuField(
        "DCGM_FI_DEV_FB_RESERVED",
        "gauge",
        "Framebuffer memory that the driver reserves (in MiB).",
        _Q.MEMORY_RESERVED_BYTES,
        _MIB,
    ),
    GpuField("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU licence: 1 held, 0 not.", _Q.VGPU_LICENSED),
    GpuField(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for uncorrectable errors.",
        _Q.UNCORRECTABLE_REMAPPED_ROWS,
    ),
    GpuField(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "counter",
        "Rows remapped for correctable errors.",
        _Q.CORRECTABLE_REMAPPED_ROWS,
    ),
    GpuField("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "1 if remapping of rows has failed.", _Q.ROW_REMAP_FAILED),
    GpuField(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gauge",
        "Fraction of time in which the graphics engine was active.",
        _Q.GRAPHICS_ACTIVE_PERCENT,
        _PERCENT,
    ),
    GpuField(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "gauge",
        "Fraction of cycles in which the tensor cores were active.",
        _Q.TENSOR_ACTIVE_PERCENT,
        _PERCENT,
    ),
    GpuField(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Fraction of cycles in which memory was read or written.",
        _Q.DRAM_ACTIVE_PERCENT,
        _PERCENT,
    ),
    GpuField(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        "Sent over PCIe (in bytes per second).",
        _Q.PCIE_SENT_MIB_PER_S,
        1 / _MIB,
    ),
    GpuField(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "Received over PCIe (in bytes per second).",
        _Q.PCIE_RECEIVED_MIB_PER_S,
        1 / _MIB,
    ),
    GpuField(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "counter",
        "Corrected ECC errors since the driver was loaded.",
        _Q.CORRECTED_ECC_VOLATILE,
        by_default=False,
    ),
    GpuField(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "counter",
        "Uncorrected ECC errors since the driver was loaded.",
        _Q.UNCORRECTED_ECC_VOLATILE,
        by_default=False,
    ),
    GpuField(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "counter",
        "Corrected ECC errors over the GPU's lifetime.",
        _Q.CORRECTED_ECC_AGGREGATE,
        by_default=False,
    ),
    GpuField(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "counter",
        "Uncorrected ECC errors over the GPU's lifetime.",
        _Q.UNCORRECTED_ECC_AGGREGATE,
        by_default=False,
    ),
)

BY_NAME: Final[Mapping[str, GpuField]] = {each.name: each for each in FIELDS}

LEFT_OUT: Final[Mapping[str, str]] = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "DCGM computes it from counters of its own; NVML has counters per direction "
    "in another unit, and a value in the wrong unit is worse than none",
}
"""Default counters of dcgm-exporter that are not served, and why."""
