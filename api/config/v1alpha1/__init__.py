"""`gpu.dracaena.dev/v1alpha1`: what may stand in spec.config of a DeviceClass or a claim for our driver."""

from __future__ import annotations

from dracaena.api.config.v1alpha1.decode import ConfigError, decode_config
from dracaena.api.config.v1alpha1.types import API_VERSION, GpuConfig, Requirement, TopologyPolicy

__all__ = ["API_VERSION", "ConfigError", "GpuConfig", "Requirement", "TopologyPolicy", "decode_config"]
