"""GPU instances as the driver has them, and its errors when it refuses to change them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dracaena.api.errors import TemporaryError
from dracaena.api.mig_geometry import MigPlacement

IN_USE = "IN_USE"
RESET_REQUIRED = "RESET_REQUIRED"
NOT_FOUND = "NOT_FOUND"
GPU_IS_LOST = "GPU_IS_LOST"
GET_GPU = "nvmlDeviceGetHandleByUUID"
GET_INSTANCE = "nvmlDeviceGetGpuInstanceById"

_REMEDIES = {
    "NO_PERMISSION": "the plugin must run privileged as root, and a virtual machine must be allowed to change MIG",
    RESET_REQUIRED: "the GPU has to be reset while nothing uses it: drain the node, then `nvidia-smi --gpu-reset -i` "
    "with this GPU, in a virtual machine a reboot",
    IN_USE: "a process still uses it: see `nvidia-smi`, and monitors that hold the GPU open",
    "INSUFFICIENT_RESOURCES": "its place, or an engine that it needs, is taken: see `nvidia-smi mig -lgi`",
    "NOT_SUPPORTED": "the GPU is not in MIG mode, or the driver does not offer this profile any more",
}
"""NVML's error → who must act, on what."""

_MAY_HAVE_BEEN_DONE = frozenset({"TIMEOUT", "UNKNOWN", GPU_IS_LOST, "IRQ_ISSUE", "MEMORY"})
"""Errors that leave open how far the driver got."""


class MigRefusedError(TemporaryError):
    """The driver did not do a step. `reason` is NVML's error without its prefix."""

    def __init__(self, call: str, reason: str, what: str = "") -> None:
        """`what` precedes the text."""
        remedy = _REMEDIES.get(reason)
        super().__init__(f"{what}{call} says {reason}" + ("" if remedy is None else f": {remedy}"))
        self.call = call
        self.reason = reason

    @property
    def did_nothing(self) -> bool:
        """Whether it is certain that nothing changed."""
        return self.reason not in _MAY_HAVE_BEEN_DONE

    @property
    def instance_is_gone(self) -> bool:
        """Whether there is no GPU instance with the given number."""
        return (self.call, self.reason) == (GET_INSTANCE, NOT_FOUND)

    @property
    def gpu_is_gone(self) -> bool:
        """Whether the GPU is off the bus or was removed: its next reset leaves no instance on it."""
        return self.reason in (GPU_IS_LOST, "GPU_NOT_FOUND") or (self.call, self.reason) == (GET_GPU, NOT_FOUND)


@dataclass(frozen=True, slots=True)
class MadeDevice:
    """The MIG device that was made for a claim."""

    gpu: str
    uuid: str
    known_gone: bool = False
    """Whether its claim is set aside because it, or its GPU, was not there."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """One GPU instance, with or without a compute instance: without one there is no MIG device, and no handle of it."""

    number: int
    """The driver's number, which it reuses once this instance is gone."""
    profile: str
    placement: MigPlacement
    has_compute: bool


@dataclass(frozen=True, slots=True)
class MadeInstance:
    """What is noted of a GPU instance that we made, or are about to make."""

    profile: str
    start: int
    size: int
    number: int | None = None
    """The driver's number. None: not known yet."""
    uuid: str | None = None
    """UUID of its MIG device. None: not known yet, or it is being destroyed."""
    nodes: tuple[int, int] | None = None
    """Numbers of the /dev/nvidia-caps/nvidia-cap<n> that open it. None: not known yet, or nobody needs them."""
    is_asked_for: bool = True
    """Whether the driver was asked for it, or is about to be. Before that no instance is ours."""

    @property
    def placement(self) -> MigPlacement:
        """Where it lies."""
        return MigPlacement(self.start, self.size)

    def may_be(self, found: GpuInstance) -> bool:
        """Whether an instance may be this one, as far as that shows without its UUID. A number alone proves nothing:
        the driver reuses it for the next instance.
        """
        same_place = (found.profile, found.placement) == (self.profile, self.placement)
        return self.is_asked_for and same_place and self.number in (None, found.number)

    def is_it(self, found: GpuInstance, device: str | None) -> bool:
        """Whether an instance is this one. `device` is the UUID of its MIG device, None if it has none. If a UUID was
        noted, one with another UUID or without a MIG device is somebody else's: the driver reuses number and place.
        """
        return self.may_be(found) and self.uuid in (None, device)

    def as_nothing(self) -> MadeInstance:
        """Return this for the case that certainly nothing of it exists."""
        return replace(self, number=None, uuid=None, nodes=None, is_asked_for=False)
