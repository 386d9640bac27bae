"""What the journals and records outside of claims have in common on disk: one JSON object with a version and a boot."""

from __future__ import annotations

from typing import TypeVar

import msgspec


class JournalDocument(msgspec.Struct):
    """The fields of every such file."""

    version: int
    boot_id: str


msgspec.json.Decoder(JournalDocument)  # inspected by the thread that imports: see kube.client

T = TypeVar("T")
D = TypeVar("D", bound=JournalDocument)


def encode_record(record: object, version: int) -> bytes:
    """Return the content of a file: its version and the fields of a record. Equal records make equal bytes."""
    document = {"version": version, **msgspec.to_builtins(record, order="deterministic")}
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode_record(data: bytes, kind: type[T], version: int) -> T:
    """Read a record, a dataclass with a `boot_id`. Raises ValueError if it cannot be read, or has another version."""
    read_document(data, JournalDocument, version)
    return read_fields(data, kind)


def read_document(data: bytes, kind: type[D], version: int) -> D:
    """Read a document of a kind. Raises ValueError if it cannot be read, or has another version."""
    document = read_fields(data, kind)
    if document.version != version:
        raise ValueError(f"version {document.version}, expected {version}")
    return document


def read_fields(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Read what a type has of a document, whatever its version. Raises ValueError if it cannot be read."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
