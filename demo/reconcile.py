"""The loop of every stand-in: look at the caches, do what is missing, wait until something changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog

from dracaena.api.objects import KubeObject
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, ConflictError, KubeError, NotFoundError
from dracaena.kube.events import EventRecorder
from dracaena.kube.reflector import Kept, Reflector
from dracaena.process.clock import Clock

RETRY_S = 0.5
"""Pause after a failed write: caches catch up within milliseconds here, and a broken server must not be flooded."""

LONGEST_WAIT_S = 3600.0
"""Longest single wait of a loop that wants to wait longer, or until it is woken: no clock can wait for an arbitrary
number of seconds (Python's Event raises OverflowError beyond some 292 years), and one look per hour costs nothing."""

BURST = 500
"""Pods that a controller creates or deletes before it checks again how many are wanted, like the real ones. So a number
with a zero too many can be corrected soon."""

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)

log = structlog.get_logger()


class ReconcileLoop:
    """Calls `reconcile` in a thread of its own, after each wake() and when the time that it returned has passed.

    `reconcile` returns seconds, or None to be called only after a wake(); it may be called sooner than it asked for,
    LONGEST_WAIT_S after the last call at the latest. Wakes during a call lead to one more call. A KubeError is retried;
    any other exception is a bug of the stand-in: it ends the loop and is kept in `failure`, so that whoever runs the
    cluster can say so.
    """

    def __init__(self, name: str, reconcile: Callable[[], float | None], clock: Clock) -> None:
        self._name = name
        self._reconcile = reconcile
        self._clock = clock
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin, with a first call at once."""
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Ask for a call soon. Cheap, from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End after the call in progress."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        again_s: float | None = None
        while not self._stopping.is_set():
            try:
                wait_s = LONGEST_WAIT_S if again_s is None else min(again_s, LONGEST_WAIT_S)
                self._clock.sleep_until_set(self._wake, wait_s)
                self._wake.clear()
                if self._stopping.is_set():
                    return
                again_s = self._reconcile()
            except KubeError as error:
                log.info("reconcile failed, again soon", loop=self._name, error=str(error))
                again_s = RETRY_S
            except Exception as error:  # the top of the thread: kept and reported
                self.failure = error
                log.exception("stand-in ended", loop=self._name)
                return


class CachedLoop:
    """A ReconcileLoop with the caches that it reads and the Events that it records: started and ended together.

    Create the caches before start(). Each change in them wakes the loop; `reconcile` is first called when all of them
    have seen everything once.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[], float | None],
        client: KubeClient,
        clock: Clock,
        *,
        events_as: str,
    ) -> None:
        self._client = client
        self._clock = clock
        self._reconcile = reconcile
        self._loop = ReconcileLoop(name, self._when_synced, clock)
        self._caches: list[Reflector[Any]] = []
        self.events = EventRecorder(client, events_as, clock)

    def cache(self, kind: type[K], *, field_selector: str = "") -> Reflector[K]:
        """Return a cache of all objects of a kind, or of those that the selector names."""
        made = Reflector(
            self._client,
            kind,
            clock=self._clock,
            on_change=lambda _old, _new: self._loop.wake(),
            kept=Kept(field_selector=field_selector),
        )
        self._caches.append(made)
        return made

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the loop, if one did."""
        return self._loop.failure

    def start(self) -> None:
        """Begin to watch and act."""
        self.events.start()
        for cache in self._caches:
            cache.start()
        self._loop.start()

    def wake(self) -> None:
        """Ask for a look soon. Cheap, from any thread."""
        self._loop.wake()

    def stop(self) -> None:
        """End all threads."""
        self._loop.stop()
        for cache in self._caches:
            cache.stop()
        self.events.stop()

    def _when_synced(self) -> float | None:
        if not all(cache.synced for cache in self._caches):
            return 0.05  # seconds; only at the start, when objects not seen yet would look as if they were gone
        return self._reconcile()


class CachedStandIn:
    """A stand-in for one program: runs from start() to stop() with its loop, on caches of its own."""

    def __init__(self, loop: CachedLoop) -> None:
        self._loop = loop
        self._events = loop.events

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the stand-in, if one did."""
        return self._loop.failure

    def start(self) -> None:
        """Begin to watch and act."""
        self._loop.start()

    def stop(self) -> None:
        """End all threads. What it has created stays as it is."""
        self._loop.stop()


def settle(items: Iterable[T], act: Callable[[T], None], what: str) -> bool:
    """Call `act` on every item; a failure does not keep the others from their turn. Return whether all succeeded.

    Conflicts and vanished objects are normal: the cache was behind, and the watch will wake us.
    """
    done = True
    for item in items:
        try:
            act(item)
        except (ConflictError, NotFoundError, AlreadyExistsError) as error:
            log.debug("behind the API, again soon", what=what, error=str(error))
            done = False
        except KubeError as error:
            log.warning("write failed, again soon", what=what, error=str(error))
            done = False
    return done
