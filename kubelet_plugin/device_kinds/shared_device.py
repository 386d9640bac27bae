"""How a GPU is published that several claims may have at once, each with a part of the memory and of the cores."""

from __future__ import annotations

from typing import Final

import msgspec

from dracaena.api.attributes import ALL_CORES, CORES_CAPACITY, MEMORY_CAPACITY
from dracaena.api.quantity import format_bytes
from dracaena.api.resource_objects import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity

MEMORY_STEP_BYTES: Final = 1 << 20
"""A MiB: the unit in which NVIDIA's MPS and the driver's memory limits are set."""


def shareable_bytes(memory_bytes: int) -> int:
    """Return how much of a GPU's memory can be given out: whole steps. A share of all that has the whole GPU."""
    return memory_bytes // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES


def shared_device(device: Device, memory_bytes: int) -> Device:
    """Return the device of a whole GPU as one that several claims may have: whole by default.

    A claim without `capacity` consumes the default of `memory`, which is all of it, so no other claim gets the GPU. The
    value of `memory` is the same as without sharing, so selectors keep their meaning.
    """
    whole = format_bytes(shareable_bytes(memory_bytes))
    step = format_bytes(MEMORY_STEP_BYTES)
    memory = CapacityRequestPolicy(default=whole, valid_range=CapacityRange(min=step, max=whole, step=step))
    cores = CapacityRequestPolicy(default="0", valid_range=CapacityRange(min="0", max=str(ALL_CORES), step="1"))
    return msgspec.structs.replace(
        device,
        allow_multiple_allocations=True,
        capacity={
            **device.capacity,
            MEMORY_CAPACITY: DeviceCapacity(value=format_bytes(memory_bytes), request_policy=memory),
            CORES_CAPACITY: DeviceCapacity(value=str(ALL_CORES), request_policy=cores),
        },
    )
