"""An API server without sockets: lists, watches and claim patches, for the controller that runs in the same process.

What it is given it hands on as the same bytes and never looks into, so that only the controller pays for bad input.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import islice
from typing import Any, Final

import msgspec

from dracaena.kube.errors import error_for
from dracaena.kube.transport import Stream, Transport

_END: Final = None
_EXPIRED: Final = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}'


@dataclass(frozen=True, slots=True)
class _Object:
    """An object as it is stored: only metadata is ever looked into."""

    kind: str
    metadata: Mapping[str, Any]
    spec: bytes
    status: bytes

    def body(self) -> bytes:
        kind, metadata = self.kind.encode(), msgspec.json.encode(self.metadata)
        return b'{"kind":"%s","metadata":%s,"spec":%s,"status":%s}' % (kind, metadata, self.spec, self.status)


class _Patch(msgspec.Struct):
    metadata: dict[str, Any] = {}
    status: msgspec.Raw = msgspec.Raw(b"")


class _QueueStream(Stream):
    """A watch: lines until it is closed."""

    def __init__(self) -> None:
        self.pending: queue.SimpleQueue[tuple[str, _Object] | bytes | None] = queue.SimpleQueue()

    def lines(self) -> Iterator[bytes]:
        while (event := self.pending.get()) is not _END:
            if isinstance(event, bytes):
                yield event
            else:
                yield b'{"type":"%s","object":%s}' % (event[0].encode(), event[1].body())

    def close(self) -> None:
        self.pending.put(_END)


class InMemoryApi(Transport):
    """Keeps objects by collection (`resourceclaims`) and key. `allocated(key)` is called when a claim is allocated.

    Safe from many threads. No object's body is copied before somebody reads it.
    """

    def __init__(self, allocated: Callable[[str], None]) -> None:
        self._allocated = allocated
        self._lock = threading.Lock()
        self._version = 1
        self._objects: dict[str, dict[str, _Object]] = {}
        self._streams: dict[str, list[_QueueStream]] = {}

    def put(
        self, resource: str, kind: str, metadata: Mapping[str, Any], spec: bytes = b"{}", status: bytes = b"{}"
    ) -> None:
        """Store an object as the server would: with UID, version and time."""
        with self._lock:
            self._version += 1
            made = {
                "uid": f"00000000-0000-4000-8000-{self._version:012}",
                "resourceVersion": str(self._version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **metadata,
            }
            self._store(resource, _Object(kind, made, spec, status))

    def delete(self, resource: str, key: str) -> None:
        """Remove an object, if it is there."""
        with self._lock:
            stored = self._objects.get(resource, {}).pop(key, None)
            if stored is not None:
                self._version += 1
                self._tell(resource, "DELETED", stored)

    @property
    def watched(self) -> frozenset[str]:
        """The collections that are watched: each was listed before."""
        with self._lock:
            return frozenset(self._streams)

    def expire(self) -> None:
        """End all watches as kube-apiserver does when their versions are too old: everything has to be listed anew."""
        with self._lock:
            streams, self._streams = self._streams, {}
        for stream in (each for several in streams.values() for each in several):
            stream.pending.put(_EXPIRED)
            stream.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Answer one request of the controller."""
        if path == "/version":
            return b'{"major":"1","minor":"36"}'
        resource, key, subresource = _parts(path)
        if method == "PATCH" and resource == "resourceclaims":
            return self._patch(key, body or b"{}", subresource)
        if method != "GET":
            return body or b"{}"  # an Event: nobody reads it
        with self._lock:
            if key:
                return self._existing(method, path, resource, key).body()
            page = self._page(resource, query or {}, None)
            assert page is not None
            return page

    def read(self, path: str, *, query: Mapping[str, str], most_bytes: int | None) -> bytes | None:
        """Answer a list, as far as most_bytes."""
        with self._lock:
            return self._page(_parts(path)[0], query, most_bytes)

    def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        """Open a watch that tells everything after the version that it names."""
        resource, _, _ = _parts(path)
        made = _QueueStream()
        with self._lock:
            if int(query["resourceVersion"]) < self._version:
                for stored in self._objects.get(resource, {}).values():
                    made.pending.put(("MODIFIED", stored))
            self._streams.setdefault(resource, []).append(made)
        return made

    def _page(self, resource: str, query: Mapping[str, str], most_bytes: int | None) -> bytes | None:
        """Return one page of a list, None when it is longer than most_bytes. In memory it stands once."""
        found = self._objects.get(resource, {})
        first, size = int(query.get("continue", "0")), int(query.get("limit", "500"))
        more = str(first + size) if first + size < len(found) else ""
        page = BytesIO()
        meta = {"resourceVersion": str(self._version), "continue": more}
        page.write(b'{"metadata":%s,"items":[' % msgspec.json.encode(meta))
        for place, item in enumerate(islice(found.values(), first, first + size)):
            page.write(b"," if place else b"")
            page.write(item.body())
            if most_bytes is not None and page.tell() > most_bytes:
                return None
        page.write(b"]}")
        return page.getvalue()

    def _patch(self, key: str, body: bytes, subresource: str) -> bytes:
        patch = msgspec.json.decode(body, type=_Patch)
        with self._lock:
            old = self._existing("PATCH", key, "resourceclaims", key)
            expected = patch.metadata.pop("resourceVersion", None)
            if expected not in (None, old.metadata["resourceVersion"]):
                raise error_for(f"PATCH {key}", 409, b'{"reason":"Conflict"}')
            self._version += 1
            metadata = {**old.metadata, "resourceVersion": str(self._version)}
            for name, value in patch.metadata.items():
                is_map = isinstance(value, dict) and isinstance(metadata.get(name), dict)
                metadata[name] = {**metadata[name], **value} if is_map else value
            status = bytes(patch.status) if subresource == "status" and bytes(patch.status) else old.status
            made = replace(old, metadata=metadata, status=status)
            self._store("resourceclaims", made)
        if subresource == "status" and b'"results"' in bytes(patch.status):
            self._allocated(key)
        return made.body()

    def _existing(self, method: str, path: str, resource: str, key: str) -> _Object:
        stored = self._objects.get(resource, {}).get(key)
        if stored is None:
            raise error_for(f"{method} {path}", 404, b'{"reason":"NotFound"}')
        return stored

    def _store(self, resource: str, made: _Object) -> None:
        objects, key = self._objects.setdefault(resource, {}), _key(made.metadata)
        self._tell(resource, "MODIFIED" if key in objects else "ADDED", made)
        objects[key] = made

    def _tell(self, resource: str, kind: str, made: _Object) -> None:
        for stream in self._streams.get(resource, ()):
            stream.pending.put((kind, made))


def _parts(path: str) -> tuple[str, str, str]:
    """Split a path into collection, key and subresource; the last two may be empty."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "")[:3]
    return resource, f"{namespace}/{name}" if namespace and name else name, subresource


def _key(metadata: Mapping[str, Any]) -> str:
    return f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else str(metadata["name"])
