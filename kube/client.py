"""Typed reads and small writes of the kinds that we use (dracaena.api.objects, resource_objects)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from dracaena.api import (
    exporter_objects,
    kueue_topology,
    mig_layout,
    objects,
    resource_objects,
    review_objects,
    workload_objects,
)
from dracaena.api.go_json import encode_as_go
from dracaena.api.json_text import elements, set_apart
from dracaena.api.objects import KubeObject
from dracaena.kube.errors import KubeError, error_for
from dracaena.kube.reading import Reader, Unread, name_of
from dracaena.kube.transport import Stream, Transport

T = TypeVar("T", bound=KubeObject)
A = TypeVar("A")

WRITE_TIMEOUT_S = 10
"""The server drops a write that takes longer (`?timeout=`), so that it cannot land long after we gave up on it."""

PAGE_SIZE = 500
"""Objects per page of a list: kubectl's own chunk size, about 3 MB of ResourceSlices."""

PAGE_BYTES = 8 << 20
"""After a page longer than this, fewer objects are asked for: one object may have 1.5 MB, and memory holds a page."""

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

log = structlog.get_logger()


class _Raws(msgspec.Struct):
    """A list whose items are decoded one by one, so that one bad object does not hide the others."""

    class ListMeta(msgspec.Struct, rename="camel"):
        resource_version: str = ""
        continue_: str = msgspec.field(default="", name="continue")

    metadata: ListMeta
    items: list[msgspec.Raw] = []


class _ListHead(msgspec.Struct):
    """A list whose items were set apart."""

    metadata: _Raws.ListMeta


class _Typed(msgspec.Struct):
    """An event whose object was set apart."""

    type: str


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct):
    class ItemMeta(msgspec.Struct, rename="camel"):
        resource_version: str = ""

    metadata: ItemMeta


class _Status(msgspec.Struct):
    code: int = 500


def _kinds(module: ModuleType) -> Iterator[type[KubeObject]]:
    yield from (kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, KubeObject))


# msgspec inspects a type when it is first decoded, and two threads that do so at once crash the process (0.22.0).
# Several caches start at the same moment, so all types are inspected here, by the one thread that imports.
_MODULES = (
    objects,
    resource_objects,
    review_objects,
    exporter_objects,
    mig_layout,
    workload_objects,
    kueue_topology,
)
_KINDS = (kind for module in _MODULES for kind in _kinds(module))
for _shape in (
    *_KINDS,
    _Raws,
    _ListHead,
    _Typed,
    _RawEvent,
    _Versioned,
    _Status,
):
    msgspec.json.Decoder(_shape)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All objects of one list, in the server's order, and the resourceVersion to watch from."""

    items: tuple[T, ...]
    resource_version: str
    unread: tuple[Unread[T], ...] = ()
    """Objects that exist but cannot be read."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has reached this version; nothing changed."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class ObjectChange(Generic[T]):
    """One event of a watch. For a deletion `object` is the last state."""

    deleted: bool
    object: T | Unread[T]


class Watch(Generic[T]):
    """An open watch. Iterate in one thread; close() from any."""

    def __init__(self, kind: type[T], reader: Reader[T], stream: Stream, call: str) -> None:
        self._kind = kind
        self._reader = reader
        self._stream = stream
        self._call = call

    def __iter__(self) -> Iterator[ObjectChange[T] | Bookmark]:
        """Yield changes and bookmarks until the server ends the watch.

        Raises GoneError when the version is too old, another KubeError when the server or the connection fails.
        """
        for line in self._stream.lines():
            event = _event(line, self._call)
            if event.type == "BOOKMARK":
                bookmark = _parse(_Versioned, event.object, self._call)
                yield Bookmark(bookmark.metadata.resource_version)
            elif event.type == "ERROR":
                status = _parse(_Status, event.object, self._call)
                raise error_for(self._call, status.code, bytes(event.object))
            else:
                yield ObjectChange(event.type == "DELETED", _read(self._reader, self._kind, event.object, self._call))

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

    def get_raw(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """Read something that is none of our kinds, such as `/version`."""
        return self._transport.request("GET", path, query=query)

    def list(
        self,
        kind: type[T],
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        reader: Reader[T] | None = None,
    ) -> Listing[T]:
        """Read all objects, of one namespace or of all, in pages. Objects that cannot be read are only named.

        Without a reader (callers that read repeatedly have one), each of them is named in the log. Memory holds what is
        kept of all objects, and one page as text: PAGE_BYTES, or one object if that is longer.
        """
        path, call = _path(kind, namespace), f"GET {_path(kind, namespace)}"
        query = _selectors(field_selector, label_selector)
        logs, reader = reader is None, reader or Reader()
        items: list[T] = []
        unread: list[Unread[T]] = []
        size = PAGE_SIZE
        while True:
            most_bytes = PAGE_BYTES if size > 1 else None
            text = self._transport.read(path, query=query | {"limit": str(size)}, most_bytes=most_bytes)
            if text is None:
                size = max(1, size // 8)
                continue
            if 2 * len(text) <= PAGE_BYTES:
                size = min(2 * size, PAGE_SIZE)
            metadata = _take_page(text, call, kind, reader, items, unread)
            del text  # not while the next page is read: memory holds one
            if not metadata.continue_:
                for item in unread if logs else ():
                    log.warning("cannot be read, left out", resource=kind.RESOURCE, object=item.key, reason=item.reason)
                return Listing(tuple(items), metadata.resource_version, tuple(unread))
            query["continue"] = metadata.continue_

    def watch(
        self,
        kind: type[T],
        *,
        resource_version: str,
        timeout_s: int,
        read_timeout_s: float,
        field_selector: str = "",
        reader: Reader[T] | None = None,
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
        return Watch(kind, reader or Reader(), stream, f"WATCH {path}")

    def create(self, kind: type[T], document: Mapping[str, Any], *, namespace: str = "") -> T:
        """Create an object; apiVersion and kind are added."""
        return self._write("POST", kind, _path(kind, namespace), document)

    def replace(self, kind: type[T], document: Mapping[str, Any], *, namespace: str = "", subresource: str = "") -> T:
        """Replace an object that only we write; its metadata.resourceVersion guards the write."""
        return self._write("PUT", kind, _path(kind, namespace, document["metadata"]["name"], subresource), document)

    def merge_patch(
        self, kind: type[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """Apply an RFC 7386 patch. With metadata.resourceVersion in it, a changed object is a ConflictError."""
        path = _path(kind, namespace, name, subresource)
        return _one(kind, self._send("PATCH", path, patch, content_type=MERGE_PATCH))

    def strategic_patch(
        self, kind: type[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """Apply a patch in Kubernetes' own form, in which lists are merged by their keys."""
        path = _path(kind, namespace, name, subresource)
        return _one(kind, self._send("PATCH", path, patch, content_type=STRATEGIC_PATCH))

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
        propagation_policy: str = "",
    ) -> None:
        """Delete an object, only if it still has this UID and version when they are given.

        `propagation_policy` says what becomes of objects that it owns; by default most kinds have them deleted.
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if given := {key: value for key, value in preconditions.items() if value is not None}:
            options["preconditions"] = given
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation_policy:
            options["propagationPolicy"] = propagation_policy
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
    call = f"read {kind.KIND}"
    try:
        return kind.from_json(body)
    except Exception as error:  # whatever the object causes: the writer has to know that the answer said nothing
        raise _unreadable(call, error) from error


def _parse(shape: type[A], raw: bytes | msgspec.Raw, call: str) -> A:
    """Decode a complete answer of the server; anything else is a KubeError, as if there had been no answer."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except Exception as error:  # whatever the answer causes, even RecursionError: the caller asks again
        raise _unreadable(call, error) from error


