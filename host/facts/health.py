"""What the driver reports about the health of GPUs, unjudged. None always means that it did not report it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """One event of the driver."""

    uuid: str
    xid: int | None = None
    """None: something else happened, which the next poll shows."""
    gpu_instance: int | None = None
    """None: the event is about the whole GPU."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One poll of one GPU."""

    uuid: str
    lost: str | None = None
    """Why the GPU is known to be gone."""
    silent: str | None = None
    """Why nothing can be said about it."""
    unwatched: str | None = None
    """Why the driver does not report its events."""
    recovery_action: int | None = None
    """NVML_GPU_RECOVERY_ACTION_*: 0 is none. Drivers from about release 565 on report it."""
    uncorrected_ecc: int | None = None
    """Uncorrectable errors since the last reset."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    """Before Ampere: pages instead of rows."""
    clock_reasons: int | None = None
    """nvmlClocksEventReasons bits."""
    fabric_state: int | None = None
    """nvmlGpuFabricState_t: 0 without an NVSwitch fabric."""
    fabric_status: int | None = None
    """nvmlReturn_t of the registration, meaningful when the state is completed."""
    fabric_health: int | None = None
    """NVML_GPU_FABRIC_HEALTH_MASK bits, meaningful when the state is completed."""
    cc_ready: bool | None = None
    """Whether a GPU that computes confidentially accepts work (nvmlSystemGetConfComputeGpusReadyState). None: it does
    not compute confidentially, or that is not reported."""
    nvlinks_down: int | None = None
    """How many NVLinks fewer are active than this GPU had, or than its peers at the NVSwitches have."""
    nvlink_replays: int | None = None
    """Packets that NVLinks sent again after an error, of all links."""
    nvlink_recoveries: int | None = None
    """How often an NVLink was trained again after an error, of all links."""
    sram_exceeded: bool | None = None
    """Whether errors of its SRAM exceed the threshold of NVIDIA's field diagnosis (nvmlDeviceGetSramEccErrorStatus)."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """Key of a fault → why this poll says neither that it is there nor that it is not, although other questions were
    answered."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll of all GPUs that the driver lists."""

    states: tuple[GpuState, ...] = ()
    """The GPUs that could be named."""
    lost: str | None = None
    """The error for a GPU that could not be named because it is lost."""
    refused: str | None = None
    """The error for a GPU that could not be named for another reason."""

    def of(self, uuid: str) -> GpuState:
        """Return the state of a GPU that was listed before."""
        found = next((state for state in self.states if state.uuid == uuid), None)
        if found is not None:
            return found
        if self.lost is not None:
            return GpuState(uuid, lost=self.lost)
        if self.refused is not None:
            return GpuState(uuid, silent=self.refused)
        return GpuState(uuid, lost="the driver does not list this GPU any more")
