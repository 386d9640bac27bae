"""What holds for all tests."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 400_000
"""How many there may be before the garbage collector looks at them. With Python's 700 it takes a sixth of the time of
collecting the tests and 7 % of a search through many small clusters, and most of what it looks at is in use. With
50,000 it still took 4 % of the tests of the allocator. So many take some 50 MiB."""

gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def pytest_collection_finish() -> None:
    """The tests themselves stay until the end: let the garbage collector not walk all of them again and again."""
    gc.collect()
    gc.freeze()
