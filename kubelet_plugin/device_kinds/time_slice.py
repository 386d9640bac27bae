"""What a share wants of its GPU that is divided by time slices: an interval."""

from __future__ import annotations

import re
from typing import Final

from dracaena.api.config.v1alpha1 import GpuSharing, TimeSliceInterval
from dracaena.api.machine import Gpu
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE, Effect, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice

FIRST_CAPABILITY: Final = (7, 0)
"""Volta: the first GPUs whose time slices can be set."""

_ROW: Final = re.compile(r"^\W*[\w:.]+\s+time-?slice\W+(\w+)\W*$", re.IGNORECASE)
"""A line of `nvidia-smi compute-policy --list`: `|   0     Timeslice           Default  |`."""


def time_slice(device: PreparedDevice, sharing: GpuSharing) -> Effect:
    """Return the interval of a share, which is that of its whole GPU."""
    interval = sharing.interval or TimeSliceInterval.DEFAULT
    parameters: dict[str, Scalar] = {"interval": interval.value, "required": sharing.is_required}
    return Effect(TIME_SLICE, device.physical_gpu, device.device, device.share_id, parameters)


def why_no_time_slices(gpu: Gpu) -> str | None:
    """Return why the time slices of a product cannot be set, None if they can or that is not known."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)", gpu.cuda_compute_capability or "")
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= FIRST_CAPABILITY:
        return None
    return (
        f"{gpu.product_name or 'the GPU'} has compute capability {gpu.cuda_compute_capability}, and time slices can be "
        "set from 7.0 (Volta) on: use another GPU, or another strategy"
    )


def interval_in(text: str) -> TimeSliceInterval | None:
    """Return the interval that `nvidia-smi compute-policy --list` names for one GPU.

    NVIDIA does not document its output: None unless it names exactly one that is known.
    """
    known = {interval.value.lower(): interval for interval in TimeSliceInterval}
    found = [row[1].lower() for line in text.splitlines() if (row := _ROW.match(line.strip()))]
    return known.get(found[0]) if len(found) == 1 else None
