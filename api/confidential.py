"""Confidential computing of GPUs: the modes that a GPU can be in."""

from __future__ import annotations

from typing import Final

CC_OFF: Final = "off"
CC_ON: Final = "on"
"""What leaves the GPU is encrypted, and nobody on the host can look into it."""
CC_DEVTOOLS: Final = "devtools"
"""As `on`, for debuggers and profilers: they see what is in the GPU, so nothing is confidential."""

CC_MODES: Final = (CC_OFF, CC_ON, CC_DEVTOOLS)
"""Values of the attribute ccMode, in the words of NVIDIA's manager of these modes."""

CC_ENABLED_MODES: Final = frozenset({CC_ON, CC_DEVTOOLS})
"""Modes in which a GPU takes no work before the driver has been told that it was attested."""

MODE_STATE_LABEL: Final = "nvidia.com/cc.mode.state"
"""Label of a Node in which NVIDIA's manager of these modes says the one that it has set and verified, or `failed`."""
READY_STATE_LABEL: Final = "nvidia.com/cc.ready.state"
"""Label in which it says whether confidential pods may come: `true` or `false`."""


def cc_mode_label(driver: str) -> str:
    """Return the label of a Node that says in which mode an admin wants its GPUs."""
    return f"{driver}/cc-mode"
