"""The kinds of the config group as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dracaena.api.names import CONFIG_GROUP

API_VERSION = f"{CONFIG_GROUP}/v1alpha1"


class Requirement(Enum):
    """What must hold for the GPUs of one request, or no allocation is made.

    A level means "no pair is linked worse than this", in the order NVLink, PIX, PXB, PHB, NODE, SYS in which
    `nvidia-smi topo -m` is read. So a pair with a direct NVLink satisfies every level, whatever its PCIe level is: who
    asks for PIX wants GPUs that talk fast, and is not served by refusing the faster link. A pair whose PCIe level is
    unknown and that has no NVLink satisfies no level: an assumption is no ground for a promise.
    One GPU alone satisfies everything.
    """

    BEST_EFFORT = "BestEffort"
    """The best-linked set, whatever it is."""
    NVLINK = "NVLink"
    """The NVLink graph of the chosen GPUs alone is connected."""
    PIX = "PIX"
    """No pair worse than one PCIe switch."""
    PXB = "PXB"
    """No pair worse than several PCIe switches below one host bridge."""
    PHB = "PHB"
    """No pair worse than one PCIe host bridge."""
    NODE = "NODE"
    """No pair across NUMA nodes."""


@dataclass(frozen=True, slots=True)
class TopologyPolicy:
    """How GPUs are chosen. Read by the controller; the kubelet plugin only validates it."""

    requirement: Requirement = Requirement.BEST_EFFORT


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How a GPU is prepared. It has no fields yet."""
