"""What was read for one scrape: numbers from the driver, entries of podlist.json, cgroups of processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class GpuQuantity(Enum):
    """One number of a device, in NVML's unit."""

    SM_CLOCK_MHZ = "sm clock"
    MEMORY_CLOCK_MHZ = "memory clock"
    GPU_TEMPERATURE_C = "temperature"
    MEMORY_TEMPERATURE_C = "temperature of memory"
    POWER_MW = "power"
    ENERGY_MJ = "energy"
    """Since the driver was loaded."""
    PCIE_REPLAYS = "pcie replays"
    GPU_UTILIZATION_PERCENT = "utilization"
    MEMORY_UTILIZATION_PERCENT = "utilization of memory"
    ENCODER_UTILIZATION_PERCENT = "utilization of encoders"
    DECODER_UTILIZATION_PERCENT = "utilization of decoders"
    MEMORY_FREE_BYTES = "free memory"
    MEMORY_USED_BYTES = "used memory"
    MEMORY_RESERVED_BYTES = "reserved memory"
    MEMORY_TOTAL_BYTES = "memory"
    VGPU_LICENSED = "vGPU licence"
    UNCORRECTABLE_REMAPPED_ROWS = "rows remapped for uncorrectable errors"
    CORRECTABLE_REMAPPED_ROWS = "rows remapped for correctable errors"
    ROW_REMAP_FAILED = "row remap failure"
    LAST_XID = "last XID"
    """0: none since the exporter began to watch."""
    CORRECTED_ECC_VOLATILE = "corrected ECC errors"
    UNCORRECTED_ECC_VOLATILE = "uncorrected ECC errors"
    CORRECTED_ECC_AGGREGATE = "corrected ECC errors of all time"
    UNCORRECTED_ECC_AGGREGATE = "uncorrected ECC errors of all time"
    GRAPHICS_ACTIVE_PERCENT = "graphics engine active"
    TENSOR_ACTIVE_PERCENT = "tensor cores active"
    DRAM_ACTIVE_PERCENT = "DRAM active"
    PCIE_SENT_MIB_PER_S = "pcie sent"
    PCIE_RECEIVED_MIB_PER_S = "pcie received"


Values = Mapping[GpuQuantity, float]
"""What the driver reported; anything else is left out."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process on a device, of compute, graphics or MPS."""

    pid: int
    """In the PID namespace of the host."""
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device does now."""

    values: Values = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = None
    """None: the driver does not report it."""
    sm_percent_by_pid: Mapping[int, float] | None = None
    """Mean use of the SMs since the last reading; None: the driver does not report it, as in MIG mode."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One compute instance: a MIG device."""

    uuid: str
    gpu_instance_id: int
    profile: str
    """`1g.10gb`; empty: not known."""
    use: DeviceUse = field(default_factory=DeviceUse)
    """Memory is that of the whole GPU instance."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One physical GPU."""

    index: int
    uuid: str
    pci_bus_id: str
    """As NVML writes it: `00000000:18:00.0`; empty: not known."""
    minor: int | None
    product_name: str
    use: DeviceUse
    mig: tuple[MigInstance, ...] = ()
    lost: str = ""
    """Why it stopped answering during this reading; empty: it answered."""


@dataclass(frozen=True, slots=True)
class DriverReading:
    """All GPUs that the driver lists and names."""

    session: int
    """Counts how often the driver was opened: counters of the driver may restart then."""
    driver_version: str
    gpus: tuple[GpuReading, ...]
    unnamed: int = 0
    """Number of GPUs whose UUID cannot be read."""


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where a process runs by its cgroup; empty: in no pod."""

    pod_uid: str = ""
