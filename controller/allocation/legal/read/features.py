"""Which of the features behind gates a cluster has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

_FIELDS: Final = {
    "DRAAdminAccess": "admin_access",
    "DRAPrioritizedList": "prioritized_list",
    "DRAPartitionableDevices": "partitionable_devices",
    "DRADeviceTaints": "device_taints",
    "DRADeviceBindingConditions": "binding_conditions",
    "DRAConsumableCapacity": "consumable_capacity",
    "DRAListTypeAttributes": "list_attributes",
}


@dataclass(frozen=True, slots=True)
class Features:
    """The default is Kubernetes 1.36 with its own defaults.

    A field behind a gate that is off is dropped by the API server, so the switches matter only for objects that were
    written while the gate was on.
    """

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    """Needs DRAResourceClaimDeviceStatus too."""
    consumable_capacity: bool = True
    list_attributes: bool = False

    @classmethod
    def of_gates(cls, gates: Iterable[str]) -> Features:
        """Return the features of exactly these gates; `A+B` stands for A. Raises ValueError for an unknown one."""
        names = {gate.partition("+")[0] for gate in gates}
        unknown = sorted(names - _FIELDS.keys())
        if unknown:
            raise ValueError(f"feature gate {unknown[0]!r} is not known; known are {', '.join(sorted(_FIELDS))}")
        switched_on = {_FIELDS[name] for name in names}
        return cls(**{field.name: field.name in switched_on for field in fields(cls)})

    @property
    def distinct_attribute(self) -> bool:
        """Whether distinctAttribute is honoured: Kubernetes does with any feature that its oldest allocator lacks."""
        return self.consumable_capacity or self.binding_conditions or self.list_attributes
