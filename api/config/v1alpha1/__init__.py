"""`gpu.dracaena.dev/v1alpha1`: the configurations for our driver in spec.config of a DeviceClass or in a claim."""

from __future__ import annotations

from dracaena.api.config.v1alpha1.decode import decode_config
from dracaena.api.config.v1alpha1.errors import ConfigError, UnreadableTextError
from dracaena.api.config.v1alpha1.merge import merged, merged_iommu, merged_sharing
from dracaena.api.config.v1alpha1.nvidia import instead_of, is_of_nvidia
from dracaena.api.config.v1alpha1.types import (
    API_VERSION,
    NO_LINK_BANDWIDTH,
    NO_POLICY,
    NO_SHARING,
    Confidentiality,
    Enforcement,
    GpuConfig,
    GpuSharing,
    Iommu,
    LinkBandwidth,
    NicAlignment,
    NodeStrategy,
    NumaAlignment,
    Objective,
    Requirement,
    SharingStrategy,
    Siblings,
    TimeSliceInterval,
    TopologyPolicy,
    VfioConfig,
)

__all__ = [
    "API_VERSION",
    "NO_LINK_BANDWIDTH",
    "NO_POLICY",
    "NO_SHARING",
    "Confidentiality",
    "ConfigError",
    "Enforcement",
    "GpuConfig",
    "GpuSharing",
    "Iommu",
    "LinkBandwidth",
    "NicAlignment",
    "NodeStrategy",
    "NumaAlignment",
    "Objective",
    "Requirement",
    "SharingStrategy",
    "Siblings",
    "TimeSliceInterval",
    "TopologyPolicy",
    "UnreadableTextError",
    "VfioConfig",
    "decode_config",
    "instead_of",
    "is_of_nvidia",
    "merged",
    "merged_iommu",
    "merged_sharing",
]
