"""MIG devices that are created when a claim gets them, at the place that the claim was allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, gpu_device_name
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import encode_mig_places
from dracaena.kubelet_plugin.device_kinds.device_kind import (
    NO_EDITS,
    CannotEnforce,
    ContainerEdits,
    GpuRoles,
    NodeDeviceKind,
    refused_strategy,
)
from dracaena.kubelet_plugin.device_kinds.mig_device import ExistingMigDevice
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice, MadeInstance
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    PreparedClaim,
    PreparedDevice,
    PublishedPool,
    why_not_in_pool,
    why_the_vgpu_managers,
)


class MigPlaceDevice:
    """A place where a MIG device can be created. What is there now does not count, only what a claim's effect made."""

    def publish(self, machine: Machine, roles: GpuRoles) -> tuple[Device, ...]:
        """Return one device for each place of the GPUs that are divided on demand, by the ordinals of these GPUs."""
        divided = [gpu for gpu in machine.gpus if gpu.uuid in roles.divided]
        return tuple(device for gpu in divided for device in encode_mig_places(machine, gpu))

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: there is no such place, the minor of the GPU is not known, or the vGPU
        manager has it.
        """
        place = pool.mig_places.get(name)
        parent = None if place is None else pool.gpus.get(gpu_device_name(place.parent_uuid))
        if parent is None:
            return why_not_in_pool(name, pool)
        if parent.minor is None:
            return f"the minor number of GPU {parent.uuid} is not known, so its device node cannot be named"
        return why_the_vgpu_managers(parent, pool)

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """Whether only the minor of its GPU is not known."""
        place = pool.mig_places.get(name)
        parent = None if place is None else pool.gpus.get(gpu_device_name(place.parent_uuid))
        return parent is not None and parent.minor is None

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return it with the numbers of its GPU. Its own come from what was noted when it was made (with_made): a
        reading may be older.
        """
        place = pool.mig_places[device.device]
        parent = pool.gpus[gpu_device_name(place.parent_uuid)]
        assert parent.minor is not None
        return dataclasses.replace(
            device,
            minor=parent.minor,
            parent_uuid=GpuUuid(parent.uuid),
            index=parent.index,
            pci_bus_id=parent.pci_bus_id,
            start=place.placement.start,
            size=place.placement.size,
        )

    def effects(
        self, device: PreparedDevice, _claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return the instance. It is not divided further."""
        refused = refused_strategy(sharing, f", which MIG device {device.device} does not offer")
        if refused is not None:
            return refused
        place = pool.mig_places[device.device]
        parameters: dict[str, Scalar] = {
            "gpu": place.parent_uuid,
            "profile": place.profile.name,
            "start": place.placement.start,
            "size": place.placement.size,
        }
        return (Effect(MIG_INSTANCE, device.physical_gpu, device.device, device.share_id, parameters),)

    def edits(self, _device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return none: its device nodes are all that a container needs."""
        return NO_EDITS


class MigDeviceKind:
    """Any MIG device: one that exists anyway, or one that is created. Their names look alike; the pool tells which."""

    def __init__(self) -> None:
        self._existing = ExistingMigDevice()
        self._place = MigPlaceDevice()

    def publish(self, machine: Machine, roles: GpuRoles) -> tuple[Device, ...]:
        """Return the existing devices, then the places."""
        return (*self._existing.publish(machine, roles), *self._place.publish(machine, roles))

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """See NodeDeviceKind."""
        return self._of(name, pool).obstacle(name, pool)

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """See NodeDeviceKind."""
        return self._of(name, pool).facts_are_missing(name, pool)

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """See NodeDeviceKind."""
        return self._of(device.device, pool).as_read(device, pool)

    def effects(
        self, device: PreparedDevice, claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """See NodeDeviceKind."""
        return self._of(device.device, pool).effects(device, claim, pool, sharing)

    def edits(self, _device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return none."""
        return NO_EDITS

    def _of(self, name: DeviceName, pool: PublishedPool) -> NodeDeviceKind:
        return self._place if name in pool.mig_places else self._existing


def with_made(prepared: PreparedClaim, noted: Callable[[Effect], object | None]) -> PreparedClaim:
    """Return a claim whose MIG devices are those that were made for it, as `noted` for its effects."""
    made = {
        effect.device: found
        for effect in prepared.wants
        if effect.kind == MIG_INSTANCE and isinstance(found := noted(effect), MadeInstance)
    }
    devices = tuple(_as_made(device, made.get(device.device)) for device in prepared.devices)
    return dataclasses.replace(prepared, devices=devices)


def _as_made(device: PreparedDevice, made: MadeInstance | None) -> PreparedDevice:
    if made is None or made.uuid is None or made.nodes is None:
        return device
    return dataclasses.replace(device, uuid=GpuUuid(made.uuid), gpu_instance_id=made.number, access_minors=made.nodes)


def as_before(device: PreparedDevice, former: Iterable[PreparedDevice]) -> PreparedDevice:
    """Return a MIG device that is there again, with its number from before; unchanged if it has one, or had none."""
    known = next((each for each in former if (each.device, each.uuid) == (device.device, device.uuid)), device)
    number = known.gpu_instance_id if device.gpu_instance_id is None else device.gpu_instance_id
    return dataclasses.replace(device, gpu_instance_id=number)


def made_devices(
    checkpoints: Iterable[Checkpoint], leaving_out: Collection[DeviceName]
) -> Mapping[DeviceName, MadeDevice]:
    """Return the MIG devices that were made for claims, by place."""
    return {
        device.device: MadeDevice(
            device.parent_uuid or "", device.uuid, known_gone=_is_set_aside(each) and device.index is None
        )
        for each in checkpoints
        for device in each.prepared.devices
        if device.access_minors and device.device not in leaving_out and _is_made(device, each.prepared.wants)
    }


def _is_made(device: PreparedDevice, effects: Iterable[Effect]) -> bool:
    return any((effect.kind, effect.device) == (MIG_INSTANCE, device.device) for effect in effects)


def _is_set_aside(checkpoint: Checkpoint) -> bool:
    """Whether a claim is set aside for devices that it lacks (moved_devices)."""
    return checkpoint.aside is not None and not checkpoint.provisional
