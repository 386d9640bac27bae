"""What NVML in Python (fake_nvml) tells of a machine beside what the machine says: a test changes it as it likes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pynvml

from dracaena.api.confidential import CC_DEVTOOLS, CC_ENABLED_MODES
from dracaena.api.machine import Machine
from dracaena.host.facts.pci import PciAddress


@dataclass(frozen=True, slots=True)
class FakeLink:
    """One NVLink of a GPU."""

    remote_type: int
    remote: PciAddress | None = None
    state: int = pynvml.NVML_FEATURE_ENABLED


@dataclass(frozen=True, slots=True)
class FakeMig:
    """One MIG device."""

    parent: int
    number: int
    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int = 0
    start: int = 0
    size: int = 1
    memory_mib: int = 4864
    multiprocessors: int = 14


@dataclass(slots=True)
class FakeHealth:
    """What a GPU tells about its health; None: NOT_SUPPORTED."""

    recovery_action: int | None = 0
    uncorrected_ecc: int | None = 0
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool | None = None
    clock_reasons: int = 1
    event_types: int | None = 0xFC0F
    nvlink_replays: int | None = None
    nvlink_recoveries: int | None = None
    sram_exceeded: bool | None = None


@dataclass(slots=True)
class FakeFabric:
    """nvmlGpuFabricInfo_v2_t of one GPU, without the clique."""

    state: int = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    status: int = pynvml.NVML_SUCCESS
    health_mask: int = 0


@dataclass(slots=True)
class FakeConfidential:
    """What the driver says of confidential computing; the GPUs are ready only once somebody has said so."""

    capable: int
    feature: int = 0
    dev_tools: int = 0
    ready: int = 0


@dataclass(slots=True)
class FakeEventSet:
    """One event set of nvmlEventSetCreate."""

    types: dict[int, int] = field(default_factory=dict)
    """Ordinal → event types that were asked for."""
    events: deque[tuple[int, int, int, int]] = field(default_factory=deque)
    """Ordinal, type, data, GPU instance."""


def confidential_of(machine: Machine) -> FakeConfidential | None:
    """Return what the driver of a machine says; None: it does not know the calls."""
    gpu = next(iter(machine.gpus), None)
    if gpu is None or gpu.cc_capable is None:
        return None
    return FakeConfidential(int(gpu.cc_capable), int(gpu.cc_mode in CC_ENABLED_MODES), int(gpu.cc_mode == CC_DEVTOOLS))


def gpu_address(machine: Machine, ordinal: int) -> PciAddress:
    """Return the PCI address of a GPU, one of our own where the machine tells none."""
    text = machine.gpus[ordinal].pci_bus_id
    address = PciAddress.parse(text) if text is not None else PciAddress(0, 0x10 + ordinal, 0, 0)
    assert address is not None
    return address


def links_of(machine: Machine, ordinal: int) -> list[FakeLink]:
    """Lay the links of one GPU: all to switches where its pairs show more than it has, else one by one to its peers."""
    peers = {
        other: machine.topology.link(ordinal, other).nvlinks for other in range(len(machine.gpus)) if other != ordinal
    }
    own = machine.gpus[ordinal].nvlink_count or 0
    if sum(count or 0 for count in peers.values()) > own:
        return [FakeLink(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)] * own
    direct = [
        FakeLink(pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, gpu_address(machine, other))
        for other, count in peers.items()
        for _ in range(count or 0)
    ]
    return direct + [FakeLink(pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU)] * (own - len(direct))
