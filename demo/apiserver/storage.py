"""The objects and their history: one counter, one lock, one window of past events.

Every write takes the next resourceVersion of one counter that all kinds share. The window of past events serves three
kinds of reads: a watch from an older version, a list as of an older version, and the further pages of a list. What has
left the window is answered as expired (410), never guessed.

Stored documents are never changed in place.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dracaena.demo.apiserver.deep import release_texts
from dracaena.demo.apiserver.errors import expired, too_large_version
from dracaena.demo.apiserver.resources import KINDS, Kind
from dracaena.demo.apiserver.schema import ordered, structs

# Seconds that a read waits for a resourceVersion from the future, as kube-apiserver does.
FUTURE_VERSION_WAIT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of one object. `encoded` is its JSON."""

    document: dict[str, Any]
    version: int
    encoded: bytes

    def as_item(self) -> bytes:
        """The JSON as an item of a list, where Kubernetes leaves out ``kind`` and ``apiVersion``."""
        head = f'{{"kind":"{self.document["kind"]}","apiVersion":"{self.document["apiVersion"]}",'.encode()
        return b"{" + self.encoded[len(head) :]


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """One write. `before` is None for a creation; `after` of a deletion is the last state, with the deletion's
    version."""

    version: int
    type: str
    kind: Kind
    key: str
    before: Stored | None
    after: Stored


def key_of(namespace: str, name: str) -> str:
    """The storage key inside a kind; lists are in the order of these keys."""
    return f"{namespace}/{name}" if namespace else name


def stamped(document: dict[str, Any], version: int) -> Stored:
    """`document` as it is stored with `version`."""
    return stored_as(document | {"metadata": document["metadata"] | {"resourceVersion": str(version)}}, version)


def stored_as(document: dict[str, Any], version: int) -> Stored:
    """`document` as it is, in the form in which it is sent to clients; for an answer about what is not stored."""
    whole = ordered(structs()[document["kind"]], document)
    return Stored(whole, version, release_texts(msgspec.json.encode(whole)))


class Subscription:
    """The events of one kind from some version on, in order. Made by `ObjectStorage.subscribe`."""

    def __init__(self, limit: int) -> None:
        self._events: deque[StorageEvent] = deque()
        self._condition = threading.Condition()
        self._limit = limit
        self._is_closed = False

    def push(self, event: StorageEvent) -> None:
        """Called by the storage under its lock. A reader that is too far behind is cut off, as by a real server."""
        with self._condition:
            if len(self._events) >= self._limit:
                self._is_closed = True
            else:
                self._events.append(event)
            self._condition.notify()

    def take(self, timeout_s: float) -> list[StorageEvent]:
        """All available events; waits up to `timeout_s` seconds for a first one."""
        with self._condition:
            if not self._events and not self._is_closed:
                self._condition.wait(timeout_s)
            taken = list(self._events)
            self._events.clear()
            return taken

    def is_empty(self) -> bool:
        """True if no event waits to be taken."""
        with self._condition:
            return not self._events

    def is_closed(self) -> bool:
        """True once nothing more will come and everything was taken."""
        with self._condition:
            return self._is_closed and not self._events

    def close(self) -> None:
        """Wake and end the reader."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()


class ObjectStorage:
    """All objects of all kinds. `lock` is re-entrant: hold it over a read that decides a write."""

    def __init__(self, *, window: int, future_wait_s: float = FUTURE_VERSION_WAIT_S) -> None:
        self.lock = threading.RLock()
        self._grown = threading.Condition(self.lock)
        self._future_wait_s = future_wait_s
        self._objects: dict[Kind, dict[str, Stored]] = {kind: {} for kind in KINDS}
        self._events: deque[StorageEvent] = deque()
        self._window = window
        self._forgotten = 0  # the version of the youngest event that has left the window
        self._version = 1  # 0 means "any version" on the wire, so no write ever has it
        self._subscriptions: dict[Kind, set[Subscription]] = {kind: set() for kind in KINDS}
        self._is_closed = False

    @property
    def version(self) -> int:
        """The version of the latest write."""
        with self.lock:
            return self._version

    def get(self, kind: Kind, key: str) -> Stored | None:
        """The present state of one object."""
        with self.lock:
            return self._objects[kind].get(key)

    def put(self, kind: Kind, key: str, document: dict[str, Any]) -> Stored:
        """Create or replace."""
        with self.lock:
            before = self._objects[kind].get(key)
            after = stamped(document, self._version + 1)
            self._objects[kind][key] = after
            self._commit(StorageEvent(after.version, "MODIFIED" if before else "ADDED", kind, key, before, after))
            return after

    def delete(self, kind: Kind, key: str) -> Stored:
        """Remove an object; returns the last state, with the version of the deletion. KeyError if there is none."""
        with self.lock:
            before = self._objects[kind].pop(key)
            after = stamped(before.document, self._version + 1)
            self._commit(StorageEvent(after.version, "DELETED", kind, key, before, after))
            return after

    def _commit(self, event: StorageEvent) -> None:
        self._version = event.version
        self._events.append(event)
        if len(self._events) > self._window:
            self._forgotten = self._events.popleft().version
        for subscription in self._subscriptions[event.kind]:
            subscription.push(event)
        self._grown.notify_all()

    def snapshot(self, kind: Kind, version: int | None = None) -> tuple[int, list[tuple[str, Stored]]]:
        """All objects of a kind in key order, now or as of `version`, with the version that this shows.

        Raises 410 if `version` has left the window.
        """
        with self.lock:
            objects = dict(self._objects[kind])
            shown = self._version if version is None else version
            if shown < self._version:
                self._require(shown)
                for event in reversed(self._events):
                    if event.version <= shown:
                        break
                    if event.kind is kind:
                        _revert(objects, event)
        return shown, sorted(objects.items())

    def _require(self, version: int) -> None:
        if version < self._forgotten:
            raise expired(f"too old resource version: {version} ({self._forgotten + 1})")

    def forget_history(self) -> None:
        """Lose every version before the present one, as a compaction of etcd does. Open watches continue."""
        with self.lock:
            self._events.clear()
            self._forgotten = self._version

    def wait_for(self, version: int) -> None:
        """Return once the counter has reached `version`; 504 if it does not in the time that a real server waits."""
        with self.lock:
            if not self._grown.wait_for(lambda: self._version >= version or self._is_closed, self._future_wait_s):
                raise too_large_version(version, self._version)

    def subscribe(self, kind: Kind, since: int | None) -> tuple[Subscription, int, list[tuple[str, Stored]]]:
        """Follow a kind: with `since` from that version on; without, from the present objects on.

        Returns the subscription, the version at which it starts, and those objects. Raises 410 when `since` is too old.
        """
        subscription = Subscription(self._window)
        with self.lock:
            if since is None:
                version, objects = self.snapshot(kind)
            else:
                self._require(since)
                version, objects = since, []
                for event in self._events:
                    if event.version > since and event.kind is kind:
                        subscription.push(event)
            if self._is_closed:
                subscription.close()
            self._subscriptions[kind].add(subscription)
        return subscription, version, objects

    def unsubscribe(self, kind: Kind, subscription: Subscription) -> None:
        """Stop following."""
        with self.lock:
            self._subscriptions[kind].discard(subscription)

    def close(self) -> None:
        """End every subscription and wait."""
        with self.lock:
            self._is_closed = True
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.close()
            self._grown.notify_all()


def _revert(objects: dict[str, Stored], event: StorageEvent) -> None:
    if event.before is None:
        objects.pop(event.key, None)
    else:
        objects[event.key] = event.before
