"""How podlist.json names GPUs: the formats that its readers may want."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice


class GpuNameFormat(Enum):
    """What gpu_list contains. Only a UUID is an identity: the other formats are for readers that know nothing else."""

    UUID = "uuid"
    """`GPU-…` or `MIG-…`, as NVML prints them; a GPU for virtual machines has its PCI address there in all formats."""
    INDEX = "index"
    """NVML index, as DCGM counts: `3`, for a MIG device `3-7` with its GPU instance (the key of dcgm-exporter)."""
    MINOR = "minor"
    """Number of the device node: `3`, for a MIG device `3-7` with its GPU instance."""
    DEVICE_NAME = "device-name"
    """Name of the device node: `nvidia3`, for a MIG device `nvidia3/gi7` (kubernetes-gpu-id-type of dcgm-exporter)."""


def gpu_name(device: PreparedDevice, name_format: GpuNameFormat) -> str:
    """Return a device in a format; its UUID if the number for that format was not kept (see PreparedDevice)."""
    is_part = device.parent_uuid is not None or bool(device.access_minors)
    number = device.index if name_format is GpuNameFormat.INDEX else device.minor
    if (
        name_format is GpuNameFormat.UUID
        or number is None
        or number < 0
        or (is_part and device.gpu_instance_id is None)
    ):
        return device.uuid
    whole = f"nvidia{number}" if name_format is GpuNameFormat.DEVICE_NAME else str(number)
    if not is_part:
        return whole
    return f"{whole}{'/gi' if name_format is GpuNameFormat.DEVICE_NAME else '-'}{device.gpu_instance_id}"
