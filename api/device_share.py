"""What a claim has of a GPU that others may share, as podlist.json and the annotations of pods describe it."""

from __future__ import annotations

import msgspec


class DeviceShare(msgspec.Struct, frozen=True):
    """One share. It limits what the container may use of the GPU."""

    gpu: str
    """As the document names GPUs: by UUID, or in the form that an admin chose."""
    share_id: str
    """status.allocation.devices.results[].shareID."""
    memory: str
    """A Quantity; empty: unknown."""
    cores: int
    """Percent of the GPU's cores; 0: no ceiling."""
