"""The order of keys that are ready: by turn, and those that are tried again in a lane of their own."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

SLACK: Final = 16
"""Stale entries that a short heap may keep."""

Turn = tuple[Any, ...]
"""Sorts keys, the smallest first."""

_FIRST_LANE: Final = 0
"""Takes the place of a wave's number for keys in the first lane."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A key that is ready."""

    wave: int
    turn: Turn
    arrival: int
    key: str

    @property
    def is_again(self) -> bool:
        """Whether the key is tried again."""
        return self.wave != _FIRST_LANE


class Lanes:
    """Keys by turn, and keys of the same turn in order of arrival. Part of its owner, and used under the owner's lock.

    Keys that are tried again have a second lane, so that neither they nor the others starve. If the first lane's next
    key has an earlier turn, it goes first; otherwise the two lanes alternate. The second lane works in waves: a key
    that was handed out comes again only after all others that waited there have had their turn.

    A heap keeps entries of keys that have left or moved until they come up, and is tidied when they are the most of it.
    Cost: O(log keys) per call.
    """

    def __init__(self, arrivals: Iterator[int]) -> None:
        """`arrivals` yields growing numbers."""
        self._arrivals = arrivals
        self._entries: dict[str, Entry] = {}
        self._by_turn: list[Entry] = []
        self._by_wave: list[Entry] = []
        self._wave = _FIRST_LANE + 1
        self._of_this_wave: set[str] = set()  # the keys that were handed out in this wave
        self._may_overtake = False
        """Whether the last key of the second lane went before a waiting key of the first."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str, turn: Turn, *, again: bool = False) -> None:
        """Add a key. One that waits stays where it is, unless its turn has changed, or it is in the second lane and no
        longer tried `again`."""
        known = self._entries.get(key)
        if known is not None and known.turn == turn and (again or not known.is_again):
            return
        wave = _FIRST_LANE
        if again:
            if self._first(self._by_wave) is None:
                self._begin_wave(self._wave + 1)
            wave = self._wave + (key in self._of_this_wave)
        self._push(Entry(wave, turn, next(self._arrivals), key))

    def take_over(self, entry: Entry) -> None:
        """Add what was popped from other lanes, as if it had come here."""
        if entry.is_again:
            self.add(entry.key, entry.turn, again=True)
        else:
            self._push(entry)

    def discard(self, key: str) -> None:
        """Remove a key."""
        self._entries.pop(key, None)

    def pop(self) -> Entry | None:
        """Remove and return the next key; None when there is none."""
        new, again = self._first(self._by_turn), self._first(self._by_wave)
        if again is None or (new is not None and (new.turn < again.turn or self._may_overtake)):
            if new is None:
                return None
            self._may_overtake = again is not None and self._may_overtake and new.turn < again.turn
            return self._pop(self._by_turn)
        self._may_overtake = new is not None
        if again.wave != self._wave:
            self._begin_wave(again.wave)
        self._of_this_wave.add(again.key)
        return self._pop(self._by_wave)

    def _push(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        heap = self._by_wave if entry.is_again else self._by_turn
        heapq.heappush(heap, entry)
        if len(heap) > 2 * len(self._entries) + SLACK:
            heap[:] = sorted(one for one in heap if self._entries.get(one.key) is one)

    def _pop(self, heap: list[Entry]) -> Entry:
        entry = heapq.heappop(heap)
        del self._entries[entry.key]
        return entry

    def _first(self, heap: list[Entry]) -> Entry | None:
        while heap and self._entries.get(heap[0].key) is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _begin_wave(self, wave: int) -> None:
        self._wave = wave
        self._of_this_wave.clear()
