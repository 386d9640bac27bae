"""Shares: what one request of a claim has of a GPU that several claims may have at a time."""

from __future__ import annotations

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.names import DeviceName
from dracaena.api.quantity import format_bytes
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce
from dracaena.kubelet_plugin.device_kinds.shared_device import ALL_CORES, shareable_bytes
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool


class GpuShare(WholeGpu):
    """A share of a GPU. Its containers see the whole GPU; what it may use of that has to be enforced beside it.

    A share of everything, which a claim without `capacity` gets, is the whole GPU: there is nothing to enforce.
    """

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: as for the whole GPU, and where shares of it cannot be counted."""
        found = super().obstacle(name, pool)
        if found is None and pool.gpus[name].memory_bytes is None:
            return f"it is not known how much memory GPU {pool.gpus[name].uuid} has, so its shares cannot be counted"
        return found

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """Whether only its minor or its memory is not known."""
        gpu = pool.gpus.get(name)
        return gpu is not None and not gpu.mig_enabled and (gpu.minor is None or gpu.memory_bytes is None)

    def effects(
        self, device: PreparedDevice, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return none: nothing enforces shares yet. So one that is limited is refused unless its config allows that."""
        found = super().effects(device, pool, sharing)
        if isinstance(found, CannotEnforce) or not sharing.is_required or not is_limited(device, pool):
            return found
        return CannotEnforce(
            f"nothing on this node enforces {share_text(device)} of {device.device} yet; with GpuConfig "
            "`sharing.enforcement: BestEffort` it is prepared without enforcement"
        )


def is_limited(device: PreparedDevice, pool: PublishedPool) -> bool:
    """Whether a share is less than the whole GPU. There must be no obstacle."""
    memory_bytes = pool.gpus[device.device].memory_bytes
    assert memory_bytes is not None
    ceiling = 0 < device.cores < ALL_CORES
    return ceiling or device.memory_bytes is None or device.memory_bytes < shareable_bytes(memory_bytes)


def share_text(device: PreparedDevice) -> str:
    """Say what a share is of its GPU: `20Gi of memory and 30 % of the cores`."""
    memory = "all memory" if device.memory_bytes is None else f"{format_bytes(device.memory_bytes)} of memory"
    return f"{memory} and {device.cores} % of the cores" if device.cores else memory
