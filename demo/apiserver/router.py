"""Routing: from a request to the call that answers it, and from its outcome to an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from dracaena.demo.apiserver import discovery, meta, openapi
from dracaena.demo.apiserver.bodies import JSON, parse_object, read_plain
from dracaena.demo.apiserver.deletes import Deletes
from dracaena.demo.apiserver.errors import (
    ApiError,
    bad_request,
    method_not_allowed,
    not_found,
    not_implemented,
)
from dracaena.demo.apiserver.lists import ListPage, read_list
from dracaena.demo.apiserver.negotiation import media_type, require_json, table_version
from dracaena.demo.apiserver.patches import APPLY_PATCH, MEDIA_TYPES, MERGE_PATCH
from dracaena.demo.apiserver.paths import DiscoveryPath, ResourcePath, UnknownPathError, parse_path
from dracaena.demo.apiserver.queries import Query, flag, list_options, version_of_get, write_options
from dracaena.demo.apiserver.resources import NAMESPACE
from dracaena.demo.apiserver.scales import scale_of, scaled_by
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.storage import ObjectStorage, Stored
from dracaena.demo.apiserver.tables.forms import table_form
from dracaena.demo.apiserver.watches import WatchSession
from dracaena.demo.apiserver.writes import Target, WriteOutcome, Writes

Document = dict[str, Any]

_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_TEXT: Final = "text/plain; charset=utf-8"
_ROOTS: Final = ("api", "apis")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request, read whole. Header names are in lower case."""

    method: str
    path: str
    query: Query
    headers: dict[str, str]
    body: bytes
    is_gone: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """One answer, whole."""

    code: int
    body: bytes
    media_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerStream:
    """An answer that goes on."""

    lines: Iterator[bytes]
    """The first line, which may be empty, comes when the stream is open: from then on it misses nothing."""


