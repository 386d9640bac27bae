"""Pods that ask for NVIDIA's extended resources instead of claims: the words for them, shared by all commands."""

from __future__ import annotations

from typing import Final

from dracaena.api.names import rewrite_label

GPUS: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"


def is_extended_gpu_resource(name: str) -> bool:
    """Whether a resource is one of those that NVIDIA's device plugin serves."""
    return name.startswith((GPUS, MIG_PREFIX))


def seen(name: str) -> str:
    """Say what is wrong with asking for such a resource."""
    return f"asks for the extended resource {name}, for which Dracaena gives no devices"


def advice(name: str, driver: str) -> str:
    """Say what to do about it; one text for each kind of resource."""
    claims = "a ResourceClaim or ResourceClaimTemplate"
    if name.startswith(MIG_PREFIX):
        return f"{claims} for MIG devices"
    label = f"{rewrite_label(driver)}=true"
    return f"{claims}, or the label {label} on the namespace, which makes claims of it in new pods"
