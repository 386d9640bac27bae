"""Decoding: from any JSON value to the canonical document of a kind, along its table of fields.

The canonical document is what the server stores and answers with: known fields only, in the order of the table, zero
values left out where Kubernetes leaves them out, quantities and times in their one form. Decoding a canonical document
gives the same document again. Stored documents are never changed in place; every change builds a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

from dracaena.api.quantity import read_quantity
from dracaena.demo.apiserver.deep import held_text
from dracaena.demo.apiserver.errors import not_implemented
from dracaena.demo.apiserver.schema import ListOf, MapOf, Scalar, SchemaField, Struct, Type
from dracaena.demo.apiserver.times import canonical_time
from dracaena.demo.apiserver.version import NEWEST
from dracaena.validation.findings import show

_RANGES: Final = {"int32": 2**31, "int64": 2**63}


class OpaqueJson(dict[str, Any]):
    """Opaque JSON of an object, together with the text that a real server would keep for it.

    kube-apiserver stores opaque parameters as bytes and compares them as bytes. So a claim whose parameters were sent
    with blanks or with unsorted keys can no longer be patched: the patch rewrites the text, and the spec counts as
    changed. Two of these are equal if their texts are; what clients read back is the value.
    """

    text: str

    def __init__(self, value: dict[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueJson) and self.text == other.text

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # as every dict: it can change


def go_text(value: Any, *, sort_keys: bool) -> str:
    """JSON as Go's encoder writes it: compact, with the characters that HTML would read escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=sort_keys)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


# How the text of opaque values comes about: as the client sent it, or rewritten by a JSON patch, a merge patch (which
# sorts only the keys that it brings, not those that were there), or a patch that passes through maps (which sorts all).
AS_SENT, COMPACT, MERGED, SORTED = "as sent", "compact", "merged", "sorted"


class UnreadableError(Exception):
    """A value that cannot be read as its field's type."""


@dataclass(slots=True)
class Decoded:
    """A canonical document and what strict reading objects to, in document order (``unknown field "spec.x"``)."""

    document: dict[str, Any]
    strict_errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """Where the decoder is: for messages only."""

    kind: str
    path: str = ""
    strict: list[str] = field(default_factory=list)
    opaque: str = AS_SENT
    version: str = NEWEST
    fills: bool = True
    """Whether what is absent gets its default."""

    def child(self, name: str) -> _Place:
        return self.item(f".{name}" if self.path else name)

    def item(self, mark: str) -> _Place:
        return replace(self, path=self.path + mark)


def decode(
    struct: Struct,
    raw: Any,
    *,
    api_version: str = "",
    kind: str = "",
    opaque: str = AS_SENT,
    version: str = NEWEST,
) -> Decoded:
    """Read `raw` as the `struct` of a version of Kubernetes. ``apiVersion`` and ``kind`` lead the document when given,
    whatever `raw` says.

    `opaque` says which text opaque values get: `AS_SENT` (what `raw` remembers, see `bodies`; YAML is
    `SORTED`), `COMPACT`, `MERGED` or `SORTED`.

    Raises UnreadableError for a value of the wrong type, `ApiError` 501 for a field that this server has no behaviour
    for.
    """
    place = _Place(kind or struct.name, opaque=opaque, version=version)
    head = {"kind": kind, "apiVersion": api_version} if kind else {}
    if not isinstance(raw, dict):
        raise _mismatch(raw, "an object", place)
    return Decoded(head | _struct(struct, raw, place, passed=("kind", "apiVersion") if kind else ()), place.strict)


def zero(struct: Struct) -> dict[str, Any]:
    """The canonical document with nothing in it, not even defaults."""
    return _struct(struct, {}, _Place(struct.name, fills=False))


def _struct(struct: Struct, raw: Any, place: _Place, passed: tuple[str, ...] = ()) -> dict[str, Any]:
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise _mismatch(raw, "an object", place)
    read: dict[str, Any] = {}
    for name in getattr(raw, "duplicates", ()):
        place.strict.append(f'duplicate field "{place.child(name).path}"')
    for name, value in raw.items():
        known = struct.fields.get(name)
        where = place.child(name)
        if known and known.is_in(place.version):
            read[name] = _field(known, value, where)
        elif name in passed:
            continue
        elif name in struct.unserved:
            if value is not None:
                raise not_implemented(f'the field "{where.path}" of {place.kind}')
        else:
            place.strict.append(f'unknown field "{where.path}"')
    document, filled_in = {}, _filled_in(struct)
    for name, known in struct.fields.items():
        if name in read:
            value = read[name]
        elif name in filled_in:
            value = _absent(known, place.child(name))
        else:
            continue
        if value is None and known.default and place.fills:
            value = _field(known, json.loads(known.default), place)
        if value is not None or _writes_null(known):
            document[name] = value
    return document


