"""Which gated features a cluster has, and which version's rules it allocates by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

KubernetesVersion = tuple[int, int]
"""Of Kubernetes, as the API server reports it: (1, 36)."""


@dataclass(frozen=True, slots=True)
class Features:
    """The default is Kubernetes 1.36 with its own defaults; of() knows those of other versions.

    The API server drops a field whose gate is off, so the switches matter only for objects that were written while the
    gate was on.
    """

    admin_access: bool = True
    prioritized_list: bool = True
    partitionable_devices: bool = True
    device_taints: bool = True
    binding_conditions: bool = True
    """Needs DRAResourceClaimDeviceStatus too."""
    consumable_capacity: bool = True
    list_attributes: bool = False
    compatibility_groups: bool = True
    """Of 1.37, where DRADeviceCompatibilityGroups is off by default; a stored field is still honoured. Off: pools with
    such devices are left alone, as in kube-scheduler."""

    derived_attributes: bool = True
    """Of 1.37, where DRADerivedAttributes is off by default; stored claims are still served."""

    # Of Kubernetes 1.37, k8s.io/dynamic-resource-allocation 0.37: only the first one is behind a gate.
    fractional_capacity_range: bool = False
    """Steps of a range of capacity are counted in thousandths (DRAFractionalCapacityRange, on by default)."""
    stored_lists: bool = False
    """List attributes that are stored are read with DRAListTypeAttributes off."""
    strict_optionals: bool = False
    """`or` and `orValue` on a value that is no optional fail; in 1.36 they return that value."""
    all_means_used_up: bool = False
    """Mode All also covers shared devices whose capacity is used up, and so cannot be served until they have some."""
    unnamed_means_all: bool = False
    """A config that covers each request of a claim names none of them in the allocation."""

    @property
    def distinct_attribute(self) -> bool:
        """Whether distinctAttribute is honoured, as Kubernetes does with any feature that its oldest allocator
        lacks."""
        return self.consumable_capacity or self.binding_conditions or self.list_attributes

    @classmethod
    def of(cls, version: KubernetesVersion) -> Features:
        """Return what a version has with its own defaults; for versions newer than we know, what the last one has."""
        return cls() if version < V1_37 else replace(cls(), **dict.fromkeys(RULES_OF_1_37, True))


V1_37: Final = (1, 37)

RULES_OF_1_37: Final = (
    "fractional_capacity_range",
    "stored_lists",
    "strict_optionals",
    "all_means_used_up",
    "unnamed_means_all",
)
"""Fields of Features."""
