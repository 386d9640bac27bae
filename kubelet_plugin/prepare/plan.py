"""A claim's allocation and this node's GPUs → what to prepare, or why that cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, PodUid, PoolName
from dracaena.api.resource_objects import (
    AllocationConfig,
    AllocationResult,
    DeviceResult,
    ResourceClaim,
)
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    NO_MINOR,
    ClaimReference,
    PreparedClaim,
    PreparedDevice,
    PublishedPool,
)

DecodeConfig = Callable[[msgspec.Raw], object]
"""Reads the opaque parameters of one config entry; raises BadInputError naming what is wrong."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The claim cannot be prepared here as it is. Reasons are sentences for the pod's Events, in a fixed order."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


def plan_claim(
    claim: ResourceClaim, pool: PublishedPool, decode_config: DecodeConfig, kind_of: KindOf = kind_of
) -> PreparedClaim | Refusal:
    """Decide what to prepare for a claim as read from the API, and what to change on the node for it first; nothing is
    guessed.

    All reasons of a refusal are collected, so that its owner sees them at once.
    """
    reference = ClaimReference(claim.metadata.namespace, claim.metadata.name, ClaimUid(claim.metadata.uid))
    allocation = claim.status.allocation
    if allocation is None:
        return Refusal((f"claim {reference} is not allocated: kubelet asked too early, or the allocation was cleared",))
    results = [result for result in allocation.devices.results if result.driver == pool.driver]
    if not results:
        return Refusal((f"the allocation of claim {reference} holds no device of driver {pool.driver}",))
    reasons = _config_reasons(allocation, pool.driver, decode_config)
    devices: list[PreparedDevice] = []
    for result in results:
        device = _prepared_device(result, pool, kind_of)
        if isinstance(device, str):
            reasons.append(device)
        else:
            devices.append(device)
    if reasons:
        return Refusal(tuple(reasons))
    effects = [effect for d in devices for effect in kind_of(d.device, d.share_id).effects(d)]
    return PreparedClaim(reference, tuple(devices), _consumers(claim), effects=tuple(effects))


def _consumers(claim: ResourceClaim) -> tuple[PodUid, ...]:
    return tuple(sorted(PodUid(c.uid) for c in claim.status.reserved_for if c.resource == "pods"))


def allocated_claim(
    claim: ResourceClaim, pool: PublishedPool, earlier: Sequence[PreparedDevice]
) -> PreparedClaim | None:
    """Return what a claim holds on this node by its allocation, whether or not it could be prepared; None: nothing.

    A device that the node lacks is as it was in `earlier`, or as far as its name tells.
    """
    allocation = claim.status.allocation
    results = [] if allocation is None else [r for r in allocation.devices.results if r.driver == pool.driver]
    devices: list[PreparedDevice] = []
    for result in results:
        known = next((d for d in earlier if d.device == result.device), None)
        device = _unseen_device(result)
        kind = kind_of(device.device, device.share_id)
        if result.pool == pool.name and kind.obstacle(device.device, pool) is None:
            device = kind.as_read(device, pool)
        elif known is not None:
            device = dataclasses.replace(
                device, uuid=known.uuid or device.uuid, minor=known.minor, access_minors=known.access_minors
            )
        devices.append(device)
    if not devices:
        return None
    reference = ClaimReference(claim.metadata.namespace, claim.metadata.name, ClaimUid(claim.metadata.uid))
    return PreparedClaim(reference, tuple(devices), _consumers(claim))


def holders(
    wanted: PreparedClaim, prepared: Iterable[PreparedClaim]
) -> tuple[tuple[PreparedDevice, PreparedDevice, PreparedClaim], ...]:
    """Return each wanted device that another claim holds, with the device of that claim and the claim.

    A MIG device is held by whoever holds its whole GPU, and a whole GPU by whoever holds a part of it. A share is held
    by whoever holds the device as a whole, and the other way round; shares of one device do not hold each other.
    Devices for admin access hold nothing and are held by nobody.
    """
    gpus = {device.physical_gpu for device in wanted.devices if not device.admin_access}
    held: dict[DeviceName, list[tuple[PreparedDevice, PreparedClaim]]] = {}
    mine_uid = wanted.claim.uid
    for other in prepared:
        for device in other.devices:
            gpu = device.physical_gpu
            if gpu in gpus and other.claim.uid != mine_uid:
                held.setdefault(gpu, []).append((device, other))
    found = []
    for mine in wanted.devices:
        gpu = mine.physical_gpu
        overlap = next(
            (
                (theirs, claim)
                for theirs, claim in held.get(gpu, ())
                if not mine.goes_with(theirs) and _overlap(mine, theirs, gpu)
            ),
            None,
        )
        if overlap is not None:
            found.append((mine, *overlap))
    return tuple(found)


def _overlap(mine: PreparedDevice, theirs: PreparedDevice, gpu: DeviceName) -> bool:
    """Whether two devices of one GPU have a part of it in common.

    Two MIG devices that exist at a time have none. But theirs may be one that the node lacks now: whoever was given its
    slices holds them.
    """
    if mine.device == theirs.device or gpu in (mine.device, theirs.device):
        return True
    if None in (mine.start, mine.size, theirs.start, theirs.size) or mine.gpu_instance_id == theirs.gpu_instance_id:
        return False
    assert mine.start is not None
    assert mine.size is not None
    assert theirs.start is not None
    assert theirs.size is not None
    return mine.start < theirs.start + theirs.size and theirs.start < mine.start + mine.size


def _prepared_device(result: DeviceResult, pool: PublishedPool, kind_of: KindOf) -> PreparedDevice | str:
    """Return the device of one result, or why it cannot be prepared."""
    if result.pool != pool.name:
        return (
            f"request {result.request}: device {result.device} is of pool {result.pool}, "
            f"but this node serves pool {pool.name}"
        )
    device = _unseen_device(result)
    kind = kind_of(device.device, device.share_id)
    problem = kind.obstacle(device.device, pool)
    if problem is not None:
        return f"request {result.request}: {problem}"
    return kind.as_read(device, pool)


def _unseen_device(result: DeviceResult) -> PreparedDevice:
    """Return what a result alone says about its device."""
    name = DeviceName(result.device)
    whole = name.removeprefix("gpu-")
    return PreparedDevice(
        request=result.request,
        pool=PoolName(result.pool),
        device=name,
        uuid=GpuUuid("" if whole == name else f"GPU-{whole}"),  # a MIG UUID is in no name
        minor=NO_MINOR,
        admin_access=bool(result.admin_access),
        share_id=result.share_id,
    )


def _config_reasons(allocation: AllocationResult, driver: str, decode_config: DecodeConfig) -> list[str]:
    """Return what is wrong with the opaque configs for our driver. Those of other drivers are not ours to judge."""
    reasons = []
    for position, config in enumerate(allocation.devices.config):
        if config.opaque is None or config.opaque.driver != driver:
            continue
        try:
            decode_config(config.opaque.parameters)
        except BadInputError as error:
            reasons.append(f"{_config_place(config, position)}: {error}")
    return reasons


def _config_place(config: AllocationConfig, position: int) -> str:
    """Say where a config entry comes from, in words that lead its owner there."""
    origin = {"FromClass": "its DeviceClass", "FromClaim": "the claim"}.get(config.source, config.source)
    return f"opaque config {position} of the allocation (from {origin})"
