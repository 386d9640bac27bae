"""A cache of one kind, kept up to date by list and watch: a thread that survives whatever the server does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

from dracaena.api.objects import KubeObject
from dracaena.kube.client import Bookmark, KubeClient, Listing, Watch
from dracaena.kube.errors import GoneError, KubeError, NotFoundError
from dracaena.kube.freshness import Freshness
from dracaena.process.clock import Clock

T = TypeVar("T", bound=KubeObject)

WATCH_TIMEOUT_S = 300
"""The server is asked to end a watch after 300 to 600 s, so that reconnects of many clients spread out."""

SILENCE_S = 90.0
"""Bookmarks come about once a minute; a connection silent for longer is dead although no packet says so."""

SHORT_WATCH_S = 10.0
"""A watch is asked for minutes: one that ends sooner tells of a server in trouble, so the next one waits a little."""

FIRST_BACKOFF_S = 0.8
LONGEST_BACKOFF_S = 30.0
"""Waits after failures double from the first to the longest (client-go's reflector has the same figures)."""

UNSERVED_S = 300.0
"""How often a kind is looked for that the server does not serve; to turn it on an admin restarts the server."""

log = structlog.get_logger()


class Backoff:
    """Growing waits with jitter, so that many clients of a restarted server do not come back at once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_s = FIRST_BACKOFF_S

    def reset(self) -> None:
        """Start again from the shortest wait."""
        self._next_s = FIRST_BACKOFF_S

    def next_s(self) -> float:
        """Return the next wait in seconds: the current step ±50 %, and double the step."""
        step, self._next_s = self._next_s, min(self._next_s * 2, LONGEST_BACKOFF_S)
        return step * self._rng.uniform(0.5, 1.5)


class Reflector(Generic[T]):
    """All objects of a kind that a field selector names, as the server last told.

    `on_change(old, new)` is called from the reflector's thread, one call at a time, in the server's order: old is
    None for a new object, new is None for a deleted one. After a broken watch a fresh list is compared with the
    cache, so that nothing is missed; several changes of one object may then arrive as one. A change for which it fails
    is told again with the next list, and there is no watch (at the start: no sync) before a list went well.
    Of a list all deletions are told first, then the objects of which `first` says so by their old and new state, then
    the others, by key.
    `transform` makes what is kept of each object that came, under the same key and version.
    A kind with `older` versions, which decode to the same, is read by the first that the server serves; where it serves
    none there are no objects, and it is asked again every UNSERVED_S. Of any other kind that is an error.
    Reads are safe from any thread and cost a lock and a lookup.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: type[T],
        *,
        clock: Clock,
        older: Sequence[type[T]] = (),
        field_selector: str = "",
        on_change: Callable[[T | None, T | None], None] | None = None,
        transform: Callable[[T], T] = lambda item: item,
        first: Callable[[T | None, T], bool] = lambda old, new: False,
        rng: random.Random | None = None,
    ) -> None:
        self._client = client
        self._kind = kind  # the version that is served; only the reflector's thread changes it
        self._versions = (kind, *older)
        self._clock = clock
        self._field_selector = field_selector
        self._on_change = on_change
        self._transform = transform
        self._first = first
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._backoff = Backoff(self._rng)
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._watch: Watch[T] | None = None
        self._version = ""  # last version seen by the watch; only the reflector's thread touches it
        self._heard_s = clock.monotonic()
        self._freshness = Freshness(clock)
        self._last_error: str | None = None  # only the reflector's thread changes it
        self._synced = threading.Event()
        self._list_wanted = False  # under the lock, with the event
        self._listed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reflector-{kind.RESOURCE}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a watch in progress is cut off. Returns when no more on_change can come."""
        self._stopping.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache, and on_change was called for all of it."""
        return self._synced.is_set()

    @property
    def resource(self) -> str:
        """The path of the kind below the API root, `resourceclaims` for example."""
        return self._kind.RESOURCE

    @property
    def silence_s(self) -> float:
        """Seconds since the server last sent something: a list, a change or a bookmark (these come once a minute)."""
        return self._clock.monotonic() - self._heard_s

    @property
    def stale_s(self) -> float:
        """Seconds since the cache was last known to show what the server has (freshness.Freshness), 0 while it is."""
        return self._freshness.stale_s

    @property
    def followed(self) -> bool:
        """Whether a watch is open now, or the kind is not served."""
        return self._freshness.followed

    @property
    def last_error(self) -> str | None:
        """The newest failure of a list, of a watch or of a change that was told; None once a later one succeeded."""
        return self._last_error

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for the first list at most timeout_s; return whether it is there."""
        return self._clock.sleep_until_set(self._synced, timeout_s)

    def begin_list(self) -> None:
        """Have all objects listed anew, as the server has them after this call; wait_listed() tells when it is done.

        A watch may be behind by any time. Who must not miss what is stored by now asks for a list.
        """
        with self._lock:
            self._list_wanted = True
            self._listed.clear()
            watch = self._watch
        if watch is not None:
            watch.close()

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait for the list that begin_list() asked for, and all its on_change, at most timeout_s."""
        return self._clock.sleep_until_set(self._listed, timeout_s)

    def get(self, key: str) -> T | None:
        """Return the object with this key (`namespace/name` or `name`), if there is one."""
        with self._lock:
            return self._objects.get(key)

    def values(self) -> tuple[T, ...]:
        """Return all objects, sorted by key: a snapshot that does not change."""
        with self._lock:
            return tuple(self._objects[key] for key in sorted(self._objects))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                version = self._list()
                if version is None:
                    self._freshness.rested()
                    self._clock.sleep_until_set(self._stopping, UNSERVED_S * self._rng.uniform(0.8, 1.2))
                    self._freshness.closed()
                else:
                    self._watch_from(version)
            except GoneError as error:
                self._last_error = str(error)
                log.info("watch too far behind, listing again", resource=self._kind.RESOURCE)
                self._pause()
            except KubeError as error:
                self._last_error = str(error)
                if not self._stopping.is_set():
                    log.warning("list failed", resource=self._kind.RESOURCE, error=str(error))
                self._pause()
            except Exception as error:
                # The thread's outermost loop: a cache that stands still while all else goes on would decide wrongly.
                self._last_error = f"{type(error).__name__}: {error}"
                log.exception("cache failed, listing again", resource=self._kind.RESOURCE)
                self._pause()

    def _list(self) -> str | None:
        """Take in all objects; return the version to watch from, None when the kind is not served."""
        with self._lock:
            self._list_wanted = False
        listing = self._list_served()
        self._heard_s = self._clock.monotonic()
        fresh = {item.key: item for item in listing.items}
        # An object that is there but does not decode keeps its last known state: to take it for deleted would free
        # what it holds.
        with self._lock:
            stale = sorted(key for key in self._objects if key not in fresh and key not in listing.undecodable)
            early = {key for key, item in fresh.items() if self._first(self._objects.get(key), item)}
        failed: Exception | None = None
        for key in (*stale, *sorted(fresh, key=lambda key: (key not in early, key))):
            try:
                self._apply(key, fresh.get(key))
            except Exception as error:  # one object's trouble must not hide all others
                log.exception("change not taken in", resource=self._kind.RESOURCE, object=key)
                failed = failed or error
        if failed is not None:
            raise failed
        self._last_error = None
        self._freshness.listed()
        self._synced.set()
        with self._lock:
            if not self._list_wanted:  # else that was asked for after this list began
                self._listed.set()
        return listing.resource_version or None

    def _list_served(self) -> Listing[T]:
        """List the first version that is served; nothing, at no version, when none is."""
        for kind in self._versions:
            try:
                listing = self._client.list(kind, field_selector=self._field_selector)
            except NotFoundError:
                if len(self._versions) == 1:
                    raise
                continue
            self._kind = kind
            return listing
        if not self._synced.is_set():
            log.info("not served by this server", resource=self._kind.RESOURCE, looked_for_every_s=UNSERVED_S)
        return Listing((), "")

    def _watch_from(self, version: str) -> None:
        """Watch until stopped or until a list is needed; a broken watch goes on from its last version."""
        while not (self._stopping.is_set() or self._list_wanted):
            began_s = self._clock.monotonic()
            try:
                version = self._follow(version)
            except GoneError:
                raise
            except KubeError as error:
                if isinstance(error, NotFoundError) and len(self._versions) > 1:
                    raise  # another version may be served, or none any more
                version = self._version or version
                self._last_error = str(error)
                if not (self._stopping.is_set() or self._list_wanted):
                    log.info("watch broke, going on", resource=self._kind.RESOURCE, error=str(error))
            if self._clock.monotonic() - began_s < SHORT_WATCH_S and not self._list_wanted:
                self._pause()

    def _follow(self, version: str) -> str:
        """Read one watch to its end and return the last version seen."""
        self._version = version
        watch = self._client.watch(
            self._kind,
            resource_version=version,
            timeout_s=int(WATCH_TIMEOUT_S * self._rng.uniform(1, 2)),
            read_timeout_s=SILENCE_S,
            field_selector=self._field_selector,
        )
        with self._lock:
            self._watch = watch
        self._freshness.opened()
        try:
            if self._stopping.is_set() or self._list_wanted:
                return version
            for event in watch:
                self._heard_s = self._clock.monotonic()
                if isinstance(event, Bookmark):
                    self._version = event.resource_version
                else:
                    item = event.object
                    self._apply(item.key, None if event.deleted else item)
                    self._version = item.metadata.resource_version
                self._last_error = None
                self._freshness.heard()
                self._backoff.reset()
            return self._version
        finally:
            self._freshness.closed()
            with self._lock:
                self._watch = None
            watch.close()

    def _apply(self, key: str, new: T | None) -> None:
        new = None if new is None else self._transform(new)
        with self._lock:
            old = self._objects.get(key)
            if new is None:
                self._objects.pop(key, None)
            else:
                self._objects[key] = new
        if self._on_change is None or (old is None and new is None):
            return
        if old is not None and new is not None and _same(old, new):
            return
        try:
            self._on_change(old, new)
        except Exception:
            with self._lock:  # the next list has to tell it again
                if old is None:
                    del self._objects[key]
                else:
                    self._objects[key] = old
            raise

    def _pause(self) -> None:
        self._clock.sleep_until_set(self._stopping, self._backoff.next_s())


def _same(old: KubeObject, new: KubeObject) -> bool:
    """Whether two states are one: the version tells, and the UID tells a new object of the same name."""
    return (old.metadata.uid, old.metadata.resource_version) == (new.metadata.uid, new.metadata.resource_version)
