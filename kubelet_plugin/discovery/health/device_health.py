"""The health of devices as kubelet is told of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dracaena.api.names import DeviceName

STALE_S = 60.0
"""After this long without news of a device kubelet calls its health unknown: four polls."""


class Status(enum.Enum):
    """Health in kubelet's terms."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one device."""

    device: DeviceName
    status: Status
    updated_s: int
    """When the driver last reported on it, in seconds since the epoch; 0: never."""
    message: str = ""
