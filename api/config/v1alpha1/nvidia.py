"""Configurations of NVIDIA's DRA driver: what to write for ours instead.

The group is `resource.nvidia.com`; its kinds `GpuConfig` and `MigDeviceConfig` have `sharing` with `strategy`
TimeSlicing or MPS, `timeSlicingConfig.interval`, and `mpsConfig` with `defaultActiveThreadPercentage` and
`defaultPinnedDeviceMemoryLimit`. There one claim divides a GPU among its own pods; here each share is a claim, and its
amounts are `capacity.requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dracaena.api.config.v1alpha1.types import API_VERSION, Enforcement, SharingStrategy, TimeSliceInterval
from dracaena.api.quantity import parse_quantity

_GROUP: Final = "resource.nvidia.com/"

_STRATEGIES: Final = tuple(strategy.value for strategy in SharingStrategy)
_SLICES: Final = SharingStrategy.TIME_SLICING.value
_INTERVALS: Final = tuple(interval.value for interval in TimeSliceInterval)
_MOST_PERCENT: Final = 100


def is_of_nvidia(parameters: Mapping[str, Any]) -> bool:
    """Whether parameters are of NVIDIA's group, in any version."""
    return str(parameters.get("apiVersion")).startswith(_GROUP)


def instead_of(parameters: Mapping[str, Any]) -> str:
    """Say what to write instead of parameters of NVIDIA's group, as YAML in one line if there is an equivalent.

    The parameters are untrusted: what is not in the documented form is not repeated.
    """
    kind = parameters.get("kind")
    if kind == "MigDeviceConfig":
        return "instead of NVIDIA's MigDeviceConfig write nothing: each MIG device is one claim's, and is not shared"
    if kind != "GpuConfig":
        return "there is nothing like that kind here: leave it out"
    sharing = _object(parameters.get("sharing"))
    strategy = sharing.get("strategy")
    if strategy not in _STRATEGIES:
        return "NVIDIA's GpuConfig without sharing says nothing: leave it out"
    ours = ", ".join((f"strategy: {strategy}", *(_slices(sharing) if strategy == _SLICES else ())))
    line = f"`parameters: {{apiVersion: {API_VERSION}, kind: GpuConfig, sharing: {{{ours}}}}}`"
    return f"instead of NVIDIA's GpuConfig write {line}, and in the request `{_amounts(sharing)}`"


def _slices(sharing: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what else our config says about time slices. In NVIDIA's no share has an amount, so nothing is
    enforced."""
    interval = _object(sharing.get("timeSlicingConfig")).get("interval")
    said = (f"interval: {interval}",) if interval in _INTERVALS else ()
    return (*said, f"enforcement: {Enforcement.BEST_EFFORT.value}")


def _amounts(sharing: Mapping[str, Any]) -> str:
    """Return `capacity` of the request, with MPS's values if they can be read, else with values to choose from."""
    mps = _object(sharing.get("mpsConfig"))
    memory, percentage = mps.get("defaultPinnedDeviceMemoryLimit"), mps.get("defaultActiveThreadPercentage")
    amounts = [f"memory: {memory if _is_quantity(memory) else '10Gi'}"]
    if type(percentage) is int and 0 < percentage <= _MOST_PERCENT:
        amounts.append(f'cores: "{percentage}"')
    return f"capacity: {{requests: {{{', '.join(amounts)}}}}}"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_quantity(value: Any) -> bool:
    try:
        return isinstance(value, str) and parse_quantity(value).nano > 0
    except ValueError:
        return False
