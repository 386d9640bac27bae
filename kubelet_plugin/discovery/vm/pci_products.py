"""Products of NVIDIA's GPUs by PCI device id, for GPUs that the NVIDIA driver does not have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PCI_PRODUCTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x1DB1: "Tesla V100-SXM2-16GB", 0x1DB4: "Tesla V100-PCIE-16GB", 0x1DB5: "Tesla V100-SXM2-32GB",
        0x1DB6: "Tesla V100-PCIE-32GB", 0x1EB8: "Tesla T4", 0x20B0: "NVIDIA A100-SXM4-40GB",
        0x20B2: "NVIDIA A100-SXM4-80GB", 0x20B5: "NVIDIA A100 80GB PCIe", 0x20B7: "NVIDIA A30",
        0x20F1: "NVIDIA A100-PCIE-40GB", 0x2235: "NVIDIA A40", 0x2236: "NVIDIA A10", 0x2237: "NVIDIA A10G",
        0x2321: "NVIDIA H100 NVL", 0x2330: "NVIDIA H100 80GB HBM3", 0x2331: "NVIDIA H100 PCIe", 0x2335: "NVIDIA H200",
        0x233B: "NVIDIA H200 NVL", 0x26B5: "NVIDIA L40", 0x26B9: "NVIDIA L40S", 0x27B8: "NVIDIA L4",
        0x2901: "NVIDIA B200",
    }
)  # fmt: skip
"""Device id → NVML's name of the product. NVML cannot be asked: the NVIDIA driver does not have these GPUs."""
