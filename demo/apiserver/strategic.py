"""Strategic merge patch: a merge patch that merges lists of named things by name, along the kind's table of fields.

Understood: merge keys, sets of scalars, ``$patch: delete | replace``, ``$retainKeys``, ``$setElementOrder/LIST`` and
``$deleteFromPrimitiveList/LIST``. The order of merged lists is Kubernetes' own: patched items in the patch's order,
items that only the server has in the server's order, compared by place where the server had both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dracaena.demo.apiserver.errors import ApiError, bad_request
from dracaena.demo.apiserver.schema import ListOf, MapOf, SchemaField, Struct, Type
from dracaena.validation.findings import show

Document = dict[str, Any]

_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"
_ORDER: Final = "$setElementOrder/"
_DELETE: Final = "$deleteFromPrimitiveList/"


def merge(type_: Type, original: Any, patch: Any) -> Any:
    """The value of `type_` after `patch`. Neither argument is changed."""
    directive = patch.get(_PATCH)
    if directive == "replace":
        return _plain({name: value for name, value in patch.items() if name != _PATCH})
    if directive == "delete":
        return {}
    if directive is not None:
        raise bad_request(f"unknown patch type: {directive}")
    _check_directives(patch)
    merged = dict(original or {})
    _retain(merged, patch)
    for name, value in patch.items():
        if not name.startswith("$"):
            _merge_field(type_, merged, name, value)
    for name, value in patch.items():
        if name.startswith(_DELETE):
            listed = merged.get(name.removeprefix(_DELETE)) or []
            merged[name.removeprefix(_DELETE)] = [one for one in listed if one not in value]
    for name, value in patch.items():
        if name.startswith(_ORDER):
            _reorder(type_, merged, name.removeprefix(_ORDER), value)
    return merged


def _check_directives(patch: Document) -> None:
    for name, value in patch.items():
        if name.startswith((_RETAIN, _ORDER, _DELETE)) and not isinstance(value, list):
            raise bad_request(f"the directive {name} takes a list")


def _retain(merged: Document, patch: Document) -> None:
    kept = patch.get(_RETAIN)
    if kept is None:
        return
    stray = [name for name in patch if not name.startswith("$") and name not in kept]
    if stray:
        raise bad_request("list in $retainKeys does not contain all fields present in the patch")
    for name in [name for name in merged if name not in kept]:
        del merged[name]


def _known(type_: Type, name: str) -> SchemaField | None:
    return type_.fields.get(name) if isinstance(type_, Struct) else None


def _merge_field(type_: Type, merged: Document, name: str, value: Any) -> None:
    if value is None:
        merged.pop(name, None)
        return
    known = _known(type_, name)
    inner = known.type if known else (type_.item if isinstance(type_, MapOf) else None)
    present = merged.get(name)
    if isinstance(value, dict) and inner is not None and isinstance(inner, Struct | MapOf):
        merged[name] = merge(inner, present if isinstance(present, dict) else {}, value)
    elif isinstance(value, list) and known and known.merge:
        merged[name] = _merge_list(known, present if isinstance(present, list) else [], value)
    else:
        merged[name] = _plain(value)


def _merge_list(known: SchemaField, original: list[Any], patch: list[Any]) -> list[Any]:
    assert isinstance(known.type, ListOf)
    if not known.merge_key:
        if any(isinstance(one, dict | list) for one in patch):
            raise bad_request(f"the list {known.name} takes no objects or lists")
        both = list(dict.fromkeys([*original, *patch]))
        return _in_order(both, patch, original, lambda one: one)
    key = known.merge_key
    name_of = _key_reader(key)
    items, wanted, replaced = list(original), [], False
    for one in patch:
        if not isinstance(one, dict):
            raise bad_request(f"the list {known.name} takes objects only")
        directive = one.get(_PATCH)
        if directive == "delete":
            items = [item for item in items if item.get(key) != name_of(one)]
        elif directive == "replace":
            replaced = True
        elif directive is not None:
            raise bad_request(f"unknown patch type: {directive}")
        else:
            wanted.append(one)
    if replaced:
        return [_plain(one) for one in wanted]
    order = list(items)
    for one in wanted:
        at = next((i for i, item in enumerate(items) if item.get(key) == name_of(one)), None)
        if at is None:
            items.append(_plain(one))
        else:
            items[at] = merge(known.type.item, items[at], one)
    return _in_order(items, wanted, order, name_of)


def _key_reader(key: str) -> Callable[[Any], Any]:
    def read(item: Any) -> Any:
        if not isinstance(item, dict) or key not in item:
            raise ApiError(500, "", f"{show(item)} does not contain declared merge key: {key}")
        if isinstance(item[key], dict | list):
            raise bad_request(f"the merge key {key} is not a plain value")
        return item[key]

    return read


def _in_order(items: list[Any], patch: list[Any], server: list[Any], name_of: Callable[[Any], Any]) -> list[Any]:
    """`items` (patched and server-only ones together) in the order that kube-apiserver gives them."""
    patch_names = [name_of(one) for one in patch]
    server_names = [name_of(one) for one in server]
    by_name = {name_of(one): one for one in items}
    left = [name for name in server_names if name in by_name and name not in patch_names]
    right = [name for name in dict.fromkeys(patch_names) if name in by_name]
    merged = []
    while left and right:
        both_known = right[0] in server_names
        server_first = both_known and server_names.index(left[0]) < server_names.index(right[0])
        merged.append((left if server_first else right).pop(0))
    return [by_name[name] for name in [*merged, *left, *right]]


def _reorder(type_: Type, merged: Document, name: str, wanted: list[Any]) -> None:
    known = _known(type_, name)
    present = merged.get(name)
    if known is None or not known.merge or not isinstance(present, list):
        return
    name_of = _key_reader(known.merge_key) if known.merge_key else (lambda one: one)
    names = [name_of(one) for one in wanted]
    listed = {name_of(one) for one in present}
    patch = [next(item for item in present if name_of(item) == one) for one in names if one in listed]
    merged[name] = _in_order(present, patch, present, name_of)


def _plain(value: Any) -> Any:
    """A value with nothing to merge into, without directives and nulls."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if part is not None and not name.startswith("$")}
    if isinstance(value, list):
        return [_plain(part) for part in value if not (isinstance(part, dict) and _PATCH in part)]
    return value
