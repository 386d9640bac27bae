"""Keeps Python's cyclic garbage collector from stopping decisions: it runs between two of them."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""New containers that make a search for cycles among them worth its 5 to 15 ms of CPU time: once in some hundred
decisions."""

UNASKED_OBJECTS: Final = 100_000
"""New containers after which Python itself collects, whatever is running: in a stand-by, which decides nothing, and
while one decision makes that many; most make some thousand. If all of it were garbage, it would be some 10 MB."""

YOUNG_PASSES: Final = 1
"""Python's own young collections before it looks at their survivors. Its default of 10 leaves ten times as many."""

OLD_PASSES: Final = 100
"""Collections before all objects since the start are looked at: as many young objects as with Python's 10 times 10."""

_YOUNG, _ALL = 1, 2


def freeze_what_stays() -> None:
    """Exclude what is in memory now from cyclic garbage collection, and let Python itself collect new objects seldom.

    The collector would stop everything for 0.15 s now and then to walk the nodes, slices and claims of 5,000 nodes,
    which hold no cycles: they are freed with their last reference.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(UNASKED_OBJECTS, YOUNG_PASSES, OLD_PASSES)


def collect_between_decisions() -> None:
    """Look for cycles now if there are enough new objects. Call it while no decision is under way. What survives is
    looked at once, and again with everything else after OLD_PASSES. Cost: mostly nothing."""
    young, _, looks = gc.get_count()
    if young >= YOUNG_OBJECTS:
        gc.collect(_ALL if looks >= OLD_PASSES else _YOUNG)
