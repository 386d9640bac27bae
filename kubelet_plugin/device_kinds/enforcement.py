"""What enforces a share's memory and cores on this node, or why nothing does: decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dracaena.api.config.v1alpha1 import GpuSharing, SharingStrategy
from dracaena.kubelet_plugin.device_kinds.mps_effect import NO_MPS, MpsOffer

NO_TIME_SLICES: Final = "this node has no NVIDIA driver whose nvidia-smi could set them"
NO_MEMORY_LIMITS: Final = "the GPU driver is not asked for memory limits of pods on this node"
MPS_ALONE: Final = "strategy MPS alone does"


@dataclass(frozen=True, slots=True)
class NodeEnforcement:
    """What a node can do at this moment. Problems are sentence endings that say who must act; None: it can."""

    mps: MpsOffer = NO_MPS
    time_slices: str | None = NO_TIME_SLICES
    memory_limits: str | None = NO_MEMORY_LIMITS


class Enforcer(Enum):
    """What enforces an amount of a share."""

    MPS = "MPS"
    MEMORY_LIMIT = "memory limit"
    """Of the driver, on the cgroups of pods."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a share is limited to, in words; "" if it is not limited, or is everything."""

    memory: str = ""
    cores: str = ""


@dataclass(frozen=True, slots=True)
class ShareEnforcement:
    """What is made for a share, and what then enforces each amount."""

    by_mps: bool = False
    by_time_slices: bool = False
    memory: Enforcer | None = None
    cores: Enforcer | None = None
    no_strategy: str | None = None
    """Why the strategy of its config is not available here."""
    loose: Mapping[str, str] = field(default_factory=dict)
    """Amount that nothing enforces → why not."""


def share_enforcement(amounts: Amounts, sharing: GpuSharing, node: NodeEnforcement) -> ShareEnforcement:
    """Decide it. The driver's limit enforces memory if there is one, whatever the strategy, otherwise MPS does: the
    driver's limit counts all processes of a pod together, and none escapes it. Only MPS enforces cores.

    If nothing requires MPS, a supervisor that does not run is not asked for it.
    """
    strategy, no_strategy = sharing.strategy, None
    by_mps = strategy is SharingStrategy.MPS and node.mps.problem is None and (sharing.is_required or node.mps.runs)
    by_time_slices = strategy is SharingStrategy.TIME_SLICING and node.time_slices is None
    if strategy is not None and not (by_mps or by_time_slices):
        no_strategy = node.mps.problem if strategy is SharingStrategy.MPS else node.time_slices
    limit = Enforcer.MEMORY_LIMIT if node.memory_limits is None else Enforcer.MPS if by_mps else None
    memory = limit if amounts.memory else None
    cores = Enforcer.MPS if amounts.cores and by_mps else None
    loose = {}
    if amounts.memory and memory is None:
        loose[amounts.memory] = f"{node.memory_limits}, and without that {MPS_ALONE}"
    if amounts.cores and cores is None:
        loose[amounts.cores] = MPS_ALONE
    return ShareEnforcement(by_mps, by_time_slices, memory, cores, no_strategy, loose)
