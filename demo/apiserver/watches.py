"""Watches: the events of one kind, filtered for one client, as lines of JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from dracaena.demo.apiserver.decode import zero
from dracaena.demo.apiserver.errors import ApiError, not_implemented
from dracaena.demo.apiserver.queries import ListOptions
from dracaena.demo.apiserver.resources import Kind
from dracaena.demo.apiserver.selectors import Selection
from dracaena.demo.apiserver.storage import ObjectStorage, StorageEvent, Stored, Subscription, stamped
from dracaena.demo.apiserver.tables.forms import TableForm

# kube-apiserver ends a watch without timeoutSeconds after 30 to 60 minutes, spread at random.
_DEFAULT_TIMEOUT_S: Final = 1800
BOOKMARK_PERIOD: Final = timedelta(minutes=1)  # kube-apiserver's own period
LAST_BOOKMARK: Final = timedelta(seconds=2)  # before the end of a watch, likewise
# How often an idle watch looks at its clock and whether its client is still there.
_TICK_S: Final = 1.0
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


def _line(event_type: str, encoded: bytes) -> bytes:
    return b'{"type":"' + event_type.encode() + b'","object":' + encoded + b"}\n"


def event_line(
    selection: Selection, event: StorageEvent, encode: Callable[[Stored], bytes] = lambda stored: stored.encoded
) -> bytes | None:
    """One event as a client with `selection` sees it; None if it sees nothing. `encode` writes the object.

    An object that stops matching is DELETED for the client: with its last matching state and the version of the change.
    """
    was = event.before is not None and selection.matches(event.before.document)
    is_now = event.type != "DELETED" and selection.matches(event.after.document)
    if is_now:
        return _line("MODIFIED" if was else "ADDED", encode(event.after))
    if not was:
        return None
    assert event.before is not None
    return _line("DELETED", encode(stamped(event.before.document, event.version)))


def error_line(error: ApiError) -> bytes:
    """A refusal inside a stream that has begun."""
    return _line("ERROR", json.dumps(error.status(), separators=(",", ":")).encode())


def bookmark_line(kind: Kind, version: int, *, ends_initial_events: bool = False) -> bytes:
    """A bookmark: an empty object with a version."""
    document: dict[str, Any] = {"kind": kind.kind, "apiVersion": kind.api_version} | zero(kind.struct)
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if ends_initial_events:
        metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
    return _line("BOOKMARK", json.dumps(document | {"metadata": metadata}, separators=(",", ":")).encode())


class WatchSession:
    """One client's watch. `lines` ends at the timeout, when the storage closes, or when `is_gone` says so."""

    def __init__(
        self,
        storage: ObjectStorage,
        kind: Kind,
        options: ListOptions,
        clock: Callable[[], datetime],
        is_gone: Callable[[], bool],
        form: TableForm | None = None,
    ) -> None:
        if form and options.bookmarks:
            raise not_implemented("bookmarks in a watch of tables")
        self._form = form
        self._has_columns = False  # a table of this watch had them
        self._storage = storage
        self._kind = kind
        self._options = options
        self._clock = clock
        self._is_gone = is_gone
        timeout_s = options.timeout_s or _DEFAULT_TIMEOUT_S * (1 + random.random())  # noqa: S311 - spread, no secret
        self._end = clock() + timedelta(seconds=timeout_s)
        self._next_bookmark = self._bookmark_after(clock())

    def lines(self) -> Iterator[bytes]:
        """The stream; b"" once it is open, and from time to time so that the caller notices if the client has gone."""
        asked = self._options.version_number()
        wants_state = self._options.initial_events if self._options.initial_events is not None else not asked
        try:
            if asked and self._options.initial_events:
                self._storage.wait_for(asked)
            subscription, version, objects = self._storage.subscribe(
                self._kind, None if wants_state else (asked or self._storage.version)
            )
        except ApiError as error:
            yield error_line(error)
            return
        try:
            yield b""
            yield from self._initial(version, objects)
            yield from self._follow(subscription)
        finally:
            self._storage.unsubscribe(self._kind, subscription)

    def _initial(self, version: int, objects: list[tuple[str, Stored]]) -> Iterator[bytes]:
        for _, stored in objects:
            if self._options.selection.matches(stored.document):
                yield _line("ADDED", self._encode(stored))
        if self._options.initial_events and self._options.bookmarks:
            yield bookmark_line(self._kind, version, ends_initial_events=True)

    def _encode(self, stored: Stored) -> bytes:
        if self._form is None:
            return stored.encoded
        is_first, self._has_columns = not self._has_columns, True
        return self._form.encode_one(self._kind, stored, self._clock(), has_columns=is_first)

    def _follow(self, subscription: Subscription) -> Iterator[bytes]:
        while not subscription.is_closed():
            if self._options.bookmarks and self._clock() >= self._next_bookmark:
                yield self._bookmark(subscription)
            left_s = (self._end - self._clock()).total_seconds()
            if left_s <= 0:
                return
            events = subscription.take(min(_TICK_S, left_s))
            lines = (event_line(self._options.selection, event, self._encode) for event in events)
            yield b"".join(line for line in lines if line)
            if not events and self._is_gone():
                return

    def _bookmark(self, subscription: Subscription) -> bytes:
        """A bookmark of the present version, unless it would overtake waiting events."""
        with self._storage.lock:
            if not subscription.is_empty():
                return b""
            version = self._storage.version
        self._next_bookmark = self._bookmark_after(self._clock())
        return bookmark_line(self._kind, version)

    def _bookmark_after(self, now: datetime) -> datetime:
        """One per period, and one shortly before the end; a watch that is too short for it gets none."""
        last = self._end - LAST_BOOKMARK
        period = now + BOOKMARK_PERIOD
        return last if now < last < period else period
