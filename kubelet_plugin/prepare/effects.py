"""What preparing a claim changes on its node besides our own files: as values, so that a checkpoint can hold them.

A checkpoint says what its claim wants, and not how far that got (changes.ledger). No effect outlives a boot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Selects who makes and undoes it (changes.change.ThingKind)."""
    gpu: DeviceName
    """Device name of the whole GPU. Effects on one GPU are made and undone one at a time."""
    device: DeviceName
    """The claim's device that it is for; of what several devices have in common, its name."""
    share_id: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    thing: str = ""
    """Name of what is changed, where that is not named like `device` (changes.change.Thing)."""

    @property
    def leaves_nothing(self) -> bool:
        """Whether there is nothing to undo: whoever divides a GPU next turns its MIG mode on."""
        return self.kind == MIG_OFF

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name of the thing that is changed."""
        return self.kind, self.thing or self.device

    def __str__(self) -> str:
        share = "" if self.share_id is None else f" for share {self.share_id}"
        return f"{self.kind} of {self.device}{share}"


def wanted_besides(earlier: Sequence[Effect], now: Sequence[Effect], *, in_use: bool) -> tuple[Effect, ...]:
    """Return what a claim wants that is planned again: what it wanted earlier, and what it wants now.

    While its containers may run (`in_use`), something else of the same thing replaces what it wanted earlier.
    """
    keys = {effect.key for effect in now} if in_use else set()
    return (*(effect for effect in earlier if effect not in now and effect.key not in keys), *now)
