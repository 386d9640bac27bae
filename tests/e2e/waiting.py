"""The only waiting that these tests do: real programs cannot be told what time it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.processes import Program

Seen = TypeVar("Seen")

POLL_S = 0.1
"""Between two looks: short beside what is measured here (seconds), long enough to leave the cores to the cluster."""


class NotYetError(AssertionError):
    """What was waited for did not come; str() says what was seen last."""


def eventually(
    look: Callable[[], Seen | None],
    what: str,
    *,
    within_s: float,
    programs: tuple[Program, ...] = (),
    every_s: float = POLL_S,
) -> Seen:
    """Look until the answer is true and return it. Fails at once when one of `programs` has ended."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if seen:
            return seen
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            raise NotYetError(f"not within {within_s:g} s: {what}; last seen: {seen!r}")
        time.sleep(every_s)


def never(look: Callable[[], object], what: str, *, for_s: float) -> None:
    """Look for a while; fail as soon as the answer is true."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        if seen := look():
            raise AssertionError(f"{what}: {seen!r}")
        time.sleep(POLL_S)
