"""What a client wants instead of objects, by the headers and query of its request; and the document that it gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from dracaena.demo.apiserver.errors import bad_request
from dracaena.demo.apiserver.negotiation import table_version
from dracaena.demo.apiserver.queries import Query
from dracaena.demo.apiserver.resources import Kind
from dracaena.demo.apiserver.storage import Stored

Document = dict[str, Any]

_INCLUDED: Final = ("", "Metadata", "Object", "None")


@dataclass(frozen=True, slots=True)
class TableForm:
    """A requested table: the version of its own API, and how much of each object is included in its row."""

    version: str
    included: str = ""

    def encode(self, kind: Kind, objects: Sequence[Stored], metadata: Document, now: datetime) -> bytes:
        """A table of objects of one kind as of `now`, with its columns."""
        columns = [asdict(column) for column in kind.table.columns]
        return self._table(kind, objects, metadata, columns, now)

    def encode_one(self, kind: Kind, stored: Stored, now: datetime, *, has_columns: bool = True) -> bytes:
        """A table of one object, whose version it has. The later ones of a watch have no columns."""
        metadata = {"resourceVersion": stored.document["metadata"].get("resourceVersion", "")}
        return (
            self.encode(kind, [stored], metadata, now)
            if has_columns
            else self._table(kind, [stored], metadata, None, now)
        )

    def _table(
        self, kind: Kind, objects: Sequence[Stored], metadata: Document, columns: list[Document] | None, now: datetime
    ) -> bytes:
        head = {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.version}",
            "metadata": metadata,
            "columnDefinitions": columns,
        }
        rows = b",".join(self._row(kind, stored, now) for stored in objects)
        return _json(head)[:-1] + b',"rows":[' + rows + b"]}"

    def _row(self, kind: Kind, stored: Stored, now: datetime) -> bytes:
        table = kind.table
        conditions = table.conditions(stored.document)
        row = {"cells": table.cells(stored.document, now)} | ({"conditions": conditions} if conditions else {})
        return _json(row)[:-1] + b',"object":' + self._object(stored) + b"}"

    def _object(self, stored: Stored) -> bytes:
        if self.included == "None":
            return b"null"
        if self.included == "Object":
            return stored.encoded
        head = {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{self.version}"}
        return msgspec.json.encode(head | {"metadata": stored.document["metadata"]})


def table_form(accept: str, query: Query) -> TableForm | None:
    """The table that a request asks for, or None for plain objects. 400 for a query that no table has.

    406 if the client accepts neither.
    """
    version = table_version(accept)
    if not version:
        return None
    included = query.get("includeObject", "")
    if included not in _INCLUDED:
        raise bad_request(f"includeObject is Metadata, Object, None or empty, not {included!r}")
    return TableForm(version, included)


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
