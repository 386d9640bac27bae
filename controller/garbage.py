"""Keeps Python's cyclic garbage collector from stopping decisions: it looks between two of them."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""Containers that came and stayed before a look for cycles among them is worth its time: 5 to 15 ms of CPU time, once
in some hundred decisions."""

UNASKED_OBJECTS: Final = 100_000
"""Containers before Python looks by itself, whatever runs just then: in a stand-by, which decides nothing, and while
one decision makes as many; most make some thousand. Were all of it garbage, it would be some 10 MB."""

YOUNG_PASSES: Final = 1
"""Looks of Python's own between two at what they left. With its 10 that is ten times as much to look at."""

OLD_PASSES: Final = 100
"""Looks between two at all that came since the start; as many young objects as with Python's 10 of 10."""

_YOUNG, _ALL = 1, 2


def freeze_what_stays() -> None:
    """Let the cyclic garbage collector look no more at what is in memory now, and by itself seldom at what comes.

    It would stop everything for 0.15 s now and then, to walk the nodes, slices and claims of 5,000 nodes, which hold no
    cycles: they go when nobody names them any more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(UNASKED_OBJECTS, YOUNG_PASSES, OLD_PASSES)


def collect_between_decisions() -> None:
    """Look for cycles now if enough came for it. Call it where no decision is under way. What stays is looked at once,
    and again with all else after OLD_PASSES. Cost: nothing, mostly."""
    young, _, looks = gc.get_count()
    if young >= YOUNG_OBJECTS:
        gc.collect(_ALL if looks >= OLD_PASSES else _YOUNG)
