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
