"""Typed reads and small writes of the kinds that we use (dracaena.api.objects)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from dracaena.api.go_json import encode_as_go
from dracaena.api.objects import KubeObject
from dracaena.kube.errors import UNDECODABLE, KubeError, error_for
from dracaena.kube.transport import Stream, Transport

T = TypeVar("T", bound=KubeObject)
A = TypeVar("A")

WRITE_TIMEOUT_S = 10
"""The server drops a write that takes longer (`?timeout=`), so that it cannot land long after we gave it up."""

PAGE_SIZE = 500
"""Objects a list page: kubectl's own chunk size, about 3 MB of ResourceSlices."""

MERGE_PATCH = "application/merge-patch+json"

log = structlog.get_logger()


class _Raws(msgspec.Struct):
    """A list whose items are decoded one by one, so that one bad object does not hide the others."""

    class Meta(msgspec.Struct, rename="camel"):
        resource_version: str = ""
        continue_: str = msgspec.field(default="", name="continue")

    metadata: Meta
    items: list[msgspec.Raw] = []


class _Named(msgspec.Struct):
    class Meta(msgspec.Struct):
        name: str
        namespace: str = ""

    metadata: Meta


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct):
    class Meta(msgspec.Struct, rename="camel"):
        resource_version: str = ""

    metadata: Meta


class _Status(msgspec.Struct):
    code: int = 500


