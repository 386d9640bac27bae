"""Why a device that must compute confidentially, or does, cannot be given to containers now."""

from __future__ import annotations

from dracaena.api.confidential import CC_ENABLED_MODES, CC_ON, MODE_STATE_LABEL, READY_STATE_LABEL
from dracaena.kubelet_plugin.device_kinds.plan import GatedDevice
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState


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
