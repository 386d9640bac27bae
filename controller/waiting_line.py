"""Pods that fitted nowhere, in lines: those that ask for the same stand behind each other.

Whatever helps one pod of a line helps the first of it before the others. So a change that may help wakes the first of
each line, and only when that one got its devices the next: 10,000 equal pods cost two decisions for a device that is
freed, not 10,000.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.controller.allocation.demands import RefusalKind
from dracaena.controller.allocation.turn import Turn

TOO_LONG: Final = RefusalKind.TOO_LONG.value

HOLD_BACK: Final = ("", TOO_LONG)
"""Answers to the first of a line that spare those behind it a decision: it fits on no node, or it takes too long to
find out. Each may follow the other without anything having changed for those behind."""

SLACK: Final = 16
"""Entries of pods that left which a short line may keep."""


@dataclass(slots=True)
class _Line:
    answer: str
    """What the first pod was answered last; empty: that it fits on no node now."""
    members: list[tuple[Turn, str]] = field(default_factory=list)
    """A heap of turns and keys. An entry whose pod does not stand here any more is passed over."""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a pod stands."""

    shape: bytes
    turn: Turn


class WaitingLines:
    """All lines. A part of its owner, under the owner's lock. Cost: O(log pods) for each call but wake-ups of many.

    A shape (allocation.shape) holds all that a pod's decision depends on beside the cluster, so pods of one shape get
    one answer. What must hold for it: the first of a line was asked since the last change that may help it, or is
    about to be.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self._standing: dict[str, Standing] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def is_behind(self, shape: bytes, turn: Turn) -> bool:
        """Return whether an equal pod with an earlier turn waits because it fits on no node, or because that takes too
        long to find out: then so does this one."""
        line = self._lines.get(shape)
        if line is None or line.answer not in HOLD_BACK:
            return False
        first = self._first(line)
        return first is not None and first[0] < turn

    def put(self, key: str, shape: bytes, turn: Turn, answer: str) -> Sequence[str]:
        """Let a pod wait that was answered so; return the pods to ask now.

        These are the first of the line that it leaves, when it asks for something else by now; and all behind it, when
        it is the first and the answer is another than before: then theirs is too.
        """
        known = self._standing.get(key)
        woken = self.leave(key) if known is not None and (known.shape, known.turn) != (shape, turn) else ()
        line = self._lines.setdefault(shape, _Line(answer))
        if key not in self._standing:
            self._standing[key] = Standing(shape, turn)
            heapq.heappush(line.members, (turn, key))
            line.count += 1
            if len(line.members) > 2 * line.count + SLACK:
                line.members = [(self._standing[other].turn, other) for other in self._of(line)]
        first = self._first(line)
        if first is None or first[1] != key or line.answer == answer:
            return woken
        same_for_others = line.answer in HOLD_BACK and answer in HOLD_BACK
        line.answer = answer
        if same_for_others:
            return woken
        return (*woken, *(other for other in self._of(line) if other != key))

    def leave(self, key: str) -> Sequence[str]:
        """Let a pod wait no more; return the next of its line if it was the first, who may get what it did not."""
        standing = self._standing.get(key)
        if standing is None:
            return ()
        line = self._lines[standing.shape]
        was_first = self._first(line) == (standing.turn, key)
        del self._standing[key]
        line.count -= 1
        if not line.count:
            del self._lines[standing.shape]
            return ()
        following = self._first(line)
        return (following[1],) if was_first and following is not None else ()

    def firsts(self) -> Sequence[str]:
        """Return the first pod of each line, by turn. Cost: O(lines × log lines)."""
        found = (self._first(line) for line in self._lines.values())
        return [key for _, key in sorted(first for first in found if first is not None)]

    def first_before(self, created_before: str) -> Sequence[str]:
        """Return of each line whose first fits on no node the first pod that was created before a time, by turn; of an
        empty time nobody was.

        Cost: O(lines), and where the first of a line is younger (then it has a higher priority) O(pods of the line).
        """
        if not created_before:
            return ()
        found: list[tuple[Turn, str]] = []
        for line in self._lines.values():
            first = self._first(line)
            if first is None or line.answer:
                continue
            members = [first] if _is_before(first[0], created_before) else line.members
            old = (m for m in members if _is_before(m[0], created_before) and self._stands(line, *m))
            oldest = min(old, default=None)
            if oldest is not None:
                found.append(oldest)
        return [key for _, key in sorted(found)]

    def standing(self, key: str) -> Standing | None:
        """Return where a pod stands, None when it waits for nothing that could be freed."""
        return self._standing.get(key)

    def all(self) -> Sequence[str]:
        """Return all pods that wait, by turn. Cost: O(pods × log pods)."""
        return sorted(self._standing, key=lambda key: self._standing[key].turn)

    def fits_nowhere(self, key: str) -> bool:
        """Return whether a pod waits because it fits on no node now, and for nothing else."""
        standing = self._standing.get(key)
        return standing is not None and not self._lines[standing.shape].answer

    def _first(self, line: _Line) -> tuple[Turn, str] | None:
        while line.members:
            turn, key = line.members[0]
            if self._stands(line, turn, key):
                return turn, key
            heapq.heappop(line.members)
        return None

    def _of(self, line: _Line) -> Sequence[str]:
        return list(dict.fromkeys(key for turn, key in sorted(line.members) if self._stands(line, turn, key)))

    def _stands(self, line: _Line, turn: Turn, key: str) -> bool:
        standing = self._standing.get(key)
        return standing is not None and standing.turn == turn and self._lines[standing.shape] is line


def _is_before(turn: Turn, created_before: str) -> bool:
    _, never_created, created, _ = turn
    return not never_created and created < created_before
