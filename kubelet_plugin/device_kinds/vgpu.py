"""Existing vGPUs: parts of GPUs that the vGPU manager has created for virtual machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import encode_vgpus
from dracaena.api.vgpu import is_mdev_uuid, vgpu_identity_in
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce, ContainerEdits, GpuRoles, refused_strategy
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import NO_MINOR, PreparedDevice, PublishedPool, why_not_in_pool


class ExistingVgpu:
    """A vGPU that exists before any claim has it, and stays after the last. Preparing it changes nothing."""

    def publish(self, machine: Machine, _roles: GpuRoles) -> tuple[Device, ...]:
        """Return one device for each vGPU, in the machine's order."""
        return encode_vgpus(machine)

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: it no longer exists, or its IOMMU group is refused."""
        if name in pool.vgpus:
            return None
        identity = vgpu_identity_in(name)
        if identity is None:
            return why_not_in_pool(name, pool)
        return (
            f"vGPU {identity} was removed, or is refused: make it again with the same type and "
            f"{'UUID' if is_mdev_uuid(identity) else 'virtual function'}, or delete the pods"
        )

    def facts_are_missing(self, _name: DeviceName, _pool: PublishedPool) -> bool:
        """Whether only a number is not known: never, since a vGPU without one is not in a pool."""
        return False

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return it with its GPU, type and IOMMU group as they are now."""
        vgpu = pool.vgpus[device.device]
        return dataclasses.replace(
            device,
            uuid=GpuUuid(vgpu.identity),
            minor=NO_MINOR,
            access_minors=(),
            parent_uuid=None,
            index=None,
            gpu_instance_id=None,
            pci_bus_id=vgpu.parent,
            start=None,
            size=None,
            iommu_group=vgpu.iommu_group,
            resource=vgpu.resource,
            vgpu_type_id=vgpu.type_id,
        )

    def effects(
        self, device: PreparedDevice, _claim: ClaimUid, _pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return none: it exists already, and a virtual machine has all of it."""
        return refused_strategy(sharing, f", and {device.device} goes to one virtual machine as a whole") or ()

    def edits(self, device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return the variable in which KubeVirt's launcher looks for the UUIDs or PCI addresses of a resource. The
        launcher replaces `/` and `.` in the resource's name by `_`, and keeps dashes.
        """
        prefix = "MDEV_PCI_RESOURCE" if is_mdev_uuid(device.uuid) else "PCI_RESOURCE"
        name = device.resource.upper().replace("/", "_").replace(".", "_")
        return ContainerEdits(lists=((f"{prefix}_{name}", device.uuid),))
