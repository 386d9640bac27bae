"""The interface of a kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.resource_objects import Device
from dracaena.kubelet_plugin.prepare.cdi.spec import Mount
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What the containers of one device get besides its device nodes."""

    environment: tuple[str, ...] = ()
    """`NAME=value`."""
    mounts: tuple[Mount, ...] = ()
    lists: tuple[tuple[str, str], ...] = ()
    """Variables whose values are lists: each name with what this device adds to the list of its request. Plain
    variables would give a container with two devices only the value of the last one."""


NO_EDITS = ContainerEdits()


@dataclass(frozen=True, slots=True)
class CannotEnforce:
    """Why a node cannot do what a claim requires of it, as a sentence for the pod's Events."""

    reason: str


def refused_strategy(sharing: GpuSharing, why: str) -> CannotEnforce | None:
    """Return that a device cannot be divided by the strategy that its claim requires, None if it requires none.
    `why` continues the sentence after the strategy's name."""
    if sharing.strategy is None or not sharing.is_required:
        return None
    return CannotEnforce(
        f"GpuConfig requires sharing strategy {sharing.strategy.value}{why}; with `enforcement: BestEffort` it is "
        "prepared without"
    )


@dataclass(frozen=True, slots=True)
class GpuRoles:
    """What the settings of the node make of its GPUs."""

    shared: frozenset[str] = frozenset()
    """UUIDs of GPUs that several claims may have at once; the memory of each is known."""
    divided: frozenset[str] = frozenset()
    """UUIDs of GPUs that are divided when claims ask for MIG devices; the possible divisions of each are known."""
    handed: frozenset[str] = frozenset()
    """UUIDs of GPUs that are bound to a VFIO driver when claims ask for it."""

    @property
    def counted(self) -> frozenset[str]:
        """UUIDs of GPUs that are published as several devices, which draw on one counter set."""
        return self.divided | self.handed


NO_ROLES = GpuRoles()


class NodeDeviceKind(Protocol):
    """Values in, values out. A ThingKind (changes.change) makes and undoes effects, by the kind of the effect."""

    def publish(self, machine: Machine, roles: GpuRoles) -> tuple[Device, ...]:
        """Return the devices of this kind that a machine has, without taints, in a fixed order."""
        ...

    def obstacle(self, name: DeviceName, pool: PublishedPool) -> str | None:
        """Return why no claim could be prepared for a device of this node, None if one can."""
        ...

    def facts_are_missing(self, name: DeviceName, pool: PublishedPool) -> bool:
        """Whether the device exists and only lacks a number that containers need to get it."""
        ...

    def as_read(self, device: PreparedDevice, pool: PublishedPool) -> PreparedDevice:
        """Return a device with all that the last reading says of it. There must be no obstacle."""
        ...

    def effects(
        self, device: PreparedDevice, claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...] | CannotEnforce:
        """Return what must be made before containers may have the device, in this order; it is undone in reverse order.

        `claim` is whose device it is, `sharing` what its configs say.
        Where that is required and this node cannot do it: why.
        """
        ...

    def edits(self, device: PreparedDevice, effects: Sequence[Effect]) -> ContainerEdits:
        """Return what its containers get, given its effects with their outcomes."""
        ...


KindOf = Callable[[DeviceName, str | None], NodeDeviceKind]
"""Returns the kind of a device of an allocation, by its name and shareID."""
