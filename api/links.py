"""How two devices of one machine are linked: the PCIe level of a pair and its NVLinks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

MAX_NVLINKS = 61
"""Most NVLinks of a pair: one base-62 symbol in a ResourceSlice (attributes). The largest announced GPU has 36."""

_NVLINK_TOKEN = re.compile(r"NV(\d+)")


class LinkLevel(IntEnum):
    """Nearest common ancestor of two PCIe devices, near to far. Numbers are NVML's nvmlGpuTopologyLevel_t."""

    PSB = 0
    """On one board (NVML INTERNAL), for example the two GPUs of a dual-GPU card."""
    PIX = 10
    """Below one PCIe switch (NVML SINGLE)."""
    PXB = 20
    """Across several PCIe switches, below one host bridge (NVML MULTIPLE)."""
    PHB = 30
    """Across one PCIe host bridge (NVML HOSTBRIDGE)."""
    NODE = 40
    """Across host bridges of one NUMA node (NVML NODE; the CPU of older tools)."""
    SYS = 50
    """Across NUMA nodes, over the link between CPU sockets (NVML SYSTEM; the SOC of older tools)."""

    @classmethod
    def from_token(cls, token: str) -> LinkLevel:
        """Return the level of a token as `nvidia-smi topo -m` prints it; SOC is the old word for SYS: according to the
        legend printed with it, the path crosses the link between two sockets.

        Raises ValueError for anything else.
        """
        if token == "SOC":  # noqa: S105 - a link token, no secret
            return cls.SYS
        try:
            return cls[token]
        except KeyError:
            raise ValueError(f"{token!r} is not a PCIe link level") from None


@dataclass(frozen=True, slots=True)
class Link:
    """What joins one pair of GPUs. A field is None if it is unknown; it is never guessed."""

    level: LinkLevel | None
    """PCIe level; None: unknown (`nvidia-smi topo -m` hides it behind NV#)."""
    nvlinks: int | None
    """Bonded NVLinks between the pair, 0: none; behind NVSwitches each pair shows a GPU's whole count."""

    @property
    def token(self) -> str:
        """The token that `nvidia-smi topo -m` prints for this pair, `?` if nothing is known."""
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return self.level.name if self.level is not None else "?"

    @classmethod
    def from_token(cls, token: str) -> Link:
        """Read one cell of a GPU×GPU matrix: NV# hides the level, any level means no NVLink.

        Raises ValueError for a token that is neither.
        """
        match = _NVLINK_TOKEN.fullmatch(token)
        if match is None:
            return cls(level=LinkLevel.from_token(token), nvlinks=0)
        count = int(match[1])
        if not 0 < count <= MAX_NVLINKS:
            raise ValueError(f"{token!r} has {count} NVLinks, expected 1 to {MAX_NVLINKS}")
        return cls(level=None, nvlinks=count)


UNKNOWN_LINK = Link(level=None, nvlinks=None)
"""A pair about which nothing is known."""
