"""What a claim has of a GPU that others may have too, as podlist.json and the annotations of pods tell it."""

from __future__ import annotations

import msgspec


class DeviceShare(msgspec.Struct, frozen=True):
    """One share. It limits what the container may use; which GPU it is stands beside it."""

    gpu: str
    """As the document names GPUs: by UUID, or in the form that an admin chose."""
    share_id: str
    """status.allocation.devices.results[].shareID."""
    memory: str
    """A Quantity; empty: not known."""
    cores: int
    """Percent of the GPU's cores; 0: no ceiling."""
