"""Keeps a snapshot of the cluster for the page: only while somebody looks, at most once a second, in short turns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.controller.page.turns import worked_out
from dracaena.controller.views.fleet import Changes, changes
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, Watched
from dracaena.process.clock import Clock

EVERY_S: Final = 1.0
"""People see no shorter change, and an idle cluster costs one comparison."""

REST_PER_WORK: Final = 4
"""After a snapshot the thread rests this many times as long as it took. All threads of a Python program share one core:
this leaves decisions at least four fifths of it while somebody looks at a cluster that changes."""

WANTED_S: Final = 10.0
"""How long snapshots are made after somebody asked for one."""

KEPT_S: Final = 120.0
"""How long the last snapshot is kept once nobody looks any more."""

FIRST_TIMEOUT_S: Final = 8.0
"""How long answers wait for the first snapshot after the first of them was asked for: less than a client waits for its
answer. One thread gives several answers, so if each waited this long, the second would come too late."""

BEAT_S: Final = 15.0
"""How often followers get the number while nothing changes: sooner than proxies close a silent connection."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Numbered:
    """A snapshot and its number: within one process, equal numbers mean equal snapshots."""

    number: int
    snapshot: ClusterSnapshot
    changes: Changes


class LatestSnapshot:
    """Makes a snapshot of the cluster for whoever wants one, from any thread, one at a time. What has not changed since
    the last is not read again, whoever wanted that: the first look at the page of 5,000 nodes takes seconds, and a
    hundredth of that where metrics are scraped."""

    def __init__(self, driver: str, watched: Callable[[], Watched], clock: Clock) -> None:
        """`watched` returns what there is now."""
        self._maker, self._watched, self._clock = SnapshotMaker(driver), watched, clock
        self._lock = threading.Lock()
        self._last: tuple[Watched, ClusterSnapshot] | None = None

    def now(self, stopping: threading.Event) -> ClusterSnapshot | None:
        """Return what there is now, the same object as last time if nothing has changed; None once `stopping` is set.
        Blocks while it is made, in turns with rests between them."""
        with self._lock:
            watched = self._watched()
            if self._last is None or watched != self._last[0]:
                snapshot = worked_out(self._maker.turns(watched), self._clock, stopping)
                if snapshot is None:
                    return None
                self._last = watched, snapshot
            return self._last[1]


class Snapshots:
    """The newest snapshot, made by a thread of its own. start() once, then stop() once."""

    def __init__(
        self,
        latest: LatestSnapshot,
        clock: Clock,
        *,
        followed: Callable[[], bool] = lambda: False,
        tell: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`followed` returns whether any client follows. `tell` is called with the number of each new snapshot, and
        again every BEAT_S while there is none. Both are called by this thread."""
        self._latest, self._clock = latest, clock
        self._followed, self._tell = followed, tell
        self._changed = threading.Condition()
        self._newest: Numbered | None = None
        self._seen_s = -1.0
        self._missed_s: float | None = None  # when it was asked for first, while it is not there
        self._resting = False  # however old the newest is: another would cost decisions too much
        self._wanted_until_s = -1.0
        self._told_s = clock.monotonic()
        self._stopping = threading.Event()
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="page-snapshots", daemon=True)

    def start(self) -> None:
        """Begin to make snapshots once somebody asks."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    @property
    def number(self) -> int:
        """The number of the newest snapshot, 0 before the first."""
        return self._number

    def want(self) -> None:
        """Note that somebody looks."""
        with self._changed:
            self._wanted_until_s = self._clock.monotonic() + WANTED_S
            self._changed.notify_all()

    def newest(self) -> Numbered | None:
        """Return a snapshot of the cluster that is at most some seconds old; None when there is none in time. Blocks
        until the first is there."""
        self.want()
        with self._changed:
            while not self._stopping.is_set() and self._stale():
                now_s = self._clock.monotonic()
                self._missed_s = now_s if self._missed_s is None else self._missed_s
                left_s = self._missed_s + FIRST_TIMEOUT_S - now_s
                if left_s <= 0:
                    break
                self._clock.wait(self._changed, left_s)
            return self._newest

    def _stale(self) -> bool:
        is_old = self._clock.monotonic() - self._seen_s > WANTED_S
        return self._newest is None or (is_old and not self._resting)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._wait_until_wanted():
                continue
            began_s = self._clock.monotonic()
            try:
                self._make()
            except Exception:  # outermost on this thread: the page stands still, and decisions go on
                log.exception("the page cannot be refreshed, will try again")
            took_s = self._clock.monotonic() - began_s
            self._resting = True
            self._clock.sleep_until_set(self._stopping, max(EVERY_S, REST_PER_WORK * took_s))
            self._resting = False

    def _wait_until_wanted(self) -> bool:
        with self._changed:
            now_s = self._clock.monotonic()
            if now_s < self._wanted_until_s or self._followed():
                return True
            if self._newest is None:
                self._clock.wait(self._changed, None)
            elif not self._clock.wait(self._changed, KEPT_S):
                self._newest = None
            return False

    def _make(self) -> None:
        seen_s, snapshot = self._clock.monotonic(), self._latest.now(self._stopping)
        if snapshot is None:
            return
        is_new = self._newest is None or snapshot is not self._newest.snapshot
        if is_new:
            self._number += 1
            known = self._newest or Numbered(0, snapshot, Changes())
            changed = changes(known.snapshot if known.number else None, known.changes, snapshot, self._number)
            with self._changed:
                self._newest = Numbered(self._number, snapshot, changed)
        if is_new or self._clock.monotonic() - self._told_s >= BEAT_S:
            self._told_s = self._clock.monotonic()
            self._tell(self._number)
        with self._changed:
            self._seen_s, self._missed_s = seen_s, None
            self._changed.notify_all()
