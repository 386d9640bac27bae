"""NVML's numbers in the words that we publish: those of NVIDIA's own driver, so that selectors carry over."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BRANDS: Mapping[int, str] = MappingProxyType(
    {
        1: "Quadro",
        2: "Tesla",
        3: "NVS",
        4: "Grid",
        5: "GeForce",
        6: "Titan",
        7: "NvidiaVApps",
        8: "NvidiaVPC",
        9: "NvidiaVCS",
        10: "NvidiaVWS",
        11: "NvidiaCloudGaming",
        12: "QuadroRTX",
        13: "NvidiaRTX",
        14: "Nvidia",
        15: "GeForceRTX",
        16: "TitanRTX",
    }
)
"""nvmlBrandType_t. A number that is not here (0 is unknown) leaves the brand out."""

ARCHITECTURES: Mapping[int, str] = MappingProxyType(
    {
        2: "Kepler",
        3: "Maxwell",
        4: "Pascal",
        5: "Volta",
        6: "Turing",
        7: "Ampere",
        8: "Ada Lovelace",
        9: "Hopper",
        10: "Blackwell",
        13: "Rubin",
    }
)
"""nvmlDeviceArchitecture_t. 11, 12 and 15 are accelerators other than GPUs."""

NVLINK_GENERATIONS: Mapping[int, int] = MappingProxyType({1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6})
"""nvmlNvlinkVersion_t: 3 is version 2.2, 5 is version 3.1."""

REMOTE_GPU = 0
REMOTE_CPU = 1
REMOTE_SWITCH = 2
"""nvmlIntNvLinkDeviceType_t; 255 is unknown."""

FABRIC_NOT_STARTED = 1
FABRIC_IN_PROGRESS = 2
FABRIC_COMPLETED = 3
"""nvmlGpuFabricState_t; 0 is not supported."""

FABRIC_HEALTH: Mapping[str, tuple[int, int, frozenset[int]]] = MappingProxyType(
    {
        "degraded bandwidth": (0, 0x3, frozenset({1})),
        "route recovery": (2, 0x3, frozenset({1})),
        "unhealthy route": (4, 0x3, frozenset({1})),
        "recovery from an access timeout": (6, 0x3, frozenset({1})),
        "incorrect configuration": (8, 0xF, frozenset(range(2, 16))),
        "fabric manager disconnected": (14, 0x3, frozenset({2})),
    }
)
"""Fault → shift and width of its bits in NVML_GPU_FABRIC_HEALTH_MASK, and the values that mean it."""
SUCCESS = 0
"""nvmlReturn_t."""
