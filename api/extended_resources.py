"""Pods that ask for extended resources of GPUs instead of claims: the words for them, shared by all commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dracaena.api.foreign_names import instead_of_share
from dracaena.api.gpu_templates import has_profile
from dracaena.api.mig import profile_of_resource
from dracaena.api.names import rewrite_label

GPUS: Final = "nvidia.com/gpu"
MIG_PREFIX: Final = "nvidia.com/mig-"
CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of a DeviceClass's name: the extended resource of each class (KEP-5004). kube-scheduler makes the claim for
it, and takes no device with our taint."""

ASKS: Final = "asks for the extended resource"
"""How seen() begins."""


def is_extended_gpu_resource(name: str, driver: str) -> bool:
    """Whether a resource is one that NVIDIA's device plugin or a similar one serves (nvidia.com/gpu, .shared, gpumem,
    …), or the one that Kubernetes derives from a class of ours."""
    is_theirs = name.startswith((GPUS, MIG_PREFIX)) or instead_of_share(name, driver) is not None
    return is_theirs or _class_of(name, driver) is not None


def gpu_resources(names: Iterable[str], driver: str) -> list[str]:
    """Return those of the extended resources of a pod or container that need an advice, sorted. Beside a part of a GPU,
    nvidia.com/gpu is no GPU of its own, and its advice would lead to a whole one."""
    found = sorted({name for name in names if is_extended_gpu_resource(name, driver)})
    has_share = any(instead_of_share(name, driver) for name in found)
    return [name for name in found if not (has_share and name == GPUS)]


def seen(name: str) -> str:
    """Say what is wrong with asking for such a resource."""
    return f"{ASKS} {name}, for which Dracaena gives no devices"


def given(name: str) -> str:
    """Say where a bound pod has such a resource from."""
    return f"its extended resource {name} is another driver's, or kube-scheduler's own claim: Dracaena did not give it"


def advice(name: str, driver: str) -> str:
    """Say what to do about it; one text for each kind of resource."""
    claims = "a ResourceClaim or ResourceClaimTemplate"
    label = f"the label {rewrite_label(driver)}=true on the namespace"
    if name.startswith(MIG_PREFIX):
        profile = profile_of_resource(name.removeprefix(MIG_PREFIX))
        if profile is None:
            return f"{claims} of class mig.{driver}, with a selector for the profile"
        by_hand = f"{claims} of class mig.{driver} with the selector {has_profile(profile, driver)}"
        return f"{by_hand}, or {label}, if the chart's value rewrite.resourceNames has {name}: then new pods get claims"
    class_name = _class_of(name, driver)
    if class_name is not None:
        return f"{claims} of class {class_name}: by this name kube-scheduler gives devices of nodes left to it alone"
    if name == GPUS:
        return f"{claims}, or {label}, which makes claims of it in new pods"
    return instead_of_share(name, driver) or f"{claims}: for a part of a GPU one with capacity.requests"


def _class_of(name: str, driver: str) -> str | None:
    """Return the name of our class that a resource stands for."""
    class_name = name.removeprefix(CLASS_PREFIX)
    is_ours = class_name == driver or class_name.endswith(f".{driver}")
    return class_name if name.startswith(CLASS_PREFIX) and is_ours else None
