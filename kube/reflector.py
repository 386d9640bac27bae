"""A cache of one kind, kept up to date by list and watch: a thread that survives whatever the server does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from dracaena.api.objects import KubeObject
from dracaena.kube.client import Bookmark, KubeClient, Listing, ObjectChange, Watch
from dracaena.kube.errors import GoneError, KubeError
from dracaena.kube.freshness import Freshness
from dracaena.kube.reading import Reader, StandIn, Unread
from dracaena.process.clock import Clock

T = TypeVar("T", bound=KubeObject)

WATCH_TIMEOUT_S = 300
"""The server is asked to end a watch after 300 to 600 s, so that reconnects of many clients spread out."""

SILENCE_S = 80.0
"""Longest silence of a watch. Bookmarks come every 60 to 75 s, but none before the first event of a kind since the
server started: so silence does not prove that the connection is dead, and all objects are listed to find out."""

SHORT_WATCH_S = 10.0
"""Watches are meant to last minutes: one that ends sooner is a sign of a server in trouble, so the next one waits a
little."""

FIRST_BACKOFF_S = 0.8
LONGEST_BACKOFF_S = 30.0
"""Waits after failures double from the first to the longest (client-go's reflector has the same figures)."""

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 300.0
"""A change that cannot be passed on now is retried after waits that double, from the first to the longest."""

UNSERVED = frozenset({404, 501})
"""Answers that say that a server does not have a kind: 404 from kube-apiserver, 501 by HTTP itself (RFC 9110)."""

FORBIDDEN = frozenset({403})
"""Answers that say that we may not read a kind. A server checks that first: it says so of kinds that it lacks, too."""

UNSERVED_S = 300.0
"""How often to look for a kind that the server does not serve, or does not let us read: turning it on takes a restart
of the server, or an admin."""

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


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """Which objects of a kind are in a cache, and what is kept of each."""

    field_selector: str = ""
    older: Sequence[type[T]] = ()
    """Older versions of the kind, which decode to the same. The first version that the server serves is read."""
    optional: bool = False
    """Whether the server may lack the kind, as it may with `older` versions. Then there are no objects, and it is asked
    again every UNSERVED_S. For any other kind that is an error."""
    on_listed: Callable[[bool], None] | None = None
    """Given for a kind that we can do without: the server may lack it or refuse to let us read it, and then there are
    no objects. Called after each list with whether the kind was read."""
    transform: Callable[[T], T] = lambda item: item
    """Returns what is kept of an object as it is read, under the same key and version."""
    stand_in: StandIn[T] | None = None
    """What is kept of an object that cannot be read (see reading); None: its last state."""
    unread_is_gone: bool = False
    """Whether nothing is kept of it, in place of its last state."""

    @property
    def absent(self) -> frozenset[int]:
        """Statuses of answers after which there are no objects; any other refusal is an error."""
        if self.on_listed is not None:
            return UNSERVED | FORBIDDEN
        return UNSERVED if self.optional or self.older else frozenset()


class Reflector(Generic[T]):
    """All objects of a kind that a field selector names, as the server last reported them.

    `on_change(old, new)` is called from the reflector's thread, one call at a time, in the server's order: old is None
    for a new object, new is None for a deleted one. After a broken watch a fresh list is compared with the cache, so
    that nothing is missed; several changes of one object may then arrive as one.

    An object in trouble affects no other. If `on_change` fails for a change, that is set aside: the cache keeps the
    state that was passed on last, and the change is passed on again after longer and longer waits, or as part of the
    object's next one. `set_aside` is called with it first; an exception from that fails the list or the watch. Each is
    logged once per version.

    After a list, all deletions are passed on first, then the objects that `first` picks by their old and new state,
    then the others, by key.

    Reads are safe from any thread and cost a lock and a lookup.
    """

    def __init__(
        self,
        client: KubeClient,
        kind: type[T],
        *,
        clock: Clock,
        kept: Kept[T] | None = None,
        on_change: Callable[[T | None, T | None], None] | None = None,
        set_aside: Callable[[T], None] = lambda item: None,
        first: Callable[[T | None, T], bool] = lambda old, new: False,
        rng: random.Random | None = None,
    ) -> None:
        kept = kept or Kept()
        self._client, self._clock = client, clock
        self._kind = kind  # the version that is served; only the reflector's thread changes it
        self._versions = (kind, *kept.older)
        self._absent, self._field_selector = kept.absent, kept.field_selector
        self._on_change, self._set_aside, self._first = on_change, set_aside, first
        self._on_listed = kept.on_listed or (lambda is_read: None)
        self._transform, self._unread_is_gone = kept.transform, kept.unread_is_gone
        self._reader = Reader(self._kept, kept.stand_in)
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._backoff = Backoff(self._rng)
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._sorted: tuple[T, ...] | None = None  # the same; None: they have changed
        self._applying = threading.RLock()  # held while passing on a change, by the reflector's thread or the retries'
        self._trouble: _Trouble[T] = _Trouble()  # under that lock
        self._retrying: threading.Thread | None = None  # under that lock, too
        self._watch: Watch[T] | None = None
        self._version = ""  # last version seen by the watch; only the reflector's thread touches it
        self._heard_s = clock.monotonic()
        self._freshness = Freshness(clock)
        self._last_error: str | None = None  # only the reflector's thread changes it
        self._synced, self._stopping = threading.Event(), threading.Event()
        self._list_wanted, self._listed = False, threading.Event()  # under the lock, both
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
        with self._applying:
            retrying = self._retrying
        for thread in (self._thread, retrying):
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache, and on_change has been called for all of it."""
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
        """The latest failure of a list, a watch or a change that was passed on; None once a later one has succeeded."""
        return self._last_error

    def troubles(self) -> Mapping[str, str]:
        """Return the keys of the objects that cannot be read, or whose last change is set aside, and why."""
        with self._applying:
            unread = {key: item.reason for key, item in self._trouble.unread.items()}
            return unread | {key: aside.reason for key, aside in self._trouble.aside.items()}

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for the first list at most timeout_s; return whether it is there."""
        return self._clock.sleep_until_set(self._synced, timeout_s)

    def begin_list(self) -> None:
        """Have all objects listed again, as the server has them after this call; wait_listed() waits for that.

        A watch may lag behind by any time. A caller that must not miss anything that is stored by now asks for a list.
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
        """Return all objects, sorted by key: a snapshot that does not change, the same one until an object does."""
        with self._lock:
            if self._sorted is None:
                self._sorted = tuple([self._objects[key] for key in sorted(self._objects)])
            return self._sorted

    def snapshot(self) -> tuple[T, ...]:
        """Return all objects in no order, at the cost of a copy of their references."""
        with self._lock:
            return tuple(self._objects.values())

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
                self._pause(error.retry_after_s)
            except Exception as error:
                # The thread's outermost loop: with a cache that stands still, everything else would decide wrongly.
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
        fresh |= {item.key: item.instead for item in listing.unread if item.instead is not None}
        unread = self._note_all_unread(listing.unread)
        with self._applying, self._lock:
            # If an unreadable object counted as deleted, what it holds would be freed.
            kept = fresh.keys() | (frozenset() if self._unread_is_gone else unread)
            stale = sorted((self._objects.keys() | self._trouble.aside.keys()) - kept)
            early = {key for key, item in fresh.items() if self._first(self._objects.get(key), item)}
        for key in (*stale, *sorted(fresh, key=lambda key: (key not in early, key))):
            self._apply(key, fresh.get(key), unread=key in unread)
        self._on_listed(bool(listing.resource_version))
        self._last_error = None
        self._freshness.listed()
        self._synced.set()
        with self._lock:
            if not self._list_wanted:  # otherwise it was asked for after this list began
                self._listed.set()
        return listing.resource_version or None

    def _kept(self, item: T) -> T:
        """Return what is kept of an object. For a state that was passed on before it is the same value, so that it is
        in memory once although others keep what they were given, even while a list is read again."""
        with self._applying, self._lock:
            known = None if item.key in self._trouble.standing_in else self._objects.get(item.key)
        return known if known is not None and _same(known, item) else self._transform(item)

    def _list_served(self) -> Listing[T]:
        """List the first version that is served; nothing, at no version, when none is."""
        refused = ""
        for kind in self._versions:
            try:
                listing = self._client.list(kind, field_selector=self._field_selector, reader=self._reader)
            except KubeError as error:
                if error.status not in self._absent:
                    raise
                refused = str(error) if error.status in FORBIDDEN else refused
                continue
            self._kind = kind
            return listing
        if not self._synced.is_set() and refused:
            log.warning("may not be read", resource=self._kind.RESOURCE, error=refused, looked_for_every_s=UNSERVED_S)
        elif not self._synced.is_set():
            log.info("not served by this server", resource=self._kind.RESOURCE, looked_for_every_s=UNSERVED_S)
        return Listing((), "")

    def _watch_from(self, version: str) -> None:
        """Watch until stopped or until a list is needed; a broken watch goes on from its last version."""
        while not (self._stopping.is_set() or self._list_wanted):
            began_s, heard_s = self._clock.monotonic(), self._heard_s
            asked_s: float | None = None
            try:
                version = self._follow(version)
            except GoneError:
                raise
            except KubeError as error:
                if error.status in self._absent:
                    raise  # another version may be served, or none any more
                version = self._version or version
                if self._heard_s == heard_s and self._clock.monotonic() - began_s >= SILENCE_S:
                    log.debug("watch was silent, listing again", resource=self._kind.RESOURCE)
                    return
                self._last_error = str(error)
                asked_s = error.retry_after_s
                if not (self._stopping.is_set() or self._list_wanted):
                    log.info("watch broke, resuming", resource=self._kind.RESOURCE, error=str(error))
            is_short = self._clock.monotonic() - began_s < SHORT_WATCH_S and not self._list_wanted
            if is_short or asked_s is not None:
                self._pause(asked_s)

    def _follow(self, version: str) -> str:
        """Read one watch to its end and return the last version seen."""
        self._version = version
        watch = self._client.watch(
            self._kind,
            resource_version=version,
            timeout_s=int(WATCH_TIMEOUT_S * self._rng.uniform(1, 2)),
            read_timeout_s=SILENCE_S,
            field_selector=self._field_selector,
            reader=self._reader,
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
                    self._take_in(event)
                    self._version = event.object.metadata.resource_version or self._version
                self._last_error = None
                self._freshness.heard()
                self._backoff.reset()
            return self._version
        finally:
            self._freshness.closed()
            with self._lock:
                self._watch = None
            watch.close()

    def _take_in(self, event: ObjectChange[T]) -> None:
        item = event.object
        if not isinstance(item, Unread):
            self._apply(item.key, None if event.deleted else item)
        elif event.deleted:
            self._apply(item.key, None)
        else:
            with self._applying:
                self._note_unread(item)
            if item.instead is not None or self._unread_is_gone:
                self._apply(item.key, item.instead, unread=True)

    def _note_all_unread(self, items: Sequence[Unread[T]]) -> frozenset[str]:
        """Record all objects that cannot be read now; return their keys."""
        with self._applying:
            for key in self._trouble.unread.keys() - {item.key for item in items}:
                del self._trouble.unread[key]
            for item in items:
                self._note_unread(item)
            return frozenset(self._trouble.unread)

    def _note_unread(self, item: Unread[T]) -> None:
        known = self._trouble.unread.get(item.key)
        self._trouble.unread[item.key] = item
        if known is None or not _same(known, item):
            log.warning(
                "object cannot be read",
                resource=self._kind.RESOURCE,
                object=item.key or None,
                uid=item.metadata.uid or None,
                version=item.metadata.resource_version or None,
                reason=item.reason,
            )

    def _apply(self, key: str, new: T | None, *, unread: bool = False) -> None:
        with self._applying:
            if not unread:
                self._trouble.unread.pop(key, None)
            change = _Pending(new, unread, 0, 0.0, "")
            before = self._trouble.aside.pop(key, None)
            try:
                self._tell(key, change, before)
            except Exception as error:  # noqa: BLE001 - one object's trouble is its own, and logged there
                self._put_aside(key, change, error, before)
                if new is not None:
                    self._set_aside(new)

    def _tell(self, key: str, change: _Pending[T], before: _Pending[T] | None) -> None:
        """Bring one object up to date in the cache and pass it on; if that raises, the cache stays as it was.

        The deletion of an object that was set aside and never passed on is passed on too: `set_aside` knows of it.
        """
        new = change.new
        with self._lock:
            known = self._objects.get(key)
        old = known if known is not None or before is None or new is not None else before.seen
        stood_in = key in self._trouble.standing_in
        is_known = old is not None and new is not None and _same(old, new) and (change.unread or not stood_in)
        if (old is None and new is None) or (is_known and change.unread):
            return
        self._set(key, new)
        if self._on_change is not None and not is_known:
            try:
                self._on_change(old, new)
            except Exception:
                self._set(key, known)
                raise
        (self._trouble.standing_in.add if change.unread and new is not None else self._trouble.standing_in.discard)(key)

    def _set(self, key: str, item: T | None) -> None:
        with self._lock:
            self._sorted = None
            if item is None:
                self._objects.pop(key, None)
            else:
                self._objects[key] = item

    def _put_aside(self, key: str, change: _Pending[T], error: Exception, before: _Pending[T] | None) -> None:
        tries = 1 if before is None else before.tries + 1
        due_s = self._clock.monotonic() + min(FIRST_RETRY_S * 2 ** min(tries - 1, 30), LONGEST_RETRY_S)
        seen = change.new if change.new is not None or before is None else before.seen
        reason = f"{type(error).__name__}: {error}"
        self._trouble.aside[key] = _Pending(change.new, change.unread, tries, due_s, reason, seen)
        if before is None or before.new is not change.new:
            log.error("change not applied, set aside", resource=self._kind.RESOURCE, object=key, exc_info=error)
        if self._retrying is None and not self._stopping.is_set():
            name = f"retries-{self._kind.RESOURCE}"
            self._retrying = threading.Thread(target=self._retry, name=name, daemon=True)
            self._retrying.start()

    def _retry(self) -> None:
        """Pass on what is set aside when it is due, until nothing is left."""
        while not self._stopping.is_set():
            with self._applying:
                if not self._trouble.aside:
                    self._retrying = None
                    return
                now_s = self._clock.monotonic()
                key, aside = min(self._trouble.aside.items(), key=lambda item: item[1].due_s)
                wait_s = aside.due_s - now_s
                if wait_s <= 0:
                    del self._trouble.aside[key]
                    try:
                        self._tell(key, aside, aside)
                    except Exception as error:  # noqa: BLE001 - it stays set aside, and waits for longer
                        self._put_aside(key, aside, error, aside)
                    continue
            self._clock.sleep_until_set(self._stopping, wait_s)

    def _pause(self, asked_s: float | None = None) -> None:
        """Wait after a failure, and at least as long as the server asked for."""
        self._clock.sleep_until_set(self._stopping, max(self._backoff.next_s(), asked_s or 0.0))


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    """A change that could not be passed on so far."""

    new: T | None
    unread: bool
    """Whether `new` stands in for what cannot be read, or is None because of that."""
    tries: int
    due_s: float
    reason: str
    seen: T | None = None
    """The last state that was passed to `set_aside`, which has to be taken back when the object is gone."""


@dataclass(frozen=True, slots=True)
class _Trouble(Generic[T]):
    """Objects whose newest state was not passed on, by key."""

    aside: dict[str, _Pending[T]] = field(default_factory=dict)
    """Changes that could not be passed on."""
    unread: dict[str, Unread[T]] = field(default_factory=dict)
    """What could not be read."""
    standing_in: set[str] = field(default_factory=set)
    """Those of the unread keys for which a stand-in was passed on."""


def _same(old: T | Unread[T], new: T | Unread[T]) -> bool:
    """Whether two states are the same: by the version, and by the UID for a new object of the same name."""
    return (old.metadata.uid, old.metadata.resource_version) == (new.metadata.uid, new.metadata.resource_version)
