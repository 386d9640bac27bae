"""Trims claims to what is kept in memory, and makes stand-ins for claims that cannot be read.

A claim may have 32 configs of 10 KiB for other drivers. None of them is kept: an allocation repeats them, but its
writer takes them from the claim as the server returned it just before. A claim may also have 8,192 selectors of four
letters: long lists of requests, constraints and finalizers are kept as text (api.packed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from dracaena.api.decision import FROM_CLASS, decision_parameters
from dracaena.api.json_text import set_apart
from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION, decision_driver
from dracaena.api.objects import ObjectMeta, Wire
from dracaena.api.opaque import left_out
from dracaena.api.packed import packed, unpacked
from dracaena.api.resource_objects import (
    AllocatedDevices,
    AllocationConfig,
    AllocationResult,
    ConsumerReference,
    DeviceClass,
    DeviceResult,
    OpaqueConfig,
    ResourceClaim,
    ResourceClaimStatus,
)
from dracaena.api.sharing import said_of_mode

_NO_TEXTS: Final[dict[str, str]] = {}
_NO_REQUESTS: Final[list[str]] = []
"""Shared by all claims: tens of thousands of empty ones would take megabytes."""


def kept_claim(driver: str) -> Callable[[ResourceClaim], ResourceClaim]:
    """Return a function that trims a claim. It drops parameters for other drivers, the configs of an allocation (of
    which only the decision and the modes of its shares are read again), the status of devices, and all labels,
    annotations and owners that this program does not read. Long lists in the spec are packed.
    """

    def keep(claim: ResourceClaim) -> ResourceClaim:
        replace = msgspec.structs.replace
        meta = replace(
            claim.metadata,
            labels=_NO_TEXTS,
            annotations=_kept_annotations(claim.metadata.annotations),
            finalizers=packed(list(dict.fromkeys(unpacked(claim.metadata.finalizers)))),
            owner_references=[owner for owner in claim.metadata.owner_references if owner.controller],
        )
        status = claim.status
        allocation = status.allocation
        if allocation is not None and allocation.devices.config:
            allocation = replace(allocation, devices=_kept_devices(claim, allocation.devices, driver))
        status = replace(status, allocation=allocation, devices=[])
        return replace(claim, metadata=meta, spec=_kept_spec(claim.spec, driver), status=status)

    return keep


def _kept_annotations(annotations: dict[str, str]) -> dict[str, str]:
    text = annotations.get(EXTENDED_RESOURCE_ANNOTATION)
    return _NO_TEXTS if text is None else {EXTENDED_RESOURCE_ANNOTATION: text}


def _kept_devices(claim: ResourceClaim, devices: AllocatedDevices, driver: str) -> AllocatedDevices:
    """Return the devices of an allocation, and of its configs only the decision and how its shares want their GPUs to
    be shared."""
    decision = decision_parameters(claim, driver)
    kept = []
    if decision is not None:
        kept.append(AllocationConfig(FROM_CLASS, _NO_REQUESTS, OpaqueConfig(decision_driver(driver), decision)))
    if not any(result.driver == driver and result.share_id is not None for result in devices.results):
        return msgspec.structs.replace(devices, config=kept)
    for config in devices.config:
        ours = config.opaque is not None and config.opaque.driver == driver
        said = said_of_mode(config.opaque.parameters) if ours and config.opaque is not None else None
        if said is not None:
            kept.append(AllocationConfig(config.source, config.requests, OpaqueConfig(driver, said)))
    return msgspec.structs.replace(devices, config=kept)


def _kept_spec(spec: dict[str, Any], driver: str) -> dict[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, dict):
        return spec
    kept = {name: packed(devices[name]) for name in ("requests", "constraints") if name in devices}
    if isinstance(configs := devices.get("config"), list):
        kept["config"] = [_kept_config(config, index, driver) for index, config in enumerate(configs)]
    return {**spec, "devices": {**devices, **kept}}


def _kept_config(config: Any, index: int, driver: str) -> Any:
    opaque = config.get("opaque") if isinstance(config, dict) else None
    if not isinstance(opaque, dict) or opaque.get("driver") == driver or "parameters" not in opaque:
        return config
    return {**config, "opaque": {**opaque, "parameters": left_out(index)}}


class _HeldDevices(Wire, frozen=True):
    results: tuple[DeviceResult, ...] = ()


class _HeldAllocation(Wire, frozen=True):
    devices: _HeldDevices = _HeldDevices()
    node_selector: dict[str, Any] | None = None
    allocation_timestamp: str | None = None


class _HoldingStatus(Wire, frozen=True):
    allocation: _HeldAllocation | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()


class _Holding(Wire, frozen=True):
    """The part of a claim that says which devices it holds and for whom. What cannot be read may be in the rest."""

    status: _HoldingStatus = _HoldingStatus()


_HOLDING: Final = msgspec.json.Decoder(_Holding)
_APART: Final = ("managedFields", "spec", "config", "data", "conditions", "networkData", "labels", "annotations")


def claim_stand_in(metadata: ObjectMeta, text: bytes, reason: str) -> ResourceClaim:
    """Return a stand-in for a claim that cannot be read: it holds its devices, and must not be allocated.

    Raises when not even status.allocation can be read. We then do not know which devices the claim holds, and a guess
    could give a device to two claims.
    """
    held = _HOLDING.decode(set_apart(text, _APART)[0]).status
    allocation = None
    if held.allocation is not None:
        allocation = AllocationResult(
            devices=AllocatedDevices(results=list(held.allocation.devices.results)),
            node_selector=held.allocation.node_selector,
            allocation_timestamp=held.allocation.allocation_timestamp,
        )
    status = ResourceClaimStatus(allocation=allocation, reserved_for=list(held.reserved_for))
    return ResourceClaim(metadata=metadata, status=status, problem=reason)


def class_stand_in(metadata: ObjectMeta, text: bytes, reason: str) -> DeviceClass:
    """Return a stand-in for a class that cannot be read: claims that name it are not served."""
    return DeviceClass(metadata=metadata, problem=reason)
