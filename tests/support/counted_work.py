"""What a call does, counted: the same on every machine, however crowded it is.

Steps are lines of Python that are entered. What one line makes at once, such as a list of a million entries, shows in
the bytes.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What one call took."""

    steps: int
    peak_bytes: int
    """The most that it held at once, besides what there was before."""


class TooMuchWorkError(AssertionError):
    """A call that was ended because it did not end by itself."""


class _Counter:
    def __init__(self, most: int) -> None:
        self.steps, self._most = 0, most

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.stepped

    def stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.steps += 1
        if self.steps > self._most:
            raise TooMuchWorkError(f"more than {self._most} steps, in {frame.f_code.co_qualname}")
        return self.stepped


def work_of(call: Callable[[], object], *, most_steps: int) -> Work:
    """Call once and count. Raises TooMuchWorkError when it takes more steps, and whatever the call raises."""
    counter, before = _Counter(most_steps), sys.gettrace()
    tracemalloc.start()
    try:
        sys.settrace(counter.called)
        try:
            call()
        finally:
            sys.settrace(before)
        return Work(counter.steps, tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
