"""Whether a cache shows what the API server has now, and since when it does not."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, Protocol

from dracaena.process.clock import Clock

QUIET_S: Final = 60.0
"""A real server sends bookmarks every 60 to 75 s: an open watch that has been silent for this long is still healthy."""

STALE_S: Final = 30.0
"""A cache that has not been fresh for this long cannot be relied on. Together with QUIET_S this is more than the
silence after which everything is listed (reflector.SILENCE_S); a broken watch is usually open again within a second."""


class Freshness:
    """What a reflector's thread has seen, as one number for everyone else. Safe from many threads.

    A cache is fresh at the moment of a complete list, and while a watch is open on which an event or a bookmark came
    within QUIET_S. Opening a watch counts as hearing from the server too, but only once until something else is heard:
    a server that accepts watches and never sends anything is not healthy.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open = False
        self._heard_s = self._opened_s = self._fresh_until_s = clock.monotonic()
        self._quiet_s = QUIET_S
        self._opening_counts = True

    def listed(self) -> None:
        """All objects were listed and taken in."""
        with self._lock:
            self._heard_s = self._fresh_until_s = self._clock.monotonic()
            self._opening_counts = True

    def opened(self) -> None:
        """The server accepted a watch."""
        with self._lock:
            self._open, self._opened_s = True, self._clock.monotonic()
            if self._opening_counts:
                self._heard_s, self._opening_counts = self._opened_s, False

    def heard(self) -> None:
        """An event or a bookmark arrived on the open watch and was taken in."""
        with self._lock:
            self._heard_s = self._clock.monotonic()
            self._opening_counts = True

    def rested(self) -> None:
        """There is nothing to watch until closed(): the server does not serve the kind."""
        with self._lock:
            self._open, self._quiet_s = True, float("inf")

    def closed(self) -> None:
        """No watch is open any more."""
        with self._lock:
            self._fresh_until_s = min(self._clock.monotonic(), self._until_s())
            self._open, self._quiet_s = False, QUIET_S

    @property
    def stale_s(self) -> float:
        """Seconds since the cache was last fresh, 0 while it is."""
        with self._lock:
            return max(0.0, self._clock.monotonic() - self._until_s())

    @property
    def followed(self) -> bool:
        """Whether a watch is open, or there is nothing to watch."""
        with self._lock:
            return self._open

    def _until_s(self) -> float:
        quiet_until_s = self._heard_s + self._quiet_s
        return quiet_until_s if self._open and quiet_until_s >= self._opened_s else self._fresh_until_s


class Cache(Protocol):
    """What a reflector reports about itself."""

    @property
    def resource(self) -> str:
        """Its kind, as the API's paths name it."""

    @property
    def synced(self) -> bool:
        """Whether there was a complete list."""

    @property
    def stale_s(self) -> float:
        """Seconds since it was last fresh."""

    @property
    def followed(self) -> bool:
        """Whether a watch is open, or there is nothing to watch."""

    @property
    def last_error(self) -> str | None:
        """The newest failure, None when something succeeded after it."""


def cache_trouble(caches: Iterable[Cache]) -> str | None:
    """Return which cache cannot be relied on and why, the one that was never filled or has been stale for longest; None
    when each was filled and has been fresh within STALE_S."""
    known = [(cache.synced, -cache.stale_s, cache.resource, cache.last_error) for cache in caches]
    bad = sorted((one for one in known if not one[0] or -one[1] >= STALE_S), key=lambda one: one[:3])
    if not bad:
        return None
    synced, fresh_s, resource, error = bad[0]
    if synced:
        text = f"the cache of {resource} has not been fresh for {-fresh_s:.0f} s"
    else:
        text = f"the first list of {resource} is not complete"
    others = sorted({one[2] for one in bad[1:]} - {resource})
    beside = f" (nor are {', '.join(others)})" if others else ""
    return f"{text}{beside}: {error or 'no answer from the API server yet'}"


def unfollowed(caches: Iterable[Cache]) -> str | None:
    """Return which cache is not being kept up to date at this moment and why; None when all are. This is briefly so
    between two watches, and from the first list on if no watch can be opened."""
    for cache in caches:
        if not cache.followed:
            return f"{cache.resource} are not being watched: {cache.last_error or 'the next watch is not open yet'}"
    return None
