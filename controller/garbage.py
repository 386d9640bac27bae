"""Keeps Python's cyclic garbage collector from stopping decisions."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""Containers that are made and stay before the garbage collector looks for cycles among them. With Python's 700 it
stopped one decision in 100 for 1 to 20 ms, and one in 2,000 for 0.1 s, to find cycles of 0.1 objects a decision."""

YOUNG_PASSES: Final = 1
"""Such looks between two at what they left. With Python's 10 that is ten times as much to look at, and it was the
longest of all pauses: 36 ms of CPU time on a busy machine, where it takes 13 to 16 with one. What stays is looked at
twice either way."""

OLD_PASSES: Final = 100
"""Looks at that between two at all that came since the start; as many young objects as with Python's 10 of 10."""


def freeze_what_stays() -> None:
    """Let the cyclic garbage collector look no more at what is in memory now, and seldom at what comes.

    It would stop everything for 0.15 s now and then, to walk the nodes, slices and claims of 5,000 nodes, which hold no
    cycles: they go when nobody names them any more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, OLD_PASSES)
