"""``metadata.managedFields``: who owns which field, kept at every write, and server-side apply on top of it.

A manager is identified by (manager, operation, apiVersion, sub-resource), as in Kubernetes. An ordinary write takes
over the fields that it changes; an apply claims the fields that it names, and conflicts (409) if another manager owns
one of them with another value, unless it forces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.decode import zero
from dracaena.demo.apiserver.errors import ApiError, not_implemented
from dracaena.demo.apiserver.fieldsets import (
    EMPTY,
    Difference,
    FieldSet,
    Path,
    Shape,
    children,
    compare,
    dotted,
    element,
    excluding,
    fields_given,
    from_wire,
    is_scalar,
    to_wire,
)
from dracaena.demo.apiserver.schema import ListOf, Struct, Type

# Fields that no manager owns, whoever writes them.
_OWNERLESS: Final[FieldSet] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",)}
    | {
        ("f:metadata", f"f:{name}")
        for name in (
            "name",
            "namespace",
            "creationTimestamp",
            "selfLink",
            "uid",
            "clusterName",
            "generation",
            "managedFields",
            "resourceVersion",
        )
    }
)
_JOINED: Final = "ancient-changes"
# The owner, at the first apply, of everything that an object without owners holds.
_BEFORE_APPLY: Final = "before-first-apply"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Manager:
    """Who writes, and through which sub-resource."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    def shown(self) -> str:
        """For conflict messages."""
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        return f"{text} using {self.api_version}" if self.operation == "Update" else text


@dataclass(frozen=True, slots=True)
class Owned:
    """What one manager owns, and since when (wire time)."""

    fields: FieldSet
    time: str | None


Ownership = dict[Manager, Owned]


def read_ownership(document: dict[str, Any]) -> Ownership:
    """The owners that a stored document names. Entries in a format that we cannot read own nothing."""
    owners: Ownership = {}
    for entry in document.get("metadata", {}).get("managedFields") or ():
        manager = Manager(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        try:
            fields = from_wire(entry.get("fieldsV1") or {})
        except ValueError:
            fields = EMPTY
        owners[manager] = Owned(fields, entry.get("time"))
    return owners


def write_ownership(owners: Ownership) -> list[dict[str, Any]]:
    """The ``managedFields`` list: applies before updates, older before newer, then by name."""

    def order(manager: Manager) -> tuple[str, ...]:
        return (manager.operation, owners[manager].time or "", manager.name, manager.api_version, manager.subresource)

    return [_entry(manager, owners[manager]) for manager in sorted(owners, key=order)]


def _entry(manager: Manager, owned: Owned) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
        "time": owned.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": to_wire(owned.fields),
        "subresource": manager.subresource,
    }
    return {name: value for name, value in entry.items() if value not in (None, "")}


