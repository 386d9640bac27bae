"""What preparing a claim changes on its node besides our own files: as values, so that a checkpoint can hold them.

An effect is journaled in the claim's checkpoint before it is made, and removed from it after it was undone. So whenever
a process is killed, the checkpoints name all that may have been done, and enough to undo it. No effect outlives a boot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.names import DeviceName

Scalar = str | int | bool
"""Values that an effect may have in a checkpoint."""

MPS_SHARE: Final = "mps-share"
"""Kind of the effect of a share that the node's MPS supervisor serves (device_kinds.mps_effect)."""

TIME_SLICE: Final = "time-slice"
"""Kind of the effect of a share whose GPU is divided by time slices (device_kinds.time_slice)."""

MIG_INSTANCE: Final = "mig-instance"
"""Kind of the effect of a MIG device that is created when a claim gets it (device_kinds.mig_place)."""

MIG_OFF: Final = "mig-off"
"""Kind of the effect of a GPU that has to leave MIG mode before it can be used whole."""

MEMORY_LIMIT: Final = "memory-limit"
"""Kind of the effect of a share whose memory the GPU driver limits (device_kinds.memory_limit_effect)."""

FABRIC_PARTITION: Final = "fabric-partition"
"""Kind of the effect of a Fabric Manager partition that links the GPUs of a claim (device_kinds.partition_effects)."""

VFIO_BIND: Final = "vfio-bind"
"""Kind of the effect of a GPU that is bound to a VFIO driver when a claim gets it (device_kinds.vfio_gpu)."""


_ON_GPU: Final = "+"


def part_on_gpu(gpu: DeviceName, part: str) -> str:
    """Return the name of a thing that is only a part of what a GPU has, such as one pod's limit. No GPU has a `+`."""
    return f"{gpu}{_ON_GPU}{part}"


def gpu_and_part(thing: str) -> tuple[DeviceName, str]:
    """Return what part_on_gpu() was given."""
    gpu, _, part = thing.partition(_ON_GPU)
    return DeviceName(gpu), part


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of one GPU, or of a thing beside it. Its fields alone must be enough to undo it."""

    kind: str
    """Selects the means that make and undo it (ports.EffectMeans)."""
    gpu: DeviceName
    """Device name of the whole GPU. Effects on one GPU are made and undone one at a time."""
    device: DeviceName
    """The claim's device that it is for; of what several devices have in common, its name."""
    share_id: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    outcome: Mapping[str, Scalar] | None = None
    """What making it returned, such as the number of what was made. None: it may or may not have been made."""
    thing: str = ""
    """Name of what is changed, where that is not named like `device` (changes.change.Thing)."""

    @property
    def leaves_nothing(self) -> bool:
        """Whether there is nothing to undo: whoever divides a GPU next turns its MIG mode on."""
        return self.kind == MIG_OFF

    def is_same(self, other: Effect) -> bool:
        """Whether both are the same change, however far it got."""
        return dataclasses.replace(self, outcome=None) == dataclasses.replace(other, outcome=None)

    def __str__(self) -> str:
        share = "" if self.share_id is None else f" for share {self.share_id}"
        return f"{self.kind} of {self.device}{share}"


def is_among(effect: Effect, effects: Iterable[Effect]) -> bool:
    """Whether an effect is one of these, however far it got."""
    return any(effect.is_same(other) for other in effects)


def journaled(earlier: Sequence[Effect], wanted: Sequence[Effect]) -> tuple[Effect, ...]:
    """Return the effects of a rewritten checkpoint: those that it had, then the wanted ones that are new.

    An effect in both keeps what was noted earlier, and moves to where it is wanted.
    """
    known = [next((e for e in earlier if e.is_same(effect)), effect) for effect in wanted]
    return (*(e for e in earlier if not is_among(e, wanted)), *known)