class Router:
    """Answers requests. Raises `ApiError` for refusals, UnknownPathError for paths outside the API."""

    def __init__(
        self,
        storage: ObjectStorage,
        writes: Writes,
        clock: Callable[[], datetime],
        address: str,
        version: str,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._writes = writes
        self._deletes = Deletes(storage, clock)
        self._address = address
        self._version = version  # of Kubernetes

    def answer(self, request: ApiRequest) -> ApiAnswer | AnswerStream:
        """Answer one request."""
        root = request.path.strip("/").partition("/")[0]
        if root not in _ROOTS:
            return self._plain_page(request)
        path = parse_path(request.path)
        accept = request.headers.get("accept", "")
        if isinstance(path, DiscoveryPath):
            require_json(accept)
            if request.method != "GET":
                raise method_not_allowed()
            return _document(200, self._discovery(path))
        table_version(accept)
        return self._resource(request, path)

    def _plain_page(self, request: ApiRequest) -> ApiAnswer:
        if request.path.startswith("/openapi/"):
            return self._schema(request.path, request.headers.get("accept", ""))
        if request.path in _HEALTH or any(request.path.startswith(f"{path}/") for path in _HEALTH):
            return ApiAnswer(200, b"ok", _TEXT)
        if request.path.rstrip("/") == "/version":
            return _document(200, discovery.version(self._version))
        raise UnknownPathError(request.path)

    def _schema(self, path: str, accept: str) -> ApiAnswer:
        older = openapi.older(path, accept, self._version)
        if older is not None:
            return ApiAnswer(200, *older)
        if path.rstrip("/") == "/openapi/v3":
            return _document(200, openapi.index())
        found = openapi.document(path, self._version)
        if found is None:
            raise not_implemented(f"the schema document {path}")
        return _document(200, found)

    def _discovery(self, path: DiscoveryPath) -> Document:
        if path.version:
            return discovery.resources(path.group, path.version)
        if path.group:
            return discovery.group(path.group)
        return discovery.groups() if path.root == "apis" else discovery.core_versions(self._address)

    def _resource(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer | AnswerStream:
        if not path.name:
            return self._collection(request, path)
        if path.subresource == "binding":
            return self._bind(request, path)
        if path.subresource == "scale":
            return self._scale(request, path)
        handlers = {"GET": self._get, "PUT": self._replace, "PATCH": self._patch, "DELETE": self._delete}
        handler = handlers.get(request.method)
        if handler is None or (path.subresource and not _allows(path, request.method)):
            raise method_not_allowed()
        return handler(request, path)

    def _collection(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer | AnswerStream:
        if request.method == "GET":
            return self._list_or_watch(request, path)
        if path.kind.namespaced and not path.namespace:
            raise method_not_allowed()
        if request.method == "POST":
            return self._create(request, path)
        if request.method == "DELETE":
            raise not_implemented("the deletion of all objects of a collection")
        raise method_not_allowed()

    # ---- reads

    def _list_or_watch(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer | AnswerStream:
        options = list_options(path.kind, path.namespace, path.name, request.query, self._version)
        if options.watch:
            options.version_number()
            form = table_form(request.headers.get("accept", ""), request.query)
            session = WatchSession(self._storage, path.kind, options, self._clock, request.is_gone, form)
            return AnswerStream(session.lines())
        return self._page(request, read_list(self._storage, path.kind, options))

    def _get(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer | AnswerStream:
        if flag(request.query, "watch"):
            return self._list_or_watch(request, path)
        self._storage.wait_for(version_of_get(request.query))
        stored = self._storage.get(path.kind, _target(path).key)
        if stored is None:
            raise not_found(path.kind.qualified_resource, path.name)
        return self._object(request, path, stored)

    # ---- answers

    def _object(
        self, request: ApiRequest, path: ResourcePath, stored: Stored, code: int = 200, warnings: Sequence[str] = ()
    ) -> ApiAnswer:
        """One object in the form that the client wants."""
        form = table_form(request.headers.get("accept", ""), request.query)
        body = form.encode_one(path.kind, stored, self._clock()) if form else stored.encoded
        return ApiAnswer(code, body, headers=_warning_headers(warnings))

    def _page(self, request: ApiRequest, page: ListPage) -> ApiAnswer:
        form = table_form(request.headers.get("accept", ""), request.query)
        body = form.encode(page.kind, page.items, page.metadata, self._clock()) if form else page.encode()
        return ApiAnswer(200, body)

    def _written(self, request: ApiRequest, path: ResourcePath, written: WriteOutcome) -> ApiAnswer:
        return self._object(request, path, written.stored, 201 if written.created else 200, written.warnings)

    # ---- writes

    def _create(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        options = write_options(request.query, "CreateOptions")
        raw = _sent(request, path.kind.kind)
        return self._written(request, path, self._writes.create(_target(path), raw, options))

    def _replace(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        options = write_options(request.query, "UpdateOptions")
        raw = _sent(request, path.kind.kind)
        return self._written(request, path, self._writes.replace(_target(path), raw, options))

    def _patch(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        form = media_type(request.headers.get("content-type", ""))
        if form == APPLY_PATCH:
            raise _unreadable_patch(f"the embedded API server does not implement server-side apply ({form})")
        if form not in MEDIA_TYPES:
            raise _unreadable_patch(f"a patch is sent as one of {', '.join(MEDIA_TYPES)}, this one as {form}")
        options = write_options(request.query, "PatchOptions")
        return self._written(request, path, self._writes.patch(_target(path), form, request.body, options))

    def _scale(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        if request.method == "GET":
            stored = self._storage.get(path.kind, _target(path).key)
            if stored is None:
                raise not_found(path.kind.qualified_resource, path.name)
            return _document(200, scale_of(stored.document))
        if request.method == "PUT":
            raise not_implemented("replacing scale: patch it")
        if request.method != "PATCH":
            raise method_not_allowed()
        options = write_options(request.query, "PatchOptions")
        body = scaled_by(media_type(request.headers.get("content-type", "")), request.body, path.name)
        written = self._writes.patch(_target(path), MERGE_PATCH, body, options)
        return _document(200, scale_of(written.stored.document))

    def _delete(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        options = _delete_options(request)
        stored, gone = self._deletes.delete(_target(path), options)
        if gone and not path.kind.returns_deleted:
            answer = _document(200, meta.status_details(path.kind, stored.document))
            return replace(answer, headers=_warning_headers(_deletion_warnings(path, options)))
        return self._object(request, path, stored, warnings=_deletion_warnings(path, options))

    def _bind(self, request: ApiRequest, path: ResourcePath) -> ApiAnswer:
        if request.method != "POST":
            raise method_not_allowed()
        write_options(request.query, "CreateOptions")
        raw = _sent(request, "Binding")
        binding = read_plain(structs()["Binding"], raw, 'Binding in version "v1" cannot be handled as a Binding')
        self._deletes.bind(_target(path), binding)
        success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return _document(201, success)


def _unreadable_patch(why: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", why, {})


def _deletion_warnings(path: ResourcePath, options: Document) -> Sequence[str]:
    if not path.kind.deletion_orphans or "propagationPolicy" in options:
        return ()
    what = f"child pods are preserved by default when {path.kind.plural} are deleted"
    how = "set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
    return (f"{what}; {how}",)


def _warning_headers(warnings: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(("Warning", f"299 - {json.dumps(text)}") for text in warnings)


def _allows(path: ResourcePath, method: str) -> bool:
    verb = {"GET": "get", "PUT": "update", "PATCH": "patch"}.get(method, method)
    return verb in path.kind.subresources[path.subresource]


def _target(path: ResourcePath) -> Target:
    namespace = "" if path.kind is NAMESPACE else path.namespace
    return Target(path.kind, namespace, path.name, path.subresource)


def _sent(request: ApiRequest, kind: str) -> Any:
    """The body of a request about an object of a kind."""
    return parse_object(request.body, media_type(request.headers.get("content-type", "")), kind)


def _delete_options(request: ApiRequest) -> Document:
    """From the body, or else from the query."""
    struct = structs()["DeleteOptions"]
    if request.body:
        raw = _sent(request, "DeleteOptions")
        return read_plain(struct, raw, 'DeleteOptions in version "v1" cannot be handled as a DeleteOptions')
    query = request.query
    raw = {}
    if query.get("gracePeriodSeconds"):
        try:
            raw["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
        except ValueError:
            raise bad_request(f'gracePeriodSeconds is a number, not "{query["gracePeriodSeconds"]}"') from None
    if query.get("propagationPolicy"):
        raw["propagationPolicy"] = query["propagationPolicy"]
    raw |= {name: query[name] for name in ("orphanDependents", "dryRun") if query.get(name)}
    return read_plain(struct, raw, "DeleteOptions")


def _document(code: int, document: Document) -> ApiAnswer:
    return ApiAnswer(code, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())
