"""Whole GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid
from dracaena.api.resource_objects import Device
from dracaena.api.resourceslice import encode_gpus, with_whole_consumption
from dracaena.kubelet_plugin.device_kinds.device_kind import (
    NO_EDITS,
    CannotEnforce,
    ContainerEdits,
    GpuRoles,
    refused_strategy,
)
from dracaena.kubelet_plugin.device_kinds.shared_device import shared_device
from dracaena.kubelet_plugin.prepare.effects import MIG_OFF, Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    PreparedDevice,
    PublishedPool,
    why_not_in_pool,
    why_the_vgpu_managers,
)


class WholeGpu:
    """A GPU that is not divided. Preparing it changes nothing on the node."""

    def publish(self, machine: Machine, roles: GpuRoles) -> tuple[Device, ...]:
        """Return one device per GPU, in ordinal order, even for divided ones: node.pool.preparable_pages drops those.

        A GPU that may be shared also has one device, which is whole by default (shared_device.py). A GPU that is
        divided or handed to virtual machines on demand takes all counters of its set.
        """
        devices = encode_gpus(machine)
        if not roles.shared and not roles.counted:
            return devices
        return tuple(map(partial(_in_its_role, roles), devices, machine.gpus))

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared: it does not exist, the vGPU manager has it, it is divided, or its
        minor is not known.
        """
        gpu = pool.gpus.get(name)
        if gpu is None:
            return why_not_in_pool(name, pool)
        of_vgpu_manager = why_the_vgpu_managers(gpu, pool)
        if of_vgpu_manager is not None:
            return of_vgpu_manager
        if gpu.mig_enabled:
            return f"GPU {gpu.uuid} is divided into MIG devices, so it cannot be used as a whole"
        if gpu.minor is None:
            return f"the minor number of GPU {gpu.uuid} is not known, so its device node cannot be named"
        return None

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """Whether only its minor is not known."""
        gpu = pool.gpus.get(name)
        if gpu is None or gpu.mig_enabled or why_the_vgpu_managers(gpu, pool) is not None:
            return False
        return gpu.minor is None

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return it with the numbers that the driver gives it now."""
        gpu = pool.gpus[device.device]
        assert gpu.minor is not None
        return dataclasses.replace(
            device,
            uuid=GpuUuid(gpu.uuid),
            minor=gpu.minor,
            access_minors=(),
            parent_uuid=None,
            index=gpu.index,
            gpu_instance_id=None,
            pci_bus_id=gpu.pci_bus_id,
            start=None,
            size=None,
        )

    def effects(
        self, device: PreparedDevice, _claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return none: its device nodes are all that a container needs, and no strategy divides it.

        Only a GPU that is divided by MIG on demand has to leave MIG mode first.
        """
        why = (
            f" for {device.device}, which was not shared when the claim got it, so the claim has it alone: ask for a "
            "shared GPU (class share.<driver name>, and `capacity` in the request)"
        )
        return refused_strategy(sharing, why) or mig_off(device, pool)

    def edits(self, _device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        """Return none."""
        return NO_EDITS


def mig_off(device: PreparedDevice, pool: PublishedPool) -> tuple[Effect, ...]:
    """Return the effect that takes a GPU out of MIG mode, if the plugin changes its MIG mode."""
    if device.device not in pool.switched:
        return ()
    return (Effect(MIG_OFF, device.device, device.device, device.share_id, {"gpu": device.uuid}),)


def _in_its_role(roles: GpuRoles, device: Device, gpu: Gpu) -> Device:
    if gpu.uuid in roles.counted:
        device = with_whole_consumption(device, gpu, divided=gpu.uuid in roles.divided)
    if gpu.uuid not in roles.shared or gpu.memory_bytes is None:
        return device
    return shared_device(device, gpu.memory_bytes)
