"""What preparing a claim changes on its node beside our own files: as values, so that a checkpoint can hold them.

An effect is journaled in the claim's checkpoint before it is made, and leaves it after it was undone. So whatever is
killed when, the checkpoints name all that may have been done, and each names enough to undo it. None outlives a boot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.names import DeviceName

Scalar = str | int | bool
"""What may stand in a checkpoint for an effect."""

MPS_SHARE: Final = "mps-share"
"""Kind of the effect of a share that the node's MPS supervisor serves (device_kinds.mps_effect)."""

TIME_SLICE_BEFORE: Final = "time-slice-before"
"""Kind of the effect that keeps which interval a GPU had before its time slices (device_kinds.time_slice_effects)."""

TIME_SLICE: Final = "time-slice"
"""Kind of the effect of a share whose GPU is divided by time slices (device_kinds.time_slice_effects)."""

MIG_INSTANCE: Final = "mig-instance"
"""Kind of the effect of a MIG device that is made when a claim gets it (device_kinds.mig_place)."""

MIG_OFF: Final = "mig-off"
"""Kind of the effect of a GPU that has to leave MIG mode before it can be used whole."""

MEMORY_LIMIT: Final = "memory-limit"
"""Kind of the effect of a share whose memory the GPU driver limits (device_kinds.memory_limit_effect)."""

FABRIC_PARTITION: Final = "fabric-partition"
"""Kind of the effect of a partition of Fabric Manager's that links the GPUs of a claim (prepare.partition_effects)."""

VFIO_BIND: Final = "vfio-bind"
"""Kind of the effect of a GPU that is bound to a VFIO driver when a claim gets it (device_kinds.vfio_gpu)."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of one GPU, or of a thing beside it. Its fields alone must be enough to undo it."""

    kind: str
    """By which the means are found that make and undo it (ports.EffectMeans)."""
    gpu: DeviceName
    """Device name of the whole GPU. Effects on one GPU are made and undone one at a time."""
    device: DeviceName
    """The claim's device that it is for."""
    share_id: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    outcome: Mapping[str, Scalar] | None = None
    """What making it told, such as the number of what was made. None: it may have been made, or may not."""

    def is_same(self, other: Effect) -> bool:
        """Whether both are one change, however far it got."""
        return dataclasses.replace(self, outcome=None) == dataclasses.replace(other, outcome=None)

    def __str__(self) -> str:
        share = "" if self.share_id is None else f" for share {self.share_id}"
        return f"{self.kind} of {self.device}{share}"


def is_among(effect: Effect, effects: Iterable[Effect]) -> bool:
    """Whether an effect is one of these, however far it got."""
    return any(effect.is_same(other) for other in effects)


def journaled(earlier: Sequence[Effect], wanted: Sequence[Effect]) -> tuple[Effect, ...]:
    """Return what a checkpoint must name that is written anew: what it named, then what is wanted beside that.

    What is among both is as it was noted earlier, at the place where it is wanted.
    """
    known = [next((e for e in earlier if e.is_same(effect)), effect) for effect in wanted]
    return (*(e for e in earlier if not is_among(e, wanted)), *known)