def with_ownership(document: dict[str, Any], owners: Ownership) -> dict[str, Any]:
    """`document` with its managedFields replaced."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    entries = write_ownership(owners)
    return document | {"metadata": metadata | ({"managedFields": entries} if entries else {})}


def without_ownership(document: dict[str, Any]) -> dict[str, Any]:
    """`document` without managedFields."""
    if "managedFields" not in document["metadata"]:
        return document
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return document | {"metadata": metadata}


def _settle(owners: Ownership, difference: Difference, by: Manager, *, force: bool) -> Ownership:
    """Take what changed away from everybody except `by`. Raises the 409 of server-side apply unless `force`."""
    changed = difference.modified | difference.added
    conflicts = {
        manager: owned.fields & changed for manager, owned in owners.items() if manager != by and owned.fields & changed
    }
    if conflicts and not force:
        raise _apply_conflict(conflicts)
    settled = {}
    for manager, owned in owners.items():
        fields = owned.fields if manager == by else owned.fields - changed - difference.removed
        if fields:
            settled[manager] = replace(owned, fields=fields)
    return settled


def owned_after_update(
    struct: Struct,
    old: dict[str, Any],
    new: dict[str, Any],
    owners: Ownership,
    by: Manager,
    now: str | None,
    reset: Iterable[Path],
) -> Ownership:
    """The owners after an ordinary write from `old` to `new`. `reset` are the paths that this kind of write never sets.

    An existing object without owners stays without: Kubernetes begins to track at creation or at the first apply only.
    """
    if not owners and old["metadata"].get("uid"):
        return {}
    shape = Shape(struct)
    difference = compare(shape, without_ownership(old), without_ownership(new)).without(reset)
    settled = _settle(owners, difference, by, force=True)
    taken = (difference.modified | difference.added) - _OWNERLESS
    before = settled.get(by, Owned(EMPTY, None))
    kept = before.fields - difference.removed
    if taken:
        settled[by] = Owned(kept | taken, now)
    elif kept:
        settled[by] = replace(before, fields=kept)
    else:
        settled.pop(by, None)
    return _capped(settled)


def _capped(owners: Ownership) -> Ownership:
    updaters = sorted(
        (manager for manager in owners if manager.operation == "Update"),
        key=lambda manager: (owners[manager].time or "", manager.name),
    )
    surplus = len(updaters) - limits.MANAGED_UPDATES
    if surplus <= 0:
        return owners
    joined = dict(owners)
    for manager in updaters[: surplus + 1]:
        owned = joined.pop(manager)
        home = Manager(_JOINED, "Update", manager.api_version)
        present = joined.get(home, Owned(EMPTY, owned.time))
        joined[home] = Owned(present.fields | owned.fields, max(present.time or "", owned.time or "") or None)
    return joined


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of an apply before decoding: the merged object and its owners."""

    document: dict[str, Any]
    owners: Ownership


def apply(
    struct: Struct,
    live: dict[str, Any],
    config: dict[str, Any],
    owners: Ownership,
    by: Manager,
    now: str | None,
    reset: Iterable[Path],
    *,
    force: bool,
) -> Applied:
    """Merge `config` into `live` for manager `by`; drop what it applied before and no longer does.

    `live` is the canonical document without managedFields. Raises 409 on conflicts unless `force`.
    """
    if by.name == "kubectl" and _LAST_APPLIED in (live["metadata"].get("annotations") or {}):
        raise not_implemented(f"taking over an object of client-side apply (annotation {_LAST_APPLIED})")
    shape = Shape(struct)
    hidden = tuple(reset)
    if not owners and live["metadata"].get("uid"):
        first = Manager(_BEFORE_APPLY, "Update", by.api_version)
        owners = owned_after_update(struct, zero(struct), live, {}, first, now, hidden)
    given = excluding(frozenset(fields_given(shape, config)), hidden)
    last = owners.get(by, Owned(EMPTY, None))
    claimed = dict(owners) | {by: Owned(given, last.time)}
    merged = merge(shape, live, config)
    pruned = _prune(shape, merged, last.fields, claimed)
    difference = compare(shape, live, pruned).without(hidden)
    settled = _settle(claimed, difference, by, force=force)
    stripped = {
        manager: replace(owned, fields=owned.fields - _OWNERLESS)
        for manager, owned in settled.items()
        if owned.fields - _OWNERLESS
    }
    if by in stripped and (stripped != owners or pruned != live):
        stripped[by] = replace(stripped[by], time=now)
    return Applied(pruned, _capped(stripped))


def merge(shape: Shape, live: Any, config: Any) -> Any:
    """`live` with `config` laid over it: maps by key, keyed lists by item, sets joined, the rest replaced."""
    if shape.is_leaf():
        return config
    if isinstance(config, dict) and isinstance(live, dict):
        merged = dict(live)
        for name, value in config.items():
            inner = shape.child(name)
            merged[name] = merge(inner, live[name], value) if inner and name in live else value
        return merged
    if isinstance(config, list) and isinstance(live, list):
        return _merge_list(shape, live, config)
    return config


