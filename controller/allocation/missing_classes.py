"""The texts about DeviceClasses that claims name and that do not exist.

Such a claim is tried again and again, and the class that it most likely means is looked for among all classes. That is
done once for each name, and charged to the first decision that asks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dracaena.api.reasons import MOST_COMPARED, no_class
from dracaena.controller.allocation.effort import Effort, Memo, Work

MOST_NAMES: Final = 1_000
"""Texts that are kept, about 0.5 KiB each: one for each misspelt class name."""

LOOK_STEPS: Final = 5
"""A class whose name is looked at: the letters that it begins and ends with."""

COMPARE_STEPS: Final = 60
"""A class whose name is compared letter by letter."""


class MissingClasses:
    """The texts, until classes come or go. One thread at a time."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._texts: Memo[str, str] = Memo(MOST_NAMES)
        self._there: Collection[str] = ()
        self._count = 0

    def know(self, there: Collection[str]) -> None:
        """Take in the existing classes after one was set or removed; the collection is not copied."""
        if there is not self._there or len(there) != self._count:
            self._texts.clear()
        self._there, self._count = there, len(there)

    def text(self, name: str, effort: Effort | None) -> str:
        """Say that a class does not exist. The text is remembered before it is charged: a decision without time left
        for it gets it at the next attempt."""
        is_new = name not in self._texts
        text = self._texts.get(name, lambda: no_class(name, self._there, self._driver))
        if is_new and effort is not None:
            steps = LOOK_STEPS * self._count + COMPARE_STEPS * min(self._count, MOST_COMPARED)
            effort.charge(steps, Work.CLAIMS)
        return text
