"""Confidential computing of GPUs: the modes that a GPU can be in."""

from __future__ import annotations

from typing import Final

CC_OFF: Final = "off"
CC_ON: Final = "on"
"""What leaves the GPU is encrypted, and no program on the host can look into the GPU."""
CC_DEVTOOLS: Final = "devtools"
"""Like `on`, but for debuggers and profilers: they see what is in the GPU, so nothing is confidential."""

CC_MODES: Final = (CC_OFF, CC_ON, CC_DEVTOOLS)
"""Values of the attribute ccMode, in the words of NVIDIA's manager of these modes."""

CC_ENABLED_MODES: Final = frozenset({CC_ON, CC_DEVTOOLS})
"""Modes in which a GPU takes no work before the driver knows that it was attested."""

MODE_STATE_LABEL: Final = "nvidia.com/cc.mode.state"
"""Node label with the mode that NVIDIA's manager of these modes has set and verified, or `failed`."""
READY_STATE_LABEL: Final = "nvidia.com/cc.ready.state"
"""Node label in which it says whether confidential pods may come: `true` or `false`."""


def cc_mode_label(driver: str) -> str:
    """Return the Node label that says which mode an admin wants for its GPUs."""
    return f"{driver}/cc-mode"
