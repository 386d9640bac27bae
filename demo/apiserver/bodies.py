"""Request bodies: text to JSON values, and JSON values to canonical documents of a kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from json import scanner
from typing import Any, Final

from dracaena.demo.apiserver.decode import AS_SENT, UnreadableError, decode
from dracaena.demo.apiserver.deep import OPAQUE_FIELDS, hold_texts
from dracaena.demo.apiserver.errors import Qualified, bad_request, invalid, not_implemented, unsupported_media_type
from dracaena.demo.apiserver.fields import invalid as invalid_field
from dracaena.demo.apiserver.protobuf import KINDS as PROTOBUF_KINDS
from dracaena.demo.apiserver.protobuf import PROTOBUF, read_protobuf
from dracaena.demo.apiserver.resources import Kind
from dracaena.demo.apiserver.schema import Struct

Document = dict[str, Any]

JSON: Final = "application/json"
STRICT, WARN, IGNORE = "Strict", "Warn", "Ignore"


# Where opaque JSON can be: only then is it worth keeping the text of each object.
_OPAQUE_FIELDS: Final = tuple(f'"{name}"'.encode() for name in OPAQUE_FIELDS)


class Parsed(dict[str, Any]):
    """A JSON object that remembers which of its keys were given twice and, where it may matter, its text."""

    duplicates: tuple[str, ...] = ()
    text: str | None = None


def _object(pairs: Iterable[tuple[str, Any]]) -> Parsed:
    listed = list(pairs)
    parsed = Parsed(listed)
    if len(parsed) != len(listed):
        names = [name for name, _ in listed]
        parsed.duplicates = tuple(name for at, name in enumerate(names) if name in names[:at])
    return parsed


class _SpanDecoder(json.JSONDecoder):
    """The standard decoder, but each object keeps the text that it was read from."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object)
        plain = json.decoder.JSONObject  # type: ignore[attr-defined]  # the hook of the decoder itself, not in its stub

        def parse(at: tuple[str, int], *rest: Any) -> tuple[Any, int]:
            value, end = plain(at, *rest)
            value.text = at[0][at[1] - 1 : end]
            return value, end

        self.parse_object = parse
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # as json.decoder does, not in its stub


def parse_json(body: bytes) -> Any:
    """A JSON value; ValueError with a short reason."""
    try:
        body = hold_texts(body)
        if any(name in body for name in _OPAQUE_FIELDS):
            return _SpanDecoder().decode(body.decode())
        return json.loads(body, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8: {error.reason}") from None


def parse_object(body: bytes, media_type: str, kind: str) -> Any:
    """The body of a create or update. 415 for media types that this server cannot read, 400 for broken text."""
    if media_type == PROTOBUF and kind in PROTOBUF_KINDS:
        try:
            return read_protobuf(body, kind)
        except ValueError as error:
            raise bad_request(f"the object provided is unrecognized (must be of type {kind}): {error}") from None
    if media_type not in ("", JSON):
        raise unsupported_media_type(
            f"the embedded API server reads bodies as {JSON}, this one was sent as {media_type}"
        )
    try:
        return parse_json(body)
    except ValueError as error:
        raise bad_request(f"the body cannot be read as {kind}: {error}") from None


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A canonical document and the warnings to send along."""

    document: Document
    warnings: tuple[str, ...] = ()


def _drop_repeated_owners(metadata: Document) -> list[str]:
    owners = metadata.get("ownerReferences") or []
    repeated = [owner["uid"] for at, owner in enumerate(owners) if owner in owners[:at]]
    if not repeated:
        return []
    metadata["ownerReferences"] = [owner for at, owner in enumerate(owners) if owner not in owners[:at]]
    return [f"metadata.ownerReferences names owners twice, which is dropped: {', '.join(repeated)}"]


def read_object(kind: Kind, raw: Any, validation: str, now: datetime, version: str) -> DecodedBody:
    """The object of a create or update: canonical, defaulted, unknown fields dealt with as `validation` asks.

    `version`: of Kubernetes; it decides which fields are known.
    """
    _check_type(kind, raw)
    try:
        return _read(kind, raw, validation, now, AS_SENT, version)
    except UnreadableError as error:
        label = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        raise bad_request(f"{label}: {error}") from None


def _read(kind: Kind, raw: Any, validation: str, now: datetime, opaque: str, version: str) -> DecodedBody:
    read = decode(kind.struct, raw, api_version=kind.api_version, kind=kind.kind, opaque=opaque, version=version)
    if read.strict_errors and validation == STRICT:
        raise UnreadableError(f"strict decoding error: {', '.join(read.strict_errors)}")
    kind.fill(read.document, now, version)
    warnings = _drop_repeated_owners(read.document["metadata"])
    return DecodedBody(read.document, (*(read.strict_errors if validation == WARN else ()), *warnings))


def _check_type(kind: Kind, raw: Any) -> None:
    if not isinstance(raw, dict):
        return
    named, version = raw.get("kind"), raw.get("apiVersion")
    if named in (None, "") and version in (None, ""):
        return
    if named == kind.kind and version == kind.api_version:
        return
    if named == kind.kind and str(version).rpartition("/")[0] == kind.group:
        raise not_implemented(f"reading {kind.kind} of {version}")
    raise bad_request(f"expected a {kind.kind} of {kind.api_version}, not a {named} of {version}")


def read_patched(kind: Kind, patched: Any, validation: str, now: datetime, opaque: str, version: str) -> DecodedBody:
    """The object that a patch made. What is wrong with it is reported against the patch, as 422."""
    try:
        return _read(kind, patched, validation, now, opaque, version)
    except UnreadableError as error:
        raise invalid(Qualified("", ""), "", [invalid_field("patch", patched, str(error))]) from None


def read_plain(struct: Struct, raw: Any, label: str) -> Document:
    """A body that is not a stored object (delete options, a binding); unknown fields are dropped."""
    if isinstance(raw, dict):
        if raw.get("kind") not in (None, "", struct.name):
            raise bad_request(f"{label}: expected {struct.name}, not {raw['kind']}")
        raw = {name: value for name, value in raw.items() if name not in ("kind", "apiVersion")}
    try:
        return decode(struct, raw).document
    except UnreadableError as error:
        raise bad_request(f"{label}: {error}") from None
