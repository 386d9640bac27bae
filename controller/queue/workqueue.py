"""Keys that wait for a worker: each at most once, never two workers on one key, back-off after failures."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from itertools import count
from typing import Final

from dracaena.controller.queue.lanes import Lanes, Turn
from dracaena.process.clock import Clock

FIRST_RETRY_S: Final = 0.05
"""Conflicts and lost connections are often over at once."""

LONGEST_RETRY_S: Final = 30.0
"""While the API server is down, it is asked at most twice a minute for each key."""


class WorkQueue:
    """Hands out keys by turn, and keys of the same turn in order of arrival. Safe to use from many threads.

    Keys that are tried again (add_again) have a second lane, so that neither they nor the others starve (lanes.Lanes).

    A key that is added while a worker has it is handed out again after done(), so no change is lost. A key in back-off
    holds up no other key. One lock guards everything, and it is never held while work is done. Cost: O(log keys) per
    call.
    """

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        turn_of: Callable[[str], Turn] = lambda key: (),
        behind_others: Callable[[str], str | None] = lambda key: None,
    ) -> None:
        """`turn_of` is called when a key is added, without the queue's lock. `behind_others` is called with the lock
        held, when it is a key's turn; it returns the group in which the key waits behind all other keys, or None if it
        does not. It is not called for keys with the turn (), the first of all.
        """
        self._clock = clock
        self._rng = rng
        self._turn_of = turn_of
        self._condition = threading.Condition()
        self._arrivals = count()
        self._front = Lanes(self._arrivals)
        self._behind: dict[str, Lanes] = {}  # group → its keys that come behind others; the one whose turn it is first
        self._ready: dict[str, Lanes] = {}
        """Key → where it waits."""
        self._working: set[str] = set()
        self._again: dict[str, tuple[Turn, bool]] = {}
        """Keys that were added while a worker had them: the turn, and whether only by add_again()."""
        self._later: list[tuple[float, str]] = []
        self._due: dict[str, tuple[float, Turn]] = {}
        self._failures: dict[str, int] = {}
        self._behind_others = behind_others
        self._groups_from_s = float("-inf")
        self._not_before: dict[str, float] = {}
        self._rests_even_first: set[str] = set()
        self._closed = False

    def add(self, key: str) -> None:
        """Queue a key. A key that already waits stays where it is, unless its turn has changed."""
        turn = self._turn_of(key)
        with self._condition:
            self._add(key, turn)

    def add_again(self, key: str) -> None:
        """Queue a key that failed because something was missing that may be there now. A key that already waits stays
        where it is. A key whose turn is () is added like any other."""
        turn = self._turn_of(key)
        with self._condition:
            self._add(key, turn, again=turn != ())

    def add_after(self, key: str, delay_s: float) -> None:
        """Queue a key after a delay; of several, the earliest time counts."""
        turn = self._turn_of(key)
        with self._condition:
            due_s = self._clock.monotonic() + delay_s
            if key in self._due and self._due[key][0] <= due_s:
                return
            self._due[key] = due_s, turn
            heapq.heappush(self._later, (due_s, key))
            self._condition.notify_all()  # a sleeping worker may have to wake earlier now

    def retry(self, key: str, *, longest_s: float = LONGEST_RETRY_S) -> float:
        """Queue a failed key again after a growing back-off; return the wait in seconds."""
        with self._condition:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            # Between half the wait and all of it, so that keys that failed together do not come back together.
            longest = min(FIRST_RETRY_S * 2.0 ** min(failures, 20), longest_s)
            delay_s = longest * self._rng.uniform(0.5, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def rest(self, key: str, delay_s: float, *, even_first: bool = False) -> None:
        """Queue a key after a delay and not earlier, even if it is added meanwhile. A key with the turn (), the first
        of all, does come earlier, unless `even_first`."""
        with self._condition:
            self._not_before[key] = self._clock.monotonic() + delay_s
            (self._rests_even_first.add if even_first else self._rests_even_first.discard)(key)
        self.add_after(key, delay_s)

    def rest_behind_others(self, delay_s: float) -> None:
        """Hand out no key that waits behind others until the delay has passed, after those that were asked for before:
        each is for work of its own."""
        with self._condition:
            self._groups_from_s = max(self._groups_from_s, self._clock.monotonic()) + delay_s

    def forget(self, key: str) -> None:
        """Reset the back-off of a key that succeeded."""
        with self._condition:
            self._failures.pop(key, None)

    def get(self) -> str | None:
        """Wait for a key and take it; None after close(). Each key taken needs a done()."""
        with self._condition:
            while not self._closed:
                key = self._take_ready()
                if key is not None:
                    return key
                self._clock.wait(self._condition, self._next_due_s())
            return None

    def done(self, key: str) -> None:
        """Give a key back."""
        with self._condition:
            self._working.discard(key)
            added = self._again.pop(key, None)
            if added is not None:
                self._add(key, added[0], again=added[1])

    def close(self) -> None:
        """Wake all workers; get() returns None from now on."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def __len__(self) -> int:
        """Keys that are ready or wait for their time."""
        with self._condition:
            return len(self._ready) + len(self._again) + len(self._due)

    def _add(self, key: str, turn: Turn, *, again: bool = False) -> None:
        if key in self._working:
            self._again[key] = turn, again and self._again.get(key, (turn, True))[1]
        elif self._rests(key, turn):
            due_s = self._not_before[key]
            if key not in self._due or self._due[key][0] != due_s:  # changes may wake it many times while it rests
                heapq.heappush(self._later, (due_s, key))
            self._due[key] = due_s, turn
        else:
            lanes = self._ready.get(key, self._front)
            if turn == () and lanes is not self._front:
                lanes.discard(key)
                lanes = self._front
            self._ready[key] = lanes
            lanes.add(key, turn, again=again)
            self._condition.notify()

    def _take_ready(self) -> str | None:
        self._promote()
        key = self._take_first()
        if key is not None:
            self._working.add(key)
        return key

    def _take_first(self) -> str | None:
        while (entry := self._front.pop()) is not None:
            group = None if entry.turn == () else self._behind_others(entry.key)
            if group is None:
                return self._taken(entry.key)
            lanes = self._ready[entry.key] = self._behind.setdefault(group, Lanes(self._arrivals))
            lanes.take_over(entry)
        return None if self._groups_from_s > self._clock.monotonic() else self._take_behind_others()

    def _take_behind_others(self) -> str | None:
        """Take the first key of the group whose turn it is; that group then goes last."""
        while self._behind:
            group = next(iter(self._behind))
            lanes = self._behind.pop(group)
            entry = lanes.pop()
            if entry is not None:
                self._behind[group] = lanes  # also when it is empty now: its waves go on if keys come again at once
                return self._taken(entry.key)
        return None

    def _taken(self, key: str) -> str:
        del self._ready[key]
        self._not_before.pop(key, None)
        self._rests_even_first.discard(key)
        return key

    def _rests(self, key: str, turn: Turn) -> bool:
        is_early = self._not_before.get(key, 0.0) > self._clock.monotonic()
        return is_early and (turn != () or key in self._rests_even_first)

    def _next_due_s(self) -> float | None:
        """Return the seconds until a key may be ready; None when only another thread can make one ready."""
        due = [self._later[0][0]] if self._later else []
        if self._behind:
            due.append(self._groups_from_s)
        return min(due) - self._clock.monotonic() if due else None

    def _promote(self) -> None:
        """Make due keys ready. Entries that add_after replaced by earlier ones are skipped."""
        now_s = self._clock.monotonic()
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
            if key in self._due and self._due[key][0] == due_s:
                self._add(key, self._due.pop(key)[1])