@cache
def _filled_in(struct: Struct) -> frozenset[str]:
    """The fields that a document has even where nothing was sent: as zero, with a default or as null."""
    nowhere = _Place(struct.name)
    return frozenset(
        name
        for name, known in struct.fields.items()
        if known.default or _writes_null(known) or _absent(known, nowhere) is not None
    )


def _writes_null(known: SchemaField) -> bool:
    if known.pointer or isinstance(known.type, ListOf | MapOf):
        return known.always
    if isinstance(known.type, Scalar):
        return known.always or (known.type.name in ("time", "microtime") and not known.omit_zero)
    return False


def _absent(known: SchemaField, place: _Place) -> Any:
    if known.pointer or isinstance(known.type, ListOf | MapOf):
        return None
    return _field(known, None, place)


def _field(known: SchemaField, raw: Any, place: _Place) -> Any:
    """The canonical value, or None for what is left out (or written as null)."""
    if raw is None and (known.pointer or isinstance(known.type, ListOf | MapOf)):
        return None
    value = _value(known.type, raw, place)
    if known.pointer:
        return value
    match known.type:
        case ListOf() | MapOf():
            return value or None
        case Struct():
            return None if known.omit_zero and not value else value
        case Scalar("time" | "microtime" | "raw"):
            return value
        case _:
            return value if value or known.always else None


def _value(type_: Type, raw: Any, place: _Place) -> Any:
    match type_:
        case Struct():
            return _struct(type_, raw, place)
        case ListOf(item):
            if not isinstance(raw, list):
                raise _mismatch(raw, "a list", place)
            return [_value(item, one, place.item(f"[{index}]")) for index, one in enumerate(raw)]
        case MapOf(item):
            if not isinstance(raw, dict):
                raise _mismatch(raw, "a map", place)
            return {key: _value(item, raw[key], place.item(f".{key}")) for key in sorted(raw)}
        case Scalar(name):
            return _SCALARS[name](name, raw, place)


def _string(_: str, raw: Any, place: _Place) -> str:
    if raw is None:
        return ""
    if not isinstance(raw, str):
        raise _mismatch(raw, "a text", place)
    return raw


def _boolean(_: str, raw: Any, place: _Place) -> bool:
    if raw is None:
        return False
    if not isinstance(raw, bool):
        raise _mismatch(raw, "true or false", place)
    return raw


def _integer(name: str, raw: Any, place: _Place) -> int:
    if raw is None:
        return 0
    limit = _RANGES[name]
    if not isinstance(raw, int) or isinstance(raw, bool) or not -limit <= raw < limit:
        raise _mismatch(raw, f"a number ({name})", place)
    return raw


def _quantity(_: str, raw: Any, place: _Place) -> str:
    if raw is None:
        return "0"
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise _mismatch(raw, "a quantity", place)
    try:
        return str(read_quantity(raw if isinstance(raw, str) else json.dumps(raw)).quantity)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def _int_or_string(_: str, raw: Any, place: _Place) -> int | str:
    if raw is None:
        return 0
    if isinstance(raw, bool) or not isinstance(raw, str | int):
        raise _mismatch(raw, "a whole number or a text", place)
    return raw


def _time(name: str, raw: Any, place: _Place) -> str | None:
    if raw is None:
        return None
    if not isinstance(raw, str):
        raise _mismatch(raw, "a time", place)
    try:
        return canonical_time(raw, name)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def _opaque(name: str, raw: Any, place: _Place) -> Any:
    if not isinstance(raw, dict):
        return raw
    held = held_text(raw)
    if held is not None:
        return OpaqueJson(raw, held)
    sent = getattr(raw, "text", None)
    if place.opaque == AS_SENT and sent is not None:
        return OpaqueJson(raw, sent)
    keeps_order = place.opaque == COMPACT or (place.opaque == MERGED and isinstance(raw, OpaqueJson))
    text = go_text(raw, sort_keys=not keeps_order)
    return OpaqueJson(json.loads(text), text)


_SCALARS: Final[dict[str, Callable[[str, Any, _Place], Any]]] = {
    "string": _string,
    "bool": _boolean,
    "int32": _integer,
    "int64": _integer,
    "quantity": _quantity,
    "intorstring": _int_or_string,
    "time": _time,
    "microtime": _time,
    "raw": _opaque,
}


def _mismatch(raw: Any, expected: str, place: _Place) -> UnreadableError:
    return UnreadableError(f"{place.path or place.kind}: expected {expected}, not {show(raw)}")