def _kinds(base: type[KubeObject]) -> Iterator[type[KubeObject]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


# msgspec looks into a type when it is first decoded, and two threads that do so at once crash the process (0.22.0).
# Several caches begin in the same moment, so all types are looked into here, by the one thread that imports.
for _shape in (*_kinds(KubeObject), _Raws, _Named, _RawEvent, _Versioned, _Status):
    msgspec.json.Decoder(_shape)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of one list, in the server's order, and the resourceVersion to watch from."""

    items: tuple[T, ...]
    resource_version: str
    undecodable: frozenset[str] = frozenset()
    """Keys (`namespace/name` or `name`) of objects that are there and are not of the API's shape."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch is this far; nothing changed."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One event of a watch. For a deletion `object` is the last state."""

    deleted: bool
    object: T


class Watch(Generic[T]):
    """An open watch. Iterate in one thread; close() from any."""

    def __init__(self, kind: type[T], stream: Stream, call: str) -> None:
        self._kind = kind
        self._stream = stream
        self._call = call

    def __iter__(self) -> Iterator[Change[T] | Bookmark]:
        """Yield changes and bookmarks until the server ends the watch.

        Raises GoneError when the version is too old, another KubeError when the server or the connection fails.
        """
        for line in self._stream.lines():
            event = _parse(_RawEvent, line, self._call)
            if event.type == "BOOKMARK":
                bookmark = _parse(_Versioned, event.object, self._call)
                yield Bookmark(bookmark.metadata.resource_version)
            elif event.type == "ERROR":
                status = _parse(_Status, event.object, self._call)
                raise error_for(self._call, status.code, bytes(event.object))
            else:
                decoded = _decode(self._kind, event.object)
                if decoded is not None:
                    yield Change(deleted=event.type == "DELETED", object=decoded)

    def close(self) -> None:
        """End the watch; the iteration raises or stops."""
        self._stream.close()


class KubeClient:
    """Reads and writes of one API server. Safe from many threads; all methods raise KubeError.

    Each write is sent inside `writing()`, which may refuse it by raising a KubeError when it is entered.
    """

    def __init__(
        self, transport: Transport, *, writing: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._transport = transport
        self._writing = writing

    def guarded(self, writing: Callable[[], AbstractContextManager[None]]) -> KubeClient:
        """Return a client over the same connection whose writes are sent inside `writing()`."""
        return KubeClient(self._transport, writing=writing)

    def get(self, kind: type[T], name: str, *, namespace: str = "") -> T:
        """Read one object."""
        return _one(kind, self._transport.request("GET", _path(kind, namespace, name)))

    def get_raw(self, path: str) -> bytes:
        """Read what is no object of the API, `/version` for example."""
        return self._transport.request("GET", path)

    def list(
        self, kind: type[T], *, namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> Listing[T]:
        """Read all objects, of one namespace or of all, in pages. One that does not decode is only named."""
        query = _selectors(field_selector, label_selector) | {"limit": str(PAGE_SIZE)}
        items: list[T] = []
        undecodable: set[str] = set()
        while True:
            path = _path(kind, namespace)
            page = _parse(_Raws, self._transport.request("GET", path, query=query), f"GET {path}")
            for raw in page.items:
                item = _decode(kind, raw)
                if item is None:
                    undecodable.update(_key(raw))
                else:
                    items.append(item)
            if not page.metadata.continue_:
                return Listing(tuple(items), page.metadata.resource_version, frozenset(undecodable))
            query["continue"] = page.metadata.continue_

    def watch(
        self,
        kind: type[T],
        *,
        resource_version: str,
        timeout_s: int,
        read_timeout_s: float,
        field_selector: str = "",
    ) -> Watch[T]:
        """Open a watch over all namespaces from a version; the server ends it after timeout_s."""
        path = _path(kind, "")
        query = _selectors(field_selector, "") | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        stream = self._transport.stream(path, query=query, read_timeout_s=read_timeout_s)
        return Watch(kind, stream, f"WATCH {path}")

    def create(self, kind: type[T], document: Mapping[str, Any], *, namespace: str = "") -> T:
        """Create an object; apiVersion and kind are added."""
        return self._write("POST", kind, _path(kind, namespace), document)

    def replace(self, kind: type[T], document: Mapping[str, Any], *, namespace: str = "") -> T:
        """Replace a whole object that is ours alone; its metadata.resourceVersion guards the write."""
        return self._write("PUT", kind, _path(kind, namespace, document["metadata"]["name"]), document)

    def merge_patch(
        self, kind: type[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """Apply an RFC 7386 patch. With metadata.resourceVersion in it, a changed object is a ConflictError."""
        path = _path(kind, namespace, name, subresource)
        return _one(kind, self._send("PATCH", path, patch, content_type=MERGE_PATCH))

    def create_subresource(
        self, kind: type[KubeObject], name: str, subresource: str, document: Mapping[str, Any], *, namespace: str
    ) -> None:
        """Post to a sub-resource, for example pods/binding; the answer is only a Status."""
        self._send("POST", _path(kind, namespace, name, subresource), document)

    def delete(
        self,
        kind: type[KubeObject],
        name: str,
        *,
        namespace: str = "",
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        """Delete an object, only if it still has this UID and version when they are given."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if given := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = given
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        self._send("DELETE", _path(kind, namespace, name), options)

    def _write(self, method: str, kind: type[T], path: str, document: Mapping[str, Any]) -> T:
        whole = {"apiVersion": kind.API_VERSION, "kind": kind.KIND, **document}
        return _one(kind, self._send(method, path, whole))

    def _send(
        self, method: str, path: str, document: Mapping[str, Any], content_type: str = "application/json"
    ) -> bytes:
        query = {"timeout": f"{WRITE_TIMEOUT_S}s"}
        body = encode_as_go(document)
        with self._writing():
            return self._transport.request(method, path, query=query, body=body, content_type=content_type)


def _path(kind: type[KubeObject], namespace: str, name: str = "", subresource: str = "") -> str:
    root = "/apis/" if "/" in kind.API_VERSION else "/api/"
    scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    tail = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
    return f"{root}{kind.API_VERSION}{scope}/{kind.RESOURCE}{tail}"


def _selectors(field_selector: str, label_selector: str) -> dict[str, str]:
    given = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in given.items() if value}


def _one(kind: type[T], body: bytes) -> T:
    return _parse(kind, body, f"read {kind.KIND}")


def _parse(shape: type[A], raw: bytes | msgspec.Raw, call: str) -> A:
    """Decode what the server must have sent whole; anything else is a KubeError like no answer at all."""
    try:
        if issubclass(shape, KubeObject):
            return shape.from_json(raw)
        return msgspec.json.decode(raw, type=shape)
    except UNDECODABLE as error:
        raise KubeError(call, None, "", f"the answer does not decode: {error}") from error


def _decode(kind: type[T], raw: msgspec.Raw) -> T | None:
    """Decode one object of many; one that is not of the API's shape is named in the log and left out."""
    try:
        return kind.from_json(raw)
    except UNDECODABLE as error:
        log.warning("object does not decode, left out", kind=kind.KIND, problem=str(error), start=bytes(raw)[:200])
        return None


def _key(raw: msgspec.Raw) -> tuple[str, ...]:
    """Return the key of an object that is otherwise unreadable, or nothing when even its name is."""
    try:
        meta = msgspec.json.decode(raw, type=_Named).metadata
    except UNDECODABLE:
        return ()
    return (f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name,)
