"""MIG devices: parts of a divided GPU, each usable like a GPU of its own, without NVLinks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dracaena.api.names import DeviceName

_COMPUTE_PART = re.compile(r"[0-9]+c\.")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+", re.ASCII)

RESOURCE_PROFILE: Final = r"(?:[1-9]c\.)?[1-9][0-9]?g\.[1-9][0-9]{0,3}gb(?:[.-][a-z]{1,8}(?:\.[a-z]{1,8})?)?"
"""Pattern of a profile as extended resources name it: `1g.10gb`, `1g.10gb.me`, `1g.24gb.me.all`, `2g.48gb-me`."""

_RESOURCE_PROFILE: Final = re.compile(RESOURCE_PROFILE)


@dataclass(frozen=True, slots=True)
class MigAttributes:
    """What a MIG device has of its GPU, besides memory and multiprocessors, as nvmlDeviceGetAttributes counts it."""

    gpu_slices: int
    """Sevenths of the GPU that its GPU instance has, ..."""
    compute_slices: int
    """... and its compute instance."""
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One existing MIG device: a compute instance within a GPU instance of its parent."""

    parent_uuid: str
    uuid: str
    """`MIG-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`. It exists only with the device, so no name is built on it."""
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    """As NVML names it: `1g.5gb`, `1g.10gb+me`, `1c.3g.20gb`."""
    start: int
    """The first of the parent's memory slices that it has."""
    size: int
    """How many of them."""
    memory_bytes: int | None = None
    multiprocessors: int | None = None
    access_minors: tuple[int, int] | None = None
    """Numbers of the files /dev/nvidia-caps/nvidia-cap<n> that give access to the GPU instance and the compute
    instance. They change with a reboot. None: unknown, so no container can be given the device."""
    attributes: MigAttributes | None = None

    @property
    def device_name(self) -> DeviceName:
        """Name in the ResourceSlice. Compute instances that share a GPU instance have the same profile and start, so
        their own number follows.
        """
        shared = f"-{self.compute_instance_id}" if _COMPUTE_PART.match(self.profile) else ""
        return DeviceName(mig_device_name(self.parent_uuid, self.profile, self.start) + shared)


@dataclass(frozen=True, slots=True)
class EmptyGpuInstance:
    """A GPU instance without a compute instance: it takes its part of a GPU, and there is no MIG device that shows it.

    `nvidia-smi mig -cgi` without `-C` leaves one, and so does a program that is killed between the two steps.
    """

    parent_uuid: str
    gpu_instance_id: int
    profile: str
    start: int
    """The first of the parent's memory slices that it has."""
    size: int
    """How many of them."""

    @property
    def device_name(self) -> DeviceName:
        """Name that the MIG device of a compute instance with all its slices would have."""
        return mig_device_name(self.parent_uuid, self.profile, self.start)


def mig_device_name(parent_uuid: str, profile: str, start: int) -> DeviceName:
    """Return `mig-<parent uuid>-<profile>-<start>`, a DNS label.

    `-me` (without media engines) becomes `-nome`, because `+me` becomes `-me`.
    """
    parent = parent_uuid.lower().removeprefix("gpu-")
    words = _NOT_IN_NAMES.sub("-", profile.lower().replace("-me", "-nome"))
    return DeviceName(f"mig-{parent}-{words}-{start}")


def profile_in_resource(profile: str) -> str:
    """Return a profile as NVIDIA's device plugin writes it after `nvidia.com/mig-`: names of resources have no `+`."""
    return profile.replace("+", ".")


def profile_of_resource(text: str) -> str | None:
    """Return the profile, as NVML names it, that an extended resource writes like this; None if it is none."""
    if not _RESOURCE_PROFILE.fullmatch(text):
        return None
    size, memory, suffix = text.partition("gb")
    return f"{size}{memory}+{suffix[1:]}" if suffix.startswith(".") else text


_IN_DEVICE_NAME = re.compile(
    r"mig-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-"
    r"(?P<part>[0-9]+c-)?(?P<size>[0-9]+g)-(?P<memory>[0-9]+gb)(?P<more>(?:-[a-z][a-z0-9]*)*)-[0-9]+(?:-[0-9]+)?"
)


def profile_in(device_name: str) -> str | None:
    """Return the profile in the name of a MIG device as NVML writes it, `1g.10gb+me`; None for any other name.

    The inverse of mig_device_name(): a claim names its devices even when their slice is gone.
    """
    found = _IN_DEVICE_NAME.fullmatch(device_name)
    if found is None:
        return None
    part = (found["part"] or "").replace("-", ".")
    more = found["more"].removeprefix("-")
    extras = "-me" if more == "nome" else "+" + more.replace("-", ".") if more else ""
    return f"{part}{found['size']}.{found['memory']}{extras}"


def slices_in(profile: str) -> int:
    """Return how many sevenths of a GPU's processors a profile has by its name: 3 for `3g.40gb`, 1 for `1c.3g.40gb`,
    which shares them; 0 for what is no profile."""
    digits = re.match(r"[0-9]+(?=[cg]\.)", profile)
    return 0 if digits is None else int(digits[0])
