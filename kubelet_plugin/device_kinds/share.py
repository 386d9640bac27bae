"""Shares: what one request of a claim has of a GPU that several claims may have at a time."""

from __future__ import annotations

from collections.abc import Sequence

from dracaena.api.config.v1alpha1 import GpuSharing, SharingStrategy
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.quantity import format_bytes
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce, ContainerEdits
from dracaena.kubelet_plugin.device_kinds.mps_effect import NO_MPS, MpsOffer, mps_edits, mps_effect
from dracaena.kubelet_plugin.device_kinds.shared_device import ALL_CORES, shareable_bytes
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool


class GpuShare(WholeGpu):
    """A share of a GPU. Its containers see the whole GPU; what it may use of that has to be enforced beside it.

    A share of everything, which a claim without `capacity` gets, is the whole GPU: there is nothing to enforce.
    """

    def __init__(self, mps: MpsOffer = NO_MPS) -> None:
        """`mps`: what the node's supervisor can do now."""
        self._mps = mps

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
        self, device: PreparedDevice, claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return the share of an MPS server where its config says MPS, else none: nothing else enforces shares yet.

        So one that is limited in another way is refused unless its config allows that.
        """
        if sharing.strategy is SharingStrategy.MPS:
            return self._by_mps(device, claim, pool, sharing)
        found = super().effects(device, claim, pool, sharing)
        if isinstance(found, CannotEnforce) or not sharing.is_required or not is_limited(device, pool):
            return found
        return CannotEnforce(
            f"nothing on this node enforces {share_text(device)} of {device.device} yet; with GpuConfig "
            "`sharing.enforcement: BestEffort` it is prepared without enforcement"
        )

    def edits(self, _device: PreparedDevice, effects: Sequence[Effect]) -> ContainerEdits:
        """Return the way to the MPS server, where there is one."""
        return mps_edits(effects)

    def _by_mps(
        self, device: PreparedDevice, claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return the effect. One that nobody requires is not asked of a supervisor that does not run."""
        memory_bytes = pool.gpus[device.device].memory_bytes
        assert memory_bytes is not None
        assert device.memory_bytes is not None
        effect = mps_effect(device, claim, memory_is_limited=device.memory_bytes < shareable_bytes(memory_bytes))
        problem = "less than 1Mi of memory is no limit that MPS has" if effect is None else self._mps.problem
        if effect is not None and problem is None and (sharing.is_required or self._mps.runs):
            return (effect,)
        if not sharing.is_required:
            return ()
        return CannotEnforce(
            f"GpuConfig requires sharing strategy MPS for {device.device}: {problem}; with `enforcement: BestEffort` "
            "it is prepared without"
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