def _page(text: bytes, call: str) -> _Raws:
    """Decode a page of a list. A single object may keep it from being decoded as a whole, for example by its depth."""
    try:
        return msgspec.json.decode(text, type=_Raws)
    except Exception as error:  # whatever one of its objects causes: the others have to be read
        left, taken = set_apart(text, ["items"])
        if len(taken) != 1:
            raise _unreadable(call, error) from error
    metadata = _parse(_ListHead, left, call).metadata
    return _Raws(metadata, [msgspec.Raw(item) for item in elements(taken[0])])


def _take_page(
    text: bytes, call: str, kind: type[T], reader: Reader[T], items: list[T], unread: list[Unread[T]]
) -> _Raws.ListMeta:
    """Read the objects of a page into the lists; nothing that is returned or kept refers to the text."""
    page = _page(text, call)
    for raw in page.items:
        item = _read(reader, kind, raw, call)
        if isinstance(item, Unread):
            unread.append(item)
        else:
            items.append(item)
    return page.metadata


def _event(line: bytes, call: str) -> _RawEvent:
    """Decode an event of a watch, whatever its object looks like."""
    try:
        return msgspec.json.decode(line, type=_RawEvent)
    except Exception as error:  # as with a list: the type of the event can be read without the object
        left, taken = set_apart(line, ["object"])
        if len(taken) != 1:
            raise _unreadable(call, error) from error
    return _RawEvent(_parse(_Typed, left, call).type, msgspec.Raw(taken[0]))


def _read(reader: Reader[T], kind: type[T], raw: msgspec.Raw, call: str) -> T | Unread[T]:
    try:
        return reader.read(kind, raw)
    except Exception as error:  # from the stand-in: going on without this object would not be safe
        name = name_of(bytes(raw)).name
        raise KubeError(call, None, "", f"{kind.KIND} {name} cannot be read, nor what it holds: {error}") from error


def _unreadable(call: str, error: Exception) -> KubeError:
    return KubeError(call, None, "", f"the answer does not decode: {error}")
