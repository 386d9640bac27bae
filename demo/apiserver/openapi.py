"""OpenAPI v3: what kubectl asks for before it sends objects, and what ``kubectl explain`` prints.

It is made from the tables of fields, so it describes what is served and no more; it has no descriptions. kubectl reads
from it whether the server checks fields by itself (``fieldValidation``) and how lists are merged.

Of OpenAPI v2 there is only the head, which says so. kubectl asks for it when a manifest names a kind that version 3
does not describe, and then says which kind that is.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from dracaena.demo.apiserver.bodies import JSON
from dracaena.demo.apiserver.patches import MEDIA_TYPES
from dracaena.demo.apiserver.resources import GROUP_VERSIONS, KINDS, Kind
from dracaena.demo.apiserver.schema import ListOf, MapOf, Scalar, SchemaField, Struct, Type
from dracaena.demo.apiserver.version import RELEASES

Document = dict[str, Any]

_ROOT: Final = "/openapi/v3"
_SCALARS: Final[dict[str, Document]] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "time": {"type": "string", "format": "date-time"},
    "intorstring": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "microtime": {"type": "string", "format": "date-time"},
    "raw": {"type": "object"},
}
_V2: Final = "/openapi/v2"
_V2_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_V2_NOTE: Final = "Nothing is described here: see /openapi/v3."
_WRITE_PARAMETERS: Final = ("fieldManager", "fieldValidation")


def _path_of(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def index() -> Document:
    """``/openapi/v3``: where the document of each group and version is."""
    paths = [_path_of(group, version) for group, version in GROUP_VERSIONS]
    return {"paths": {path: {"serverRelativeURL": f"{_ROOT}/{path}"} for path in paths}}


def older(path: str, accept: str, served: str) -> tuple[bytes, str] | None:
    """The OpenAPI v2 document with its media type, protobuf if that is requested; None for any other `path`."""
    if path.rstrip("/") != _V2:
        return None
    info = {"title": "Kubernetes", "version": RELEASES[served], "description": _V2_NOTE}
    if "proto-openapi.spec.v2" not in accept:
        return json.dumps({"swagger": "2.0", "info": info, "paths": {}}).encode(), JSON
    # gnostic's OpenAPIv2.proto: swagger is field 1 of Document and info field 2, whose fields 1 to 3 are these.
    head = b"".join(_field_of_bytes(number, text.encode()) for number, text in enumerate(info.values(), start=1))
    return _field_of_bytes(1, b"2.0") + _field_of_bytes(2, head), _V2_PROTOBUF


def _field_of_bytes(number: int, value: bytes) -> bytes:
    """A protobuf field of a text or message, short enough for one byte of length."""
    assert value.isascii()
    assert len(value) <= 0x7F
    return bytes([number << 3 | 2, len(value)]) + value


def document(path: str, served: str) -> Document | None:
    """The document at `path` (``/openapi/v3/apis/GROUP/VERSION``), or None when there is no such.

    `served`: the version of Kubernetes.
    """
    for group, version in GROUP_VERSIONS:
        if path.rstrip("/") == f"{_ROOT}/{_path_of(group, version)}":
            return _document(group, version, served)
    return None


@cache
def _document(group: str, version: str, served: str) -> Document:
    kinds = [kind for kind in KINDS if (kind.group, kind.version) == (group, version)]
    schemas: dict[str, Document] = {}
    for kind in kinds:
        _add_schema(kind.struct, schemas, served)
        schemas[kind.kind] = _kind_schema(kind, served)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": RELEASES[served]},
        "paths": {path: operations for kind in kinds for path, operations in _paths(kind)},
        "components": {"schemas": schemas},
    }


def _gvk(kind: Kind) -> Document:
    return {"group": kind.group, "kind": kind.kind, "version": kind.version}


def _paths(kind: Kind) -> list[tuple[str, Document]]:
    place = "namespaces/{namespace}/" if kind.namespaced else ""
    root = f"/{_path_of(kind.group, kind.version)}/{place}{kind.plural}"
    writes = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _WRITE_PARAMETERS]
    operation = {"x-kubernetes-group-version-kind": _gvk(kind), "responses": {"200": {"description": "OK"}}}
    patch = operation | {
        "x-kubernetes-action": "patch",
        "parameters": [*writes, {"name": "force", "in": "query", "schema": {"type": "boolean"}}],
        "requestBody": {"content": {media: {"schema": {"type": "object"}} for media in MEDIA_TYPES}},
    }
    one = {
        "get": operation | {"x-kubernetes-action": "get"},
        "put": operation | {"x-kubernetes-action": "put", "parameters": writes},
        "patch": patch,
        "delete": operation | {"x-kubernetes-action": "delete"},
    }
    many = {
        "get": operation | {"x-kubernetes-action": "list"},
        "post": operation | {"x-kubernetes-action": "post", "parameters": writes},
    }
    return [(root, many), (f"{root}/{{name}}", one)]


def _kind_schema(kind: Kind, served: str) -> Document:
    head = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema = _struct_schema(kind.struct, served)
    return schema | {
        "properties": head | schema["properties"],
        "x-kubernetes-group-version-kind": [_gvk(kind)],
    }


def _add_schema(struct: Struct, schemas: dict[str, Document], served: str) -> None:
    if struct.name in schemas:
        return
    schemas[struct.name] = _struct_schema(struct, served)
    for known in _fields(struct, served):
        inner = known.type
        while isinstance(inner, ListOf | MapOf):
            inner = inner.item
        if isinstance(inner, Struct):
            _add_schema(inner, schemas, served)


def _fields(struct: Struct, served: str) -> list[SchemaField]:
    return [known for known in struct.fields.values() if known.is_in(served)]


def _struct_schema(struct: Struct, served: str) -> Document:
    return {"type": "object", "properties": {known.name: _field_schema(known) for known in _fields(struct, served)}}


def _field_schema(known: SchemaField) -> Document:
    schema = dict(_type_schema(known.type))
    if known.merge:
        schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if known.retain_keys else "merge"
    if known.merge_key:
        schema["x-kubernetes-patch-merge-key"] = known.merge_key
    if known.default:
        schema["default"] = json.loads(known.default)
    return schema


def _type_schema(type_: Type) -> Document:
    match type_:
        case Scalar(name):
            return _SCALARS[name]
        case ListOf(item):
            return {"type": "array", "items": _type_schema(item)}
        case MapOf(item):
            return {"type": "object", "additionalProperties": _type_schema(item)}
        case Struct(name):
            return {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}
