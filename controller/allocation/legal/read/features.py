"""Which of the features behind gates a cluster has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Features:
    """The default is Kubernetes 1.36 with its own defaults, but for ranges of capacity.

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
    fractional_capacity_range: bool = True
    """Of Kubernetes 1.37. On also before that: what a driver means by a step of 100m does not depend on the server."""

    @property
    def distinct_attribute(self) -> bool:
        """Whether distinctAttribute is honoured: Kubernetes does with any feature that its oldest allocator lacks."""
        return self.consumable_capacity or self.binding_conditions or self.list_attributes
