"""Sets of fields of an object, the unit of ownership in server-side apply.

A set is a frozenset of paths; a path is a tuple of elements spelled as on the wire: ``f:name`` (field or map key),
``k:{"name":"c"}`` (item of a keyed list), ``v:"x"`` (member of a set). Members may be inner nodes too, which the wire
form marks with ``"."``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from dracaena.demo.apiserver.schema import ListOf, MapOf, Scalar, SchemaField, Struct, Type

Path = tuple[str, ...]
FieldSet = frozenset[Path]

EMPTY: Final[FieldSet] = frozenset()
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Shape:
    """A type together with the merge rule of the field that holds it."""

    type: Type
    keys: tuple[str, ...] = ()
    is_set: bool = False
    atomic: bool = False

    @classmethod
    def of(cls, known: SchemaField) -> Shape:
        """The shape of a field's value."""
        return cls(known.type, known.keys, known.is_set, known.atomic)

    def is_leaf(self) -> bool:
        """True when one owner holds the whole value."""
        match self.type:
            case Struct(atomic=atomic):
                return atomic or self.atomic
            case MapOf():
                return self.atomic
            case ListOf():
                return not (self.keys or self.is_set)
            case _:
                return True

    def child(self, name: str) -> Shape | None:
        """The shape of field or map key `name`; None if the type has no such field."""
        match self.type:
            case Struct(fields=fields):
                known = fields.get(name)
                return Shape.of(known) if known else None
            case MapOf(item):
                return Shape(item)
            case _:
                return None

    def item(self) -> Shape:
        """The shape of a list's items."""
        assert isinstance(self.type, ListOf)
        return Shape(self.type.item)


def element(shape: Shape, item: Any) -> str:
    """The path element of one item of a keyed list or set."""
    if shape.is_set or not isinstance(item, dict):
        return f"v:{json.dumps(item, separators=(',', ':'), ensure_ascii=False)}"
    inner = shape.item().type
    assert isinstance(inner, Struct)
    values = {}
    for key in sorted(shape.keys):
        value = item.get(key, inner.fields[key].default)
        if value is not None:
            values[key] = value
    return f"k:{json.dumps(values, separators=(',', ':'), ensure_ascii=False)}"


def children(shape: Shape, value: Any) -> Iterator[tuple[str, Shape, Any]]:
    """The parts of a value that is not a leaf, each with its path element and shape. Unknown fields are left out."""
    if isinstance(value, dict):
        for name, part in value.items():
            inner = shape.child(name)
            if inner:
                yield f"f:{name}", inner, part
    elif isinstance(value, list):
        for part in value:
            yield element(shape, part), shape.item(), part


def fields_given(shape: Shape, value: Any, at: Path = ()) -> Iterator[Path]:
    """The fields that an applied configuration claims: its leaves, its list items, its empty maps and map keys."""
    if shape.is_leaf():
        yield at
        return
    for name, inner, part in children(shape, value):
        path = (*at, name)
        yield from fields_given(inner, part, path)
        is_empty = part is None or part == {}
        if isinstance(value, list) or is_empty or isinstance(shape.type, MapOf):
            yield path


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from one object to another."""

    added: FieldSet
    removed: FieldSet
    modified: FieldSet

    def without(self, prefixes: Iterable[Path]) -> Difference:
        """The same, but for everything at or below `prefixes`."""
        hidden = tuple(prefixes)
        return Difference(*(excluding(part, hidden) for part in (self.added, self.removed, self.modified)))


def excluding(fields: FieldSet, prefixes: tuple[Path, ...]) -> FieldSet:
    """`fields` without those at or below one of `prefixes`."""
    return frozenset(path for path in fields if not any(path[: len(prefix)] == prefix for prefix in prefixes))


def compare(shape: Shape, old: Any, new: Any) -> Difference:
    """The fields added, removed and modified on the way from `old` to `new`, inner nodes included."""
    added: set[Path] = set()
    removed: set[Path] = set()
    modified: set[Path] = set()
    _compare(shape, old, new, (), (added, removed, modified))
    return Difference(frozenset(added), frozenset(removed), frozenset(modified))


def _compare(shape: Shape, old: Any, new: Any, at: Path, out: tuple[set[Path], set[Path], set[Path]]) -> None:
    added, removed, modified = out
    if old is _MISSING:
        added.add(at)
    elif new is _MISSING:
        removed.add(at)
    if shape.is_leaf() or (_is_empty(old) and _is_empty(new)):
        if old is not _MISSING and new is not _MISSING and old != new:
            modified.add(at)
        return
    before = {name: (inner, part) for name, inner, part in children(shape, old)}
    after = {name: (inner, part) for name, inner, part in children(shape, new)}
    for name in before | after:
        inner, _ = before.get(name) or after[name]
        _compare(inner, before.get(name, (None, _MISSING))[1], after.get(name, (None, _MISSING))[1], (*at, name), out)


def _is_empty(value: Any) -> bool:
    return value is _MISSING or value is None or value in ({}, [])


def to_wire(fields: FieldSet) -> dict[str, Any]:
    """``fieldsV1``."""
    tree: dict[str, Any] = {}
    for path in sorted(fields):
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node["."] = {}
    return _tidy(tree)


def _tidy(tree: dict[str, Any]) -> dict[str, Any]:
    if tree.keys() == {"."}:
        return {}
    return {name: {} if name == "." else _tidy(tree[name]) for name in sorted(tree)}


def from_wire(tree: Any) -> FieldSet:
    """The set that a ``fieldsV1`` stands for. ValueError if it is not one."""
    return frozenset(_read(tree, ()))


def _read(tree: Any, at: Path) -> Iterator[Path]:
    if not isinstance(tree, dict):
        raise ValueError(f"fieldsV1 holds {tree!r} where an object belongs")
    if at and (not tree or "." in tree):
        yield at
    for name, inner in tree.items():
        if name == ".":
            continue
        if name[:2] not in ("f:", "k:", "v:", "i:"):
            raise ValueError(f"fieldsV1 holds the key {name!r}")
        yield from _read(inner, (*at, name))


def dotted(path: Path) -> str:
    """A path as messages show it: ``.spec.containers[name="c"].image``."""
    text = ""
    for name in path:
        kind, rest = name[:2], name[2:]
        if kind == "f:":
            text += f".{rest}"
        elif kind == "k:":
            keys = json.loads(rest)
            text += "[" + ",".join(f"{key}={json.dumps(keys[key])}" for key in sorted(keys)) + "]"
        else:
            text += f"[={rest}]"
    return text


def is_scalar(shape: Shape) -> bool:
    """True for strings, numbers and the like."""
    return isinstance(shape.type, Scalar)
