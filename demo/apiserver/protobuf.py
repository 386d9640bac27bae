"""Bodies in Kubernetes' protobuf, which kubectl's ``create deployment``, ``create job`` and ``create namespace`` send.

A body is ``k8s`` and a zero byte, then runtime.Unknown: its kind, and the message of that kind. A message becomes the
document that the same client would have sent as JSON: Go writes zeros of fields that are not pointers, and JSON leaves
them out. Answers stay JSON, which those clients also accept.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from dracaena.demo.apiserver.schema import ListOf, MapOf, Scalar, SchemaField, Struct, Type, structs
from dracaena.demo.apiserver.shapes.numbers import NUMBERS
from dracaena.demo.apiserver.times import write_time

Document = dict[str, Any]
Wire = int | bytes

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
KINDS: Final = ("Deployment", "Job", "Namespace")
"""The kinds that can be read: those that kubectl creates by itself and sends like this."""

_MAGIC: Final = b"k8s\0"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS: Final = 64
_TYPE_META, _RAW = 1, 2  # of runtime.Unknown; in its TypeMeta 1 is apiVersion and 2 is kind
_IS_STRING: Final = 1  # IntOrString.type


def read_protobuf(body: bytes, kind: str) -> Document:
    """The document of a body for a request about `kind`. ValueError with a short reason if it is not one."""
    if not body.startswith(_MAGIC):
        raise ValueError("does not start with the mark of Kubernetes' protobuf")
    unknown = dict(_fields(body.removeprefix(_MAGIC)))
    types = dict(_fields(_bytes(unknown.get(_TYPE_META, b""))))
    head = {"kind": _text(types.get(2, b"")), "apiVersion": _text(types.get(1, b""))}
    return head | _struct(structs()[kind], _bytes(unknown.get(_RAW, b"")))


@cache
def _names() -> dict[str, dict[int, str]]:
    """Type → number → field."""
    known: dict[str, dict[int, str]] = {}
    current: dict[int, str] = {}
    for word in NUMBERS.split():
        name, is_field, number = word.partition("=")
        if is_field:
            current[int(number)] = name
        else:
            current = known[name] = {}
    return known


def _fields(message: bytes) -> Iterator[tuple[int, Wire]]:
    """Field numbers and values in the order in which they come. ValueError for what is not a message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, form = tag >> 3, tag & 7
        if form == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if form not in (_FIXED64, _BYTES, _FIXED32):
            raise ValueError(f"wire type {form} of field {number}")
        length, at = _varint(message, at) if form == _BYTES else ({_FIXED64: 8, _FIXED32: 4}[form], at)
        if at + length > len(message):
            raise ValueError(f"field {number} ends too early")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _VARINT_BITS // 7 + 1]):
        value |= (byte & 0x7F) << 7 * place
        if byte <= 0x7F:
            return value, at + place + 1
    raise ValueError("a number that does not end")


def _struct(struct: Struct, message: bytes) -> Document:
    names, document = _names()[struct.name], Document()
    for number, wire in _fields(message):
        name = names.get(number)
        if name is None:
            raise ValueError(f"{struct.name} has no field {number}")
        known = struct.fields.get(name)
        if known is None:  # not served: the document's reader refuses it by name, if there is something in it
            document |= {name: True} if wire else {}
        else:
            _take(document, known, wire)
    return document


def _take(document: Document, known: SchemaField, wire: Wire) -> None:
    """Add one field to a document, as JSON would have it."""
    match known.type:
        case ListOf(item):
            document.setdefault(known.name, []).append(_value(item, wire))
        case MapOf(item):
            entry = dict(_fields(_bytes(wire)))
            document.setdefault(known.name, {})[_text(entry.get(1, b""))] = _value(item, entry.get(2, b""))
        case _:
            value = _value(known.type, wire)
            if known.pointer or value not in ("", 0, False, None, {}):
                document[known.name] = value


def _value(of: Type, wire: Wire) -> Any:
    if isinstance(of, Struct):
        return _struct(of, _bytes(wire))
    assert isinstance(of, Scalar), of
    match of.name:
        case "string":
            return _text(wire)
        case "bool":
            return bool(_number(wire))
        case "int32" | "int64":
            return _number(wire)
        case "quantity":
            return _text(dict(_fields(_bytes(wire))).get(1, b""))
        case "intorstring":
            parts = dict(_fields(_bytes(wire)))
            is_string = parts.get(1, 0) == _IS_STRING
            return _text(parts.get(3, b"")) if is_string else _number(parts.get(2, 0))
        case "time":
            return _time(_number(dict(_fields(_bytes(wire))).get(1, 0)))
    raise ValueError(f"a field of type {of.name}")


def _time(seconds: int) -> str | None:
    """A Timestamp in seconds since 1970; 0 stands for none."""
    try:
        return write_time(datetime.fromtimestamp(seconds, UTC)) if seconds else None
    except (ValueError, OverflowError, OSError):  # by how far it is out of range
        raise ValueError(f"a time of {seconds} s after 1970 is out of range") from None


def _bytes(wire: Wire) -> bytes:
    if not isinstance(wire, bytes):
        raise ValueError("a number where a message stands")
    return wire


def _text(wire: Wire) -> str:
    return _bytes(wire).decode()


def _number(wire: Wire) -> int:
    """A signed number: those below zero are sent in 64 bits."""
    if not isinstance(wire, int):
        raise ValueError("a message where a number stands")
    return wire - (1 << _VARINT_BITS) if wire >= 1 << 63 else wire
