"""`gpu.dracaena.dev/v1alpha1`: what may stand in spec.config of a DeviceClass or a claim for our driver."""

from __future__ import annotations

from dracaena.api.config.v1alpha1.decode import decode_config
from dracaena.api.config.v1alpha1.errors import ConfigError, UnreadableTextError
from dracaena.api.config.v1alpha1.merge import merged
from dracaena.api.config.v1alpha1.types import (
    API_VERSION,
    NO_LINK_BANDWIDTH,
    NO_POLICY,
    GpuConfig,
    LinkBandwidth,
    NicAlignment,
    NodeStrategy,
    NumaAlignment,
    Objective,
    Requirement,
    Siblings,
    TopologyPolicy,
)

__all__ = [
    "API_VERSION",
    "NO_LINK_BANDWIDTH",
    "NO_POLICY",
    "ConfigError",
    "GpuConfig",
    "LinkBandwidth",
    "NicAlignment",
    "NodeStrategy",
    "NumaAlignment",
    "Objective",
    "Requirement",
    "Siblings",
    "TopologyPolicy",
    "UnreadableTextError",
    "decode_config",
    "merged",
]
