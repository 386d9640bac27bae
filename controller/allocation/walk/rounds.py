"""Nodes that were asked in vain by tries that were overdue, so that the next try begins with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_NAMES: Final = 200_000
"""Remembered names of nodes, combinations and pods together: about 15 MB where they are names, 60 MB where each pod
has one combination; beyond, everything is forgotten. Pods and combinations count because those of a pod that was
deleted after it was overdue stay until then."""


COUNT_EVERY: Final = 256
"""Decisions between two counts of them: a try adds some hundred names."""


class Rounds:
    """By pod and combination of alternatives. Holds nothing of pods whose decisions come to their end.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._asked: dict[str, dict[int, set[str]]] = {}
        self._calls = 0

    def of(self, pod: str) -> Callable[[int], set[str]]:
        """Return what gives the nodes that a pod's earlier tries asked in vain, by the number of the
        combination; to be added to."""
        self._calls += 1
        if self._calls % COUNT_EVERY == 0 and self._count() > MAX_NAMES:
            self._asked.clear()
        combinations = self._asked.setdefault(pod, {})
        return lambda number: combinations.setdefault(number, set())

    def _count(self) -> int:
        return sum(1 + sum(1 + len(names) for names in one.values()) for one in self._asked.values())

    def is_under_way(self, pod: str) -> bool:
        """Whether some nodes were asked in vain, and others have yet to be asked."""
        return any(self._asked.get(pod, {}).values())

    def forget(self, pod: str) -> None:
        """The pod's decision came to its end."""
        self._asked.pop(pod, None)
