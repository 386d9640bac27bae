"""The label by which users say that pods are of use only together."""

from __future__ import annotations

from typing import Final

from dracaena.api.names import CONFIG_GROUP

GANG_LABEL: Final = f"{CONFIG_GROUP}/gang"
"""On pods: how many of their controller's pods run together or not at all. Fixed, like the group of our configs."""

MOST_GANG_PODS: Final = 4_096
"""More pods than any known training job has: a larger number is a mistake."""


def gang_size(text: str) -> int | None:
    """Read the value of the label; None: it is no size, and the pod is as if it had no label."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MOST_GANG_PODS)):
        return None
    return int(text) if 0 < int(text) <= MOST_GANG_PODS else None
