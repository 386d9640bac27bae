"""Shares: what one request of a claim has of a GPU that several claims may have at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dracaena.api.attributes import ALL_CORES
from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.quantity import format_bytes
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce, ContainerEdits
from dracaena.kubelet_plugin.device_kinds.enforcement import (
    Amounts,
    Enforcer,
    NodeEnforcement,
    ShareEnforcement,
    share_enforcement,
)
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import memory_limit_effect, why_no_memory_limits
from dracaena.kubelet_plugin.device_kinds.mps_effect import MpsOffer, mps_effect
from dracaena.kubelet_plugin.device_kinds.shared_device import MEMORY_STEP_BYTES, shareable_bytes
from dracaena.kubelet_plugin.device_kinds.time_slice import time_slice, why_no_time_slices
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu, mig_off
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool


class GpuShare(WholeGpu):
    """A share of a GPU. Its containers see the whole GPU; how much they may use must be enforced by other means.

    A share of everything, which a claim without `capacity` gets, is the whole GPU: there is nothing to enforce.
    """

    def __init__(self, node: NodeEnforcement = NodeEnforcement()) -> None:  # noqa: B008 - it is frozen
        """`node`: what can enforce shares there now."""
        self._node = node

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: as for the whole GPU, or because its shares cannot be counted."""
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
        """Return what enforces the share, or why nothing does although that is required."""
        amounts = amounts_of(device, pool)
        found = share_enforcement(amounts, sharing, self._on(device, pool))
        lacking = _lacking(device, sharing, found)
        if lacking and sharing.is_required:
            return CannotEnforce(f"{lacking}; with GpuConfig `sharing.enforcement: BestEffort` it is prepared without")
        mps = mps_effect(device, claim, memory_is_limited=bool(amounts.memory)) if found.by_mps else None
        slices = (time_slice(device, sharing),) if found.by_time_slices else ()
        by_limit = found.memory is Enforcer.MEMORY_LIMIT
        # With MPS it may fail: then the server's own limit holds.
        limits = (memory_limit_effect(device, required=sharing.is_required and mps is None),) if by_limit else ()
        return (*mig_off(device, pool), *limits, *slices, *(() if mps is None else (mps,)))

    def edits(self, device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return what connects to the MPS server, if there is one."""
        return ContainerEdits(device.edits.env, device.edits.mounts)

    def _on(self, device: PreparedDevice, pool: PublishedPool) -> NodeEnforcement:
        """Return what the node can do for this share of this GPU."""
        node = self._node
        if device.memory_bytes is not None and device.memory_bytes < MEMORY_STEP_BYTES:
            nothing = MpsOffer("MPS has no memory limits below 1Mi", runs=False)
            node = dataclasses.replace(node, mps=nothing)
        return dataclasses.replace(
            node,
            time_slices=node.time_slices or why_no_time_slices(pool.gpus[device.device]),
            memory_limits=node.memory_limits or why_no_memory_limits(pool.gpu_driver_version),
        )


def _lacking(device: PreparedDevice, sharing: GpuSharing, found: ShareEnforcement) -> str:
    """Return what a share does not get here, and why; "" if it gets everything."""
    if found.no_strategy is not None and sharing.strategy is not None:
        return f"GpuConfig requires sharing strategy {sharing.strategy.value} for {device.device}: {found.no_strategy}"
    loose = (f"nothing on this node enforces {what} of {device.device}: {why}" for what, why in found.loose.items())
    return "; ".join(loose)


def amounts_of(device: PreparedDevice, pool: PublishedPool) -> Amounts:
    """Return what a share is limited to: the amounts that are less than the whole GPU. There must be no obstacle."""
    whole_bytes = pool.gpus[device.device].memory_bytes
    assert whole_bytes is not None
    memory = ""
    if device.memory_bytes is None:
        memory = "its memory"
    elif device.memory_bytes < shareable_bytes(whole_bytes):
        memory = f"{format_bytes(device.memory_bytes)} of memory"
    return Amounts(memory, f"{device.cores} % of the cores" if 0 < device.cores < ALL_CORES else "")
