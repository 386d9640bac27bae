"""Which GPU of this node a device name of our pool means, and which devices can be given to a container at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.api.objects import Device


def allocatable_gpus(machine: Machine) -> Mapping[DeviceName, Gpu]:
    """Return the GPUs by the names under which they are published. Order: ordinal."""
    return MappingProxyType({gpu_device_name(gpu.uuid): gpu for gpu in machine.gpus})


def preparable_pages(
    pages: Sequence[Sequence[Device]], gpus: Mapping[DeviceName, Gpu]
) -> tuple[tuple[tuple[Device, ...], ...], tuple[str, ...]]:
    """Return the pages without the devices that no claim could be prepared for, and the names of those left out.

    A GPU whose minor number is unknown has no device node that we could name: published, it would only strand pods.
    """
    skipped = tuple(sorted(name for name, gpu in gpus.items() if gpu.minor is None))
    kept = tuple(tuple(device for device in page if device.name not in skipped) for page in pages)
    return kept, skipped
