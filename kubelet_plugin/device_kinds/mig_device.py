"""MIG devices that an admin made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, gpu_device_name
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import encode_mig_devices
from dracaena.kubelet_plugin.device_kinds.device_kind import (
    NO_EDITS,
    CannotEnforce,
    ContainerEdits,
    GpuRoles,
    refused_strategy,
)
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    PreparedDevice,
    PublishedPool,
    why_not_in_pool,
    why_the_vgpu_managers,
)


class ExistingMigDevice:
    """A MIG device that exists before any claim has it, and stays after the last. Preparing it changes nothing."""

    def publish(self, machine: Machine, _roles: GpuRoles) -> tuple[Device, ...]:
        """Return one device for each MIG device, in the machine's order."""
        return encode_mig_devices(machine)

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: it does not exist, the vGPU manager has its GPU, or the numbers of its
        nodes are not known.
        """
        mig = pool.mig_devices.get(name)
        parent = None if mig is None else pool.gpus.get(gpu_device_name(mig.parent_uuid))
        if mig is None or parent is None:
            return why_not_in_pool(name, pool)
        of_vgpu_manager = why_the_vgpu_managers(parent, pool)
        if of_vgpu_manager is not None:
            return of_vgpu_manager
        if mig.access_minors is None:
            return f"it is not known which nodes of /dev/nvidia-caps open MIG device {mig.uuid}"
        if parent.minor is None:
            return f"the minor number of GPU {parent.uuid} is not known, so its device node cannot be named"
        return None

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """Whether only the minor of its parent or the numbers of its own nodes are not known."""
        mig = pool.mig_devices.get(name)
        parent = None if mig is None else pool.gpus.get(gpu_device_name(mig.parent_uuid))
        if mig is None or parent is None or why_the_vgpu_managers(parent, pool) is not None:
            return False
        return parent.minor is None or mig.access_minors is None

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return it with the numbers that the driver gives it and its parent now."""
        mig = pool.mig_devices[device.device]
        parent = pool.gpus[gpu_device_name(mig.parent_uuid)]
        assert parent.minor is not None
        return dataclasses.replace(
            device,
            uuid=GpuUuid(mig.uuid),
            minor=parent.minor,
            access_minors=mig.access_minors or (),
            parent_uuid=GpuUuid(parent.uuid),
            index=parent.index,
            gpu_instance_id=mig.gpu_instance_id,
            pci_bus_id=parent.pci_bus_id,
            start=mig.start,
            size=mig.size,
        )

    def effects(
        self, device: PreparedDevice, _claim: ClaimUid, _pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return none: it exists, and is not divided further."""
        return refused_strategy(sharing, f", which MIG device {device.device} does not offer") or ()

    def edits(self, _device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return none."""
        return NO_EDITS
