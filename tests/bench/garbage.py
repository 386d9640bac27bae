"""How seldom Python looks for garbage while a bench makes what it measures."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 100_000
"""Containers between two looks, instead of Python's 700: of a cluster of thousands of nodes nothing is garbage, and
looks took half of the time in which it is made."""


def look_seldom() -> None:
    """Look for garbage seldom from now on. Sections on decisions do as the controller does once all is there
    (dracaena.controller.garbage)."""
    gc.set_threshold(YOUNG_OBJECTS)
