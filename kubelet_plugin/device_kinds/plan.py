"""A claim's allocation and this node's GPUs → what to prepare, or why it cannot be prepared."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dracaena.api.attributes import CORES_CAPACITY, MEMORY_CAPACITY, SHARED_GPU_CAPACITIES
from dracaena.api.confidential import CC_ENABLED_MODES
from dracaena.api.config.v1alpha1 import (
    NO_SHARING,
    GpuConfig,
    Iommu,
    VfioConfig,
    decode_config,
    merged_iommu,
    merged_sharing,
)
from dracaena.api.errors import BadInputError
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, PodUid, PoolName
from dracaena.api.passthrough import DEVICE_PREFIX, pci_bus_id_in
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import (
    AllocationConfig,
    AllocationResult,
    DeviceResult,
    ResourceClaim,
)
from dracaena.api.vgpu import VGPU_PREFIX, vgpu_identity_in
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce, KindOf
from dracaena.kubelet_plugin.device_kinds.holders import overdrawn
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import for_pods, is_memory_limit
from dracaena.kubelet_plugin.device_kinds.partition_effects import partition_effects
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    NO_MINOR,
    ClaimReference,
    PreparedClaim,
    PreparedDevice,
    PublishedPool,
)

_FROM_CLASS = "FromClass"

_SHARE_ID = re.compile("[A-Za-z0-9-]{1,63}")
"""The API demands a UUID; it becomes part of names that container runtimes accept."""

_Config = tuple[AllocationConfig, GpuConfig | VfioConfig]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The claim cannot be prepared here as it is. Reasons are sentences for the pod's Events, in a fixed order."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


def plan_claim(claim: ResourceClaim, pool: PublishedPool, kind_of: KindOf = kind_of) -> PreparedClaim | Refusal:
    """Decide what to prepare for a claim as read from the API, and what to change on the node first; never guesses.

    A refusal collects all reasons, so that the claim's owner sees them at once.
    """
    reference = ClaimReference(claim.metadata.namespace, claim.metadata.name, ClaimUid(claim.metadata.uid))
    allocation = claim.status.allocation
    if allocation is None:
        return Refusal((f"claim {reference} is not allocated: kubelet asked too early, or the allocation was cleared",))
    results = [result for result in allocation.devices.results if result.driver == pool.driver]
    if not results:
        return Refusal((f"the allocation of claim {reference} holds no device of driver {pool.driver}",))
    configs, reasons = read_configs(allocation, pool.driver)
    devices: list[PreparedDevice] = []
    for result in results:
        device = _prepared_device(result, pool, kind_of)
        if isinstance(device, str):
            reasons.append(device)
        else:
            devices.append(device)
    if reasons:
        return Refusal(tuple(reasons))
    devices = [_opened_as_configured(d, configs) if d.is_passthrough else d for d in devices]
    effects: list[Effect] = []
    for device in (d for d in devices if not d.admin_access):  # admin access changes nothing
        own = [config for config in configs_for(device.request, configs) if isinstance(config, GpuConfig)]
        sharing = merged_sharing(own) if own else NO_SHARING
        made = kind_of(device.device, device.share_id).effects(device, reference.uid, pool, sharing)
        if isinstance(made, CannotEnforce):
            reasons.append(f"request {device.request}: {made.reason}")
        else:
            effects += made
    if pool.fabric is not None:
        partitions = partition_effects([d for d in devices if not d.admin_access], pool)
        if isinstance(partitions, CannotEnforce):
            reasons.append(partitions.reason)
        else:
            effects += partitions  # last: what is bound to VFIO leaves its partition before it is bound back
    consumers = _consumers(claim)
    limits = [effect for effect in effects if is_memory_limit(effect)]
    if limits:
        effects = [*for_pods(effects, consumers)]
        if any(limit.parameters["required"] for limit in limits) and not any(map(is_memory_limit, effects)):
            reasons.append(f"claim {reference} is reserved for no pod (status.reservedFor) whose memory can be limited")
    plan = PreparedClaim(reference, tuple(devices), consumers, wants=tuple(effects))
    reasons += [f"the allocation of claim {reference} has a wrong count: {each}" for each in overdrawn(plan, (), pool)]
    return Refusal(tuple(reasons)) if reasons else plan


def _opened_as_configured(device: PreparedDevice, configs: Sequence[_Config]) -> PreparedDevice:
    """Return a GPU for a virtual machine with how its launcher opens it."""
    iommu = merged_iommu(c for c in configs_for(device.request, configs) if isinstance(c, VfioConfig))
    return dataclasses.replace(device, iommufd=iommu is Iommu.IOMMUFD)


def _consumers(claim: ResourceClaim) -> tuple[PodUid, ...]:
    return tuple(sorted(PodUid(c.uid) for c in claim.status.reserved_for if c.resource == "pods"))


@dataclass(frozen=True, slots=True)
class GatedDevice:
    """A device whose state must be checked before a claim gets it (device_kinds.confidential)."""

    request: str
    device: DeviceName
    is_required: bool
    """Whether a GpuConfig says that it must compute confidentially."""

    @property
    def is_passthrough(self) -> bool:
        """Whether it is a GPU for virtual machines or a vGPU, whose state only the guest's driver knows."""
        return self.device.startswith((DEVICE_PREFIX, VGPU_PREFIX))


