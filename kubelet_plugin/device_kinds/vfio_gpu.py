"""Whole GPUs for virtual machines: bound to a VFIO driver by an admin, or for a claim."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Final

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid
from dracaena.api.passthrough import pci_bus_id_in
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import encode_passthrough, with_whole_consumption
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce, ContainerEdits, GpuRoles, refused_strategy
from dracaena.kubelet_plugin.discovery.vm.passthrough import why_divided_by_mig
from dracaena.kubelet_plugin.prepare.effects import VFIO_BIND, Effect, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import NO_MINOR, PreparedDevice, PublishedPool, why_not_in_pool

_NOT_IN_VARIABLES: Final = re.compile(r"[^A-Z0-9]", re.ASCII)


class VfioGpu:
    """A GPU that a VFIO driver has: permanently, whether or not a claim has it, or only for a claim (VFIO_BIND)."""

    def publish(self, machine: Machine, roles: GpuRoles) -> tuple[Device, ...]:
        """Return one device per GPU, in ordinal order: those that VFIO has, or that the NVIDIA driver has and can give.

        The latter takes all counters of the GPU, as the whole GPU does.
        """
        devices = encode_passthrough(machine)
        if all(gpu.is_bound for gpu in machine.passthrough):
            return devices
        twins = {gpu.pci_bus_id: gpu for gpu in machine.gpus if gpu.uuid in roles.handed}
        found = []
        for device, gpu in zip(devices, machine.passthrough, strict=True):
            twin = twins.get(gpu.pci_bus_id)
            if gpu.is_bound:
                found.append(device)
            elif twin is not None:
                found.append(with_whole_consumption(device, twin, divided=twin.uuid in roles.divided))
        return tuple(found)

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: no VFIO driver has it and all of its IOMMU group; or it would be bound
        on demand, but is in MIG mode by now.
        """
        handed = pool.passthrough.get(name)
        if handed is not None:
            gpus = (gpu for gpu in pool.gpus.values() if gpu.pci_bus_id == handed.pci_bus_id)
            return next(filter(None, map(why_divided_by_mig, gpus)), None)
        address = pci_bus_id_in(name)
        if address is None:
            return why_not_in_pool(name, pool)
        return (
            f"no VFIO driver has the GPU at {address} any more, or its IOMMU group is refused: bind it to vfio-pci "
            "again, or delete the pods"
        )

    def facts_are_missing(self, _name: DeviceName, _pool: PublishedPool) -> bool:
        """Whether only a number is not known: never, since sysfs gives all of them at once."""
        return False

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return it with the IOMMU group that it is in now."""
        gpu = pool.passthrough[device.device]
        return dataclasses.replace(
            device,
            uuid=GpuUuid(gpu.pci_bus_id),
            minor=NO_MINOR,
            access_minors=(),
            parent_uuid=None,
            index=None,
            gpu_instance_id=None,
            pci_bus_id=gpu.pci_bus_id,
            start=None,
            size=None,
            iommu_group=gpu.iommu_group,
            resource=gpu.resource,
        )

    def effects(
        self, device: PreparedDevice, _claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return the binding, none if it is not bound on demand. A virtual machine has the GPU undivided."""
        refused = refused_strategy(sharing, f", and {device.device} goes to one virtual machine as a whole")
        if refused is not None:
            return refused
        if not pool.passthrough[device.device].on_demand:
            return ()
        parameters: dict[str, Scalar] = {"iommufd": True} if device.iommufd else {}
        return (Effect(VFIO_BIND, device.device, device.device, device.share_id, parameters),)

    def edits(self, device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return the variable in which KubeVirt's launcher looks for the PCI addresses of a resource."""
        name = _NOT_IN_VARIABLES.sub("_", device.resource.upper())
        return ContainerEdits(lists=((f"PCI_RESOURCE_{name}", device.pci_bus_id or ""),))
