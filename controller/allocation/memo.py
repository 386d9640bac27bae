"""A bounded table of results of pure functions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers at most `size` results; the one not asked for longest goes first. One thread at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> tuple[tuple[K, V], ...]:
        """Return what is remembered, the one not asked for longest first."""
        return tuple(self._known.items())

    def values(self) -> tuple[V, ...]:
        """Return the results, in the same order."""
        return tuple(self._known.values())

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """Return the result for a key, computed at the first call."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        value = self._known[key] = compute()
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return value