def gated_devices(claim: ResourceClaim, pool: PublishedPool) -> tuple[GatedDevice, ...]:
    """Return the devices to check, in the order of the allocation: those that must compute confidentially, and, while
    the GPUs of this node do, all that its driver has. Admin access is always allowed: attesting the GPUs needs it.
    plan_claim() reports what is wrong with a claim.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return ()
    configs, _ = read_configs(allocation, pool.driver)
    is_enabled = any(gpu.cc_mode in CC_ENABLED_MODES for gpu in pool.gpus.values())
    requiring = [each for each in configs if isinstance(each[1], GpuConfig) and each[1].confidential is not None]
    found = (
        GatedDevice(result.request, DeviceName(result.device), bool(configs_for(result.request, requiring)))
        for result in allocation.devices.results
        if (requiring or is_enabled) and result.driver == pool.driver and not result.admin_access
    )
    return tuple(each for each in found if each.is_required or (is_enabled and not each.is_passthrough))


def allocated_claim(
    claim: ResourceClaim, pool: PublishedPool, earlier: Sequence[PreparedDevice]
) -> PreparedClaim | None:
    """Return what a claim holds on this node by its allocation, even if it could not be prepared; None: nothing.

    A device that the node lacks is taken from `earlier`, or filled in from its name.
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
                device,
                uuid=known.uuid or device.uuid,
                minor=known.minor,
                access_minors=known.access_minors,
                pci_bus_id=known.pci_bus_id or device.pci_bus_id,
                iommu_group=known.iommu_group,
                vgpu_type_id=known.vgpu_type_id,
            )
        devices.append(device)
    if not devices:
        return None
    reference = ClaimReference(claim.metadata.namespace, claim.metadata.name, ClaimUid(claim.metadata.uid))
    return PreparedClaim(reference, tuple(devices), _consumers(claim))


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
    if problem is None and device.admin_access:
        problem = _why_not_seen(device, pool)
    elif problem is None and device.share_id is not None:
        problem = _why_not_counted(device.share_id, result)
    if problem is not None:
        return f"request {result.request}: {problem}"
    return kind.as_read(device, pool)


