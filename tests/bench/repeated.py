"""Times of decisions without what a machine that is shared adds to them: the same ones several times, the least counts.

A virtual machine that is stopped for a moment sees that as CPU time of whatever ran: on two cores of which a host takes
a part, a loop of 0.7 ms takes 8 ms now and then, and of 200 decisions more than two meet that. What a decision does
itself, its own garbage collection among it, it does each time.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Final

RUNS: Final = 3
"""Of one decision. What meets one in fifty by chance meets it three times in a hundred thousand."""

Times = Mapping[str, Sequence[float]]
"""Of each form: what its decisions took, in order."""


def least_of(run: Callable[[], Times], runs: int = RUNS) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Run the same several times, each in a copy of this process as it is now; return the least time of each decision,
    and the times of the first run. No other thread may run."""
    every = [_in_a_copy(run) for _ in range(runs)]
    first = every[0]
    assert all(one.keys() == first.keys() for one in every), "each run does the same"
    least = {name: list(map(min, zip(*(one[name] for one in every), strict=True))) for name in first}
    return least, first


def _in_a_copy(run: Callable[[], Times]) -> dict[str, list[float]]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(read)
            found = {name: list(times) for name, times in run().items()}
            with os.fdopen(write, "w", encoding="ascii") as stream:
                json.dump(found, stream)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    os.close(write)
    with os.fdopen(read, encoding="ascii") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError("a run of the decisions failed: its error is above")
    parsed: dict[str, list[float]] = json.loads(text)
    return parsed
