"""Which devices of a claim must compute confidentially, and why one of them cannot be given to containers now."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.confidential import CC_ENABLED_MODES, CC_ON, MODE_STATE_LABEL, READY_STATE_LABEL
from dracaena.api.config.v1alpha1 import GpuConfig, VfioConfig
from dracaena.api.names import DeviceName
from dracaena.api.passthrough import DEVICE_PREFIX
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.vgpu import VGPU_PREFIX
from dracaena.kubelet_plugin.device_kinds.plan import DecodeConfig, configs_for, read_configs
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool


@dataclass(frozen=True, slots=True)
class GatedDevice:
    """A device whose state must be checked before a claim gets it."""

    request: str
    device: DeviceName
    is_required: bool
    """Whether a GpuConfig says that it must compute confidentially."""

    @property
    def is_passthrough(self) -> bool:
        """Whether it is a GPU for virtual machines or a vGPU, whose state only the guest's driver knows."""
        return self.device.startswith((DEVICE_PREFIX, VGPU_PREFIX))


def gated_devices(claim: ResourceClaim, pool: PublishedPool, decode_config: DecodeConfig) -> tuple[GatedDevice, ...]:
    """Return the devices to check, in the order of the allocation: those that must compute confidentially, and, while
    the GPUs of this node do, all that its driver has. Admin access is always allowed: attesting the GPUs needs it.
    plan_claim() reports what is wrong with a claim.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ()
    configs, _ = read_configs(allocation, pool.driver, decode_config)
    is_enabled = any(gpu.cc_mode in CC_ENABLED_MODES for gpu in pool.gpus.values())
    found = [
        GatedDevice(
            result.request,
            DeviceName(result.device),
            is_required=any(_requires_it(config) for config in configs_for(result.request, configs)),
        )
        for result in allocation.devices.results
        if result.driver == pool.driver and not result.admin_access
    ]
    return tuple(each for each in found if each.is_required or (is_enabled and not each.is_passthrough))


def _requires_it(config: GpuConfig | VfioConfig) -> bool:
    return isinstance(config, GpuConfig) and config.confidential is not None


def why_not_ready(gated: GatedDevice, state: ConfidentialState) -> str | None:
    """Return why no container can be given a device in this state, saying who must act; None if one can."""
    if gated.is_required and state.mode != CC_ON:
        return (
            f"request {gated.request}: GpuConfig requires that {gated.device} computes confidentially (mode on), and "
            f"{_mode_in_words(gated, state)}: an admin must switch the GPUs of this node to mode on, or "
            "the pod must ask for others"
        )
    if state.mode in CC_ENABLED_MODES and not state.ready:
        return f"request {gated.request}: {gated.device} {_readiness_in_words(gated, state)}"
    return None


def _mode_in_words(gated: GatedDevice, state: ConfidentialState) -> str:
    if state.mode is not None:
        return f"its mode is {state.mode}"
    if gated.is_passthrough:
        return f"the mode of GPUs for virtual machines on this node is not known (label {MODE_STATE_LABEL})"
    return "the NVIDIA driver does not report its mode"


def _readiness_in_words(gated: GatedDevice, state: ConfidentialState) -> str:
    if gated.is_passthrough:
        return (
            f"is in mode {state.mode}, and label {READY_STATE_LABEL} of this node does not say `true`: NVIDIA's "
            "manager of these modes must say it; kubelet asks again"
        )
    seen = "does not tell whether it takes" if state.ready is None else "says that it takes no"
    return (
        f"computes confidentially (mode {state.mode}), and the NVIDIA driver {seen} work: whoever attests the GPUs of "
        "this node must do so, and say it on the node with `nvidia-smi conf-compute -srs 1`; kubelet asks again"
    )