def _merge_list(shape: Shape, live: list[Any], config: list[Any]) -> list[Any]:
    """Items of `config` in its order; items that only `live` has stay before the next one that both have."""
    assert isinstance(shape.type, ListOf)
    ours = {element(shape, item): item for item in live}
    theirs = [(element(shape, item), item) for item in config]
    named = {name for name, _ in theirs}
    order, merged, done = list(ours), list[Any](), set[str]()
    at = 0
    for name, item in theirs:
        while at < len(order) and (order[at] not in named or order[at] in done):
            if order[at] not in named:
                merged.append(ours[order[at]])
            at += 1
        merged.append(merge(shape.item(), ours[name], item) if name in ours else item)
        done.add(name)
    merged.extend(ours[name] for name in order[at:] if name not in named)
    return merged


def _prune(shape: Shape, merged: Any, last: FieldSet, owners: Ownership) -> Any:
    """Remove what the manager applied before and nobody owns now, with everything below it."""
    owned = {path[:depth] for entry in owners.values() for path in entry.fields for depth in range(1, len(path) + 1)}
    orphans = {path for path in last if path not in owned}
    return _without(shape, merged, orphans, ()) if orphans else merged


def _without(shape: Shape, value: Any, orphans: set[Path], at: Path) -> Any:
    if shape.is_leaf() or not isinstance(value, dict | list):
        return value
    kept = [
        (name, _without(inner, part, orphans, (*at, name)))
        for name, inner, part in children(shape, value)
        if (*at, name) not in orphans
    ]
    if isinstance(value, list):
        return [part for _, part in kept]
    known = {name.removeprefix("f:"): part for name, part in kept}
    unknown = {name: part for name, part in value.items() if shape.child(name) is None}
    return unknown | known


def _apply_conflict(conflicts: dict[Manager, FieldSet]) -> ApiError:
    causes = []
    blocks = []
    count = sum(len(fields) for fields in conflicts.values())
    for manager in sorted(conflicts, key=Manager.shown):
        paths = sorted(dotted(path) for path in conflicts[manager])
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {manager.shown()}", "field": path}
            for path in paths
        ]
        if len(paths) == 1 and count == 1:
            blocks.append(f"conflict with {manager.shown()}: {paths[0]}")
        else:
            blocks.append(f"conflicts with {manager.shown()}:\n" + "\n".join(f"- {path}" for path in paths))
    plural = "conflict" if count == 1 else "conflicts"
    message = f"Apply failed with {count} {plural}: " + "\n".join(blocks)
    return ApiError(409, "Conflict", message, {"causes": causes})


def undeclared(struct: Struct, config: dict[str, Any], version: str) -> str:
    """The first field of an apply configuration that `struct` does not have in a version of Kubernetes (``.spec.x``),
    or "".

    Raises 501 for a field that Kubernetes has and this server does not serve.
    """
    return _undeclared(
        Shape(struct), {k: v for k, v in config.items() if k not in ("kind", "apiVersion")}, "", struct.name, version
    )


def _undeclared(shape: Shape, value: Any, at: str, kind: str, version: str) -> str:
    if isinstance(value, list) and isinstance(shape.type, ListOf):
        parts = ((f"{at}[{i}]", shape.item(), one) for i, one in enumerate(value))
        return next(
            (found for path, inner, one in parts if (found := _undeclared(inner, one, path, kind, version))), ""
        )
    if not isinstance(value, dict) or is_scalar(shape):
        return ""
    for name, part in value.items():
        inner = shape.child(name)
        path = f"{at}.{name}"
        if inner is None or not _is_in(version, shape.type, name):
            if isinstance(shape.type, Struct) and name in shape.type.unserved:
                raise not_implemented(f'the field "{path.removeprefix(".")}" of {kind}')
            return path
        found = _undeclared(inner, part, path, kind, version)
        if found:
            return found
    return ""


def _is_in(version: str, of: Type, name: str) -> bool:
    return not isinstance(of, Struct) or of.fields[name].is_in(version)
