"""The output of NVIDIA's program for the modes of confidential computing (gpu-admin-tools, `nvidia_gpu_tools.py`).

It prints the bus first and then lines of a log, each with its time, its level and the device that it is about:

    2026-02-24,10:00:00.123 INFO     GPU 0000:18:00.0 H100-SXM 0x2330 BAR0 0x52042000000 CC mode is on

and ends with 1 where it refuses. Facts: its source, cli/per_gpu.py and cli/per_gpu_nvswitch.py, v2026.02.24o.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from dracaena.api.confidential import CC_MODES

MOST_SHOWN: Final = 300
"""Most characters of the program's output that go into a trouble and an Event."""

_MODE: Final = re.compile(r"\bGPU (\S+) .*\bCC mode is (\w+)\s*$", re.ASCII | re.MULTILINE)
_PPCIE: Final = re.compile(r"\bhas PPCIe mode (\w+)\b", re.ASCII)
_UNSUPPORTED: Final = (
    *("CC mode is not supported on", "Configuring CC not supported on", "Enabling CC not supported on"),
    "Matching for",
)
"""Prefixes of its messages about a GPU that cannot have a mode, and about an address at which it finds no GPU."""
_LOG_LINE: Final = re.compile(r"^\S+ +(?:ERROR|CRITICAL) +(.*)$", re.ASCII | re.MULTILINE)


def query_options(address: str) -> tuple[str, ...]:
    """Return the arguments that query the mode of one GPU."""
    return (f"--gpu-bdf={address}", "--query-cc-mode")


def switch_options(address: str, mode: str) -> tuple[str, ...]:
    """Return the arguments that switch one GPU. The mode is active after a reset; the program does the reset and then
    checks the mode itself.
    """
    return (f"--gpu-bdf={address}", f"--set-cc-mode={mode}", "--reset-after-cc-mode-switch")


def mode_in(said: str, address: str) -> str | None:
    """Return the mode of a GPU in the output for query_options(); None if it has none, another GPU's, or two."""
    found = {mode for of, mode in _MODE.findall(said) if of == address}
    mode = found.pop() if len(found) == 1 else None
    return mode if mode in CC_MODES else None


def protected_pcie_in(said: str) -> bool:
    """Whether the GPU is in protected PCIe mode, which excludes modes of confidential computing."""
    return any(mode != "off" for mode in _PPCIE.findall(said))


def is_unsupported(said: str) -> bool:
    """Whether it says that the GPU, its firmware or the address does not support a mode: no retry helps."""
    return any(words in line for line in _LOG_LINE.findall(said) for words in _UNSUPPORTED)


def shown(said: str) -> str:
    """Return the part of the output that tells an admin most: its errors, otherwise its end."""
    lines: Sequence[str] = _LOG_LINE.findall(said) or [line for line in said.splitlines() if line.strip()][-2:]
    text = "; ".join(" ".join(line.split()) for line in lines) or "nothing"
    return text if len(text) <= MOST_SHOWN else f"…{text[-MOST_SHOWN:]}"
