"""The checker's own eyes: lists and watches of four kinds, put into one order by resourceVersion.

Versions of all kinds come from one counter (etcd's revision), so states of different kinds have an order. A watch tells
what it has seen, not up to where it has seen everything; so marker objects are written now and then, one of each kind:
when each watch has shown its marker, nothing older can come any more.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from e2e.api import Api
from e2e.bulk import Connection, lines
from e2e.soak.events import Event, What

PATHS: Final = {
    "pods": "/api/v1/pods",
    "resourceclaims": "/apis/resource.k8s.io/v1/resourceclaims",
    "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
    "nodes": "/api/v1/nodes",
}
MARKER: Final = "soak-marker"
_GPUS = {"name": "gpus", "exactly": {"deviceClassName": "gpu.dracaena.dev"}}
MARKERS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "pods": (
        "/api/v1/namespaces/default/pods",
        {"spec": {"schedulingGates": [{"name": "soak/never"}], "containers": [{"name": "main", "image": "none"}]}},
    ),
    "resourceclaims": (
        "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
        {"spec": {"devices": {"requests": [_GPUS]}}},
    ),
    "resourceslices": (
        PATHS["resourceslices"],
        {
            "spec": {
                "driver": "marker.example.com",
                "pool": {"name": MARKER, "generation": 1, "resourceSliceCount": 1},
                "allNodes": True,
            }
        },
    ),
    "nodes": (PATHS["nodes"], {"spec": {"unschedulable": True}}),
}
"""Collection and object: none of them is of any use to anybody."""

MARKED_S: Final = 5.0
"""For the watches to show a marker; else the next one is waited for."""

RETRY_S: Final = 0.3


class Following:
    """Watches inside start() and stop(); take() gives what is complete."""

    def __init__(self, api: Callable[[], Api], connect: Callable[[], Connection], now_s: Callable[[], float]) -> None:
        self._api = api
        self._now_s = now_s
        self._ended = threading.Event()
        self._moved = threading.Condition()
        self._waiting: list[Event] = []
        self._streams = {kind: _Stream(kind, connect, self) for kind in PATHS}
        self._marks = 0

    def start(self) -> None:
        """Make the markers and begin to watch."""
        for kind, (path, document) in MARKERS.items():
            self._api().create(path, {**_type(kind), "metadata": {"name": MARKER}, **document})
        for stream in self._streams.values():
            threading.Thread(target=stream.run, args=(self._ended,), daemon=True).start()

    def stop(self) -> None:
        """End all watches."""
        self._ended.set()
        for stream in self._streams.values():
            stream.cut()

    def take(self) -> list[Event] | None:
        """Return all events that nothing older can follow, in order; None when the server does not answer."""
        self._marks += 1
        wanted: dict[str, int] = {}
        for kind, (path, _) in MARKERS.items():
            answer = self._api().send(
                "PATCH",
                f"{path}/{MARKER}",
                {"metadata": {"annotations": {"soak/mark": str(self._marks)}}},
                "application/merge-patch+json",
            )
            if answer.status != 200:
                return None
            wanted[kind] = int(answer.document["metadata"]["resourceVersion"])
        ends_s = time.monotonic() + MARKED_S
        with self._moved:
            while any(self._streams[kind].position < version for kind, version in wanted.items()):
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    return None
                self._moved.wait(left_s)
            safe = min(wanted.values())
            ready = sorted((event for event in self._waiting if event.version <= safe), key=lambda event: event.version)
            self._waiting = [event for event in self._waiting if event.version > safe]
        return ready

    def add(self, stream: _Stream, events: list[Event], position: int) -> None:
        """Take in what a stream saw; it is complete up to a position."""
        with self._moved:
            self._waiting += [event for event in events if event.object["metadata"]["name"] != MARKER]
            stream.position = max(stream.position, position)
            self._moved.notify_all()

    def now_s(self) -> float:
        """Return the time that events are stamped with."""
        return self._now_s()


class _Stream:
    """One kind."""

    def __init__(self, kind: str, connect: Callable[[], Connection], owner: Following) -> None:
        self.kind = kind
        self.position = 0
        self._connect = connect
        self._connection: Connection | None = None
        self._owner = owner
        self._last: dict[str, Event] = {}

    def cut(self) -> None:
        if self._connection is not None:
            self._connection.cut()

    def run(self, ended: threading.Event) -> None:
        version = ""
        while not ended.is_set():
            try:
                version = self._watch(version or self._list())
            except _TooOldError:
                version = ""
            except (OSError, http.client.HTTPException, ValueError, AttributeError):
                ended.wait(RETRY_S)
                version = str(self.position) if self.position else ""

    def _list(self) -> str:
        connection = self._connection = self._connect()
        try:
            response = connection.open_watch(PATHS[self.kind])
            listing = json.loads(response.read())
        finally:
            connection.close()
        position = int(listing["metadata"]["resourceVersion"])
        now_s = self._owner.now_s()
        fresh = [
            Event(self.kind, What.IS, item, int(item["metadata"]["resourceVersion"]), now_s)
            for item in listing["items"]
        ]
        events = self._compare({event.key: event for event in fresh}, position, now_s)
        self._last = {event.key: event for event in fresh}
        self._owner.add(self, events, position)
        return str(position)

    def _compare(self, fresh: Mapping[str, Event], position: int, now_s: float) -> list[Event]:
        """Return what a list tells: for what changed meanwhile, first that nothing is known from its last state on."""
        events = []
        for key, last in self._last.items():
            now = fresh.get(key)
            if now is None or now.version != last.version:
                events.append(Event(self.kind, What.UNKNOWN, last.object, last.version, now_s))
            if now is None:
                events.append(Event(self.kind, What.GONE, last.object, position, now_s))
        events += [event for key, event in fresh.items() if event.version != self._version_of(key)]
        return events

    def _version_of(self, key: str) -> int:
        return self._last[key].version if key in self._last else -1

    def _watch(self, version: str) -> str:
        connection = self._connection = self._connect()
        try:
            response = connection.open_watch(
                f"{PATHS[self.kind]}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=600"
            )
            for line in lines(response):
                version = self._take(json.loads(line)) or version
        finally:
            connection.close()
        return version

    def _take(self, change: Any) -> str:
        item = change["object"]
        if change["type"] == "ERROR":
            raise _TooOldError(item.get("message", ""))
        version = item["metadata"]["resourceVersion"]
        if change["type"] == "BOOKMARK":
            self._owner.add(self, [], int(version))
            return str(version)
        gone = change["type"] == "DELETED"
        what = What.GONE if gone else What.IS
        event = Event(self.kind, what, item, int(version), self._owner.now_s())
        if gone:
            self._last.pop(event.key, None)
        else:
            self._last[event.key] = event
        self._owner.add(self, [event], event.version)
        return str(version)


class _TooOldError(Exception):
    """The server does not remember the version any more: list again."""


def _type(kind: str) -> dict[str, str]:
    names = {"pods": "Pod", "nodes": "Node", "resourceclaims": "ResourceClaim", "resourceslices": "ResourceSlice"}
    return {"apiVersion": "v1" if kind in ("pods", "nodes") else "resource.k8s.io/v1", "kind": names[kind]}
