"""Work in turns, with a rest after each: all threads of a Python program share one core."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, TypeVar

from dracaena.process.clock import Clock

T = TypeVar("T")

REST_PER_TURN: Final = 1
"""After a turn the thread rests this many times as long as it took, so that a decision waits for at most one turn."""


def worked_out(turns: Iterator[T | None], clock: Clock, stopping: threading.Event) -> T | None:
    """Return the first result that is not None, with a rest after each None; None once `stopping` is set."""
    began_s = clock.monotonic()
    for found in turns:
        if found is not None:
            return found
        rest_s = REST_PER_TURN * (clock.monotonic() - began_s)
        if clock.sleep_until_set(stopping, rest_s):
            return None
        began_s = clock.monotonic()
    return None
