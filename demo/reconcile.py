"""The loop of every stand-in: look at the caches, do what is missing, wait until something changes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
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


class CachedStandIn(ABC):
    """A stand-in for one program: a loop with the caches that it reads and the Events that it records.

    Runs from start() to stop(); what it has created stays as it is. Caches are made before start(). Each change in them
    wakes the loop; `_reconcile` is first called when all of them have seen everything once.
    """

    def __init__(self, name: str, client: KubeClient, clock: Clock, *, events_as: str) -> None:
        self._client = client
        self._clock = clock
        self._loop = ReconcileLoop(name, self._when_synced, clock)
        self._caches: list[Reflector[Any]] = []
        self._events = EventRecorder(client, events_as, clock)

    @abstractmethod
    def _reconcile(self) -> float | None:
        """Do what is missing; return as for ReconcileLoop."""

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the stand-in, if one did."""
        return self._loop.failure

    def start(self) -> None:
        """Begin to watch and act."""
        self._events.start()
        for cache in self._caches:
            cache.start()
        self._loop.start()

    def stop(self) -> None:
        """End all threads."""
        self._loop.stop()
        for cache in self._caches:
            cache.stop()
        self._events.stop()

    def _cache(self, kind: type[K], *, field_selector: str = "") -> Reflector[K]:
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

    def _when_synced(self) -> float | None:
        if not all(cache.synced for cache in self._caches):
            return 0.05  # seconds; only at the start, when objects not seen yet would look as if they were gone
        return self._reconcile()

    # writes about the very object that was seen, never about another one of its name

    def _patch(
        self, item: K, patch: Mapping[str, Any], *, subresource: str = "", metadata: Mapping[str, Any] | None = None
    ) -> K:
        """Merge a patch, and `metadata` with it. A ConflictError if the object has changed since it was seen."""
        meta = item.metadata
        guard = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        whole = {**patch, "metadata": {**(metadata or {}), **guard}}
        return self._client.merge_patch(type(item), meta.name, whole, namespace=meta.namespace, subresource=subresource)

    def _patch_status(self, item: K, status: Mapping[str, Any]) -> K:
        return self._patch(item, {"status": status}, subresource="status")

    def _drop_finalizers(self, item: KubeObject, *names: str) -> None:
        kept = [name for name in item.metadata.finalizers if name not in names]
        self._patch(item, {}, metadata={"finalizers": kept or None})

    def _delete(self, item: KubeObject, **how: Any) -> None:
        """Delete an object. `how`: see KubeClient.delete()."""
        meta = item.metadata
        self._client.delete(type(item), meta.name, namespace=meta.namespace, uid=meta.uid, **how)

    def _read(self, kind: type[K], name: str, namespace: str) -> K | None:
        try:
            return self._client.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None


def stamped(
    conditions: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], now: str, *also: str
) -> list[Mapping[str, Any]]:
    """Return conditions with the time of their last transition. `before`: what the object says; a condition that it
    says already stays as it is. `also`: fields with the time of any change."""
    known = {one["type"]: one for one in before}
    made = []
    for one in conditions:
        said = known.get(one["type"], {})
        if all(said.get(key) == value for key, value in one.items()):
            made.append(said)
            continue
        since = said.get("lastTransitionTime", now) if said.get("status") == one["status"] else now
        made.append({**one, **dict.fromkeys(also, now), "lastTransitionTime": since})
    return made


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
