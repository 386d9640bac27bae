"""Types of the API as read from the tables in ``shapes``: what decoding and patching walk along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from dracaena.demo.apiserver.shapes import TABLES

SCALARS: Final = frozenset({"string", "int32", "int64", "bool", "quantity", "intorstring", "time", "microtime"})
OPAQUE: Final = "raw"
"""Any JSON."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A leaf: one of `SCALARS`, or `OPAQUE`."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    item: Type


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with string keys."""

    item: Type


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a struct, with its rules for decoding and merging."""

    name: str
    type: Type
    pointer: bool = False
    always: bool = False  # written even when zero
    omit_zero: bool = False  # a struct or time that is left out when empty
    merge: bool = False  # strategic merge patch merges the list …
    merge_key: str = ""  # … by this key (none: a set of scalars)
    retain_keys: bool = False
    default: str = ""  # JSON; empty: none
    only: str = ""  # the only version of Kubernetes that has the field; empty: all have it

    def is_in(self, version: str) -> bool:
        """Whether a version of Kubernetes has the field."""
        return self.only in ("", version)


@dataclass(slots=True, eq=False)
class Struct:
    """An object type. Filled after creation because types refer to each other."""

    name: str
    fields: dict[str, SchemaField] = field(default_factory=dict, repr=False)
    unserved: set[str] = field(default_factory=set, repr=False)


Type = Scalar | ListOf | MapOf | Struct


def _paragraphs() -> Iterator[tuple[str, list[str]]]:
    head, body = "", list[str]()
    for table in TABLES:
        for line in table.strip("\n").split("\n"):
            if line.startswith(" "):
                body.append(line.strip())
                continue
            if head:
                yield head, body
            head, body = line, []
    yield head, body


@cache
def structs() -> dict[str, Struct]:
    """Every struct of the tables, by name."""
    known: dict[str, Struct] = {}
    paragraphs = list(_paragraphs())
    for name, _ in paragraphs:
        known[name] = Struct(name)
    for name, body in paragraphs:
        struct = known[name]
        for line in body:
            first, *rest = line.split()
            if first == "unserved":
                struct.unserved.update(rest)
            else:
                struct.fields[first] = _field(first, rest, known)
    return known


def _field(name: str, words: list[str], known: dict[str, Struct]) -> SchemaField:
    type_text, *flags = words
    options = dict(flag.partition("=")[::2] for flag in flags)
    pointer = type_text.startswith("*")
    return SchemaField(
        name,
        _type(type_text.removeprefix("*"), known),
        pointer=pointer,
        always="!" in options,
        omit_zero="omitzero" in options,
        merge="merge" in options,
        merge_key=options.get("merge", ""),
        retain_keys="retainKeys" in options,
        default=options.get("default", ""),
        only=options.get("only", ""),
    )


def ordered(of: Type, value: Any) -> Any:
    """`value` with the fields of its structs in the order of the tables, which is Go's, and the keys of maps sorted."""
    if isinstance(of, ListOf) and isinstance(value, list):
        return [ordered(of.item, part) for part in value]
    if not isinstance(value, dict):
        return value
    if isinstance(of, MapOf):
        return {key: ordered(of.item, value[key]) for key in sorted(value)}
    if not isinstance(of, Struct):
        return value
    known = {name: ordered(field.type, value[name]) for name, field in of.fields.items() if name in value}
    return {name: part for name, part in value.items() if name not in known} | known


def _type(text: str, known: dict[str, Struct]) -> Type:
    if text.startswith("[]"):
        return ListOf(_type(text[2:], known))
    if text.startswith("{}"):
        return MapOf(_type(text[2:], known))
    if text in SCALARS or text == OPAQUE:
        return Scalar(text)
    return known[text]