def _unseen_device(result: DeviceResult) -> PreparedDevice:
    """Return what a result alone shows about its device."""
    name = DeviceName(result.device)
    if name.startswith("gpu-"):
        uuid, pci_bus_id = f"GPU-{name.removeprefix('gpu-')}", None
    else:
        pci_bus_id = pci_bus_id_in(name)
        uuid = pci_bus_id or vgpu_identity_in(name) or ""  # a MIG UUID is in no name
    return PreparedDevice(
        request=result.request,
        pool=PoolName(result.pool),
        device=name,
        uuid=GpuUuid(uuid),
        minor=NO_MINOR,
        pci_bus_id=pci_bus_id,
        admin_access=bool(result.admin_access),
        share_id=result.share_id,
        memory_bytes=None if result.share_id is None else _consumed(result, MEMORY_CAPACITY),
        cores=0 if result.share_id is None else _consumed(result, CORES_CAPACITY) or 0,
    )


def _consumed(result: DeviceResult, capacity: str) -> int | None:
    """Return what a share consumes of a capacity by the allocation, rounded up to integers; None if that is missing."""
    # Our capacities have no domain in the slice, and so none in the result; with our domain they mean the same.
    names = (capacity, f"{result.driver}/{capacity}")
    text = next((result.consumed_capacity[name] for name in names if name in result.consumed_capacity), None)
    try:
        return None if text is None else parse_quantity(text).whole()
    except ValueError:
        return None


def _why_not_seen(device: PreparedDevice, pool: PublishedPool) -> str | None:
    """Return why admin access to a device is not possible, None if it is.

    A place does not identify the MIG device there, if any: only the claim that it was made for has its UUID and nodes.
    """
    if device.is_passthrough:
        return f"{device.device} is for one virtual machine at a time: whoever can inspect it could also use it"
    if device.device not in pool.mig_places:
        return None
    return (
        f"MIG device {device.device} is made for the claim that gets it, so admin access to it shows nothing; admin "
        "access to its whole GPU can be asked for"
    )


def _why_not_counted(share_id: str, result: DeviceResult) -> str | None:
    """Return why a share cannot be distinguished from others or counted with them, None if it can."""
    if _SHARE_ID.fullmatch(share_id) is None:
        return f"shareID {share_id[:80]!r} of device {result.device} is invalid: expected a UUID"
    amounts = [_consumed(result, capacity) for capacity in SHARED_GPU_CAPACITIES]
    if None not in amounts and all(amount is not None and amount >= 0 for amount in amounts):
        return None
    return (
        f"the allocation does not say what share {share_id} consumes of device {result.device}: "
        f"consumedCapacity is {dict(result.consumed_capacity)}, expected amounts of "
        f"{' and '.join(SHARED_GPU_CAPACITIES)}"
    )


def read_configs(allocation: AllocationResult, driver: str) -> tuple[list[_Config], list[str]]:
    """Return the GpuConfigs and VfioConfigs for our driver, those of classes first, and what is wrong with any opaque
    config for it.

    Configs of other drivers are not ours to judge.
    """
    found: list[_Config] = []
    reasons = []
    for position, config in enumerate(allocation.devices.config):
        if config.opaque is None or config.opaque.driver != driver:
            continue
        try:
            read = decode_config(config.opaque.parameters)
        except BadInputError as error:
            reasons.append(f"{_config_place(config, position)}: {error}")
            continue
        if isinstance(read, GpuConfig | VfioConfig):
            found.append((config, read))
    return sorted(found, key=lambda each: each[0].source != _FROM_CLASS), reasons


def configs_for(request: str, configs: Sequence[_Config]) -> list[GpuConfig | VfioConfig]:
    """Return the configs that apply to a request of a result, in their order. One for a request also applies to its
    sub-requests.
    """
    names = {request, request.partition("/")[0]}
    return [read for config, read in configs if not config.requests or names.intersection(config.requests)]


def _config_place(config: AllocationConfig, position: int) -> str:
    """Return where a config entry comes from, in words that lead its owner there."""
    origin = {_FROM_CLASS: "its DeviceClass", "FromClaim": "the claim"}.get(config.source, config.source)
    return f"opaque config {position} of the allocation (from {origin})"
