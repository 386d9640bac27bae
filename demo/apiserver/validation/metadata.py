"""Validation of ``metadata``, for every kind."""

from __future__ import annotations

from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.fields import IMMUTABLE, FieldError, forbidden, invalid, required, too_long
from dracaena.demo.apiserver.validation.text import Errors, check, check_labels
from dracaena.validation.syntax import ANNOTATION_KEY, DNS_LABEL, LABEL_KEY, Syntax

_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def check_metadata(document: dict[str, Any], *, namespaced: bool, names: Syntax) -> Errors:
    """The rules that hold at creation and at every update. `names`: what names of the kind are like."""
    metadata, path = document["metadata"], "metadata"
    errors: Errors = []
    if metadata.get("generateName"):
        # Unlike a whole name, a prefix may end in a dash.
        stem = metadata["generateName"].removesuffix("-") + ("a" if metadata["generateName"].endswith("-") else "")
        errors += check(f"{path}.generateName", stem, names)
    if not metadata.get("name"):
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        errors += check(f"{path}.name", metadata["name"], names)
    if namespaced:
        if not metadata.get("namespace"):
            errors.append(required(f"{path}.namespace"))
        else:
            errors += check(f"{path}.namespace", metadata["namespace"], DNS_LABEL)
    elif metadata.get("namespace"):
        errors.append(forbidden(f"{path}.namespace", "not allowed on this type"))
    errors += check_labels(f"{path}.labels", metadata.get("labels")) + check_annotations(
        metadata, f"{path}.annotations"
    )
    return errors + _check_owners(metadata, path) + _check_finalizers(metadata, path)


def check_annotations(metadata: dict[str, Any], path: str) -> Errors:
    """Their keys, and their size together."""
    annotations = metadata.get("annotations") or {}
    errors = [error for key in annotations for error in check(path, key, ANNOTATION_KEY)]
    if sum(len(text.encode()) for entry in annotations.items() for text in entry) > limits.ANNOTATIONS_BYTES:
        errors.append(too_long(path, limits.ANNOTATIONS_BYTES))
    return errors


def _check_owners(metadata: dict[str, Any], path: str) -> Errors:
    here = f"{path}.ownerReferences"
    errors: Errors = []
    owners = metadata.get("ownerReferences") or []
    for i, owner in enumerate(owners):
        if not owner["apiVersion"].rpartition("/")[2]:
            errors.append(_not_empty(f"{here}[{i}].apiVersion"))
        errors += [_not_empty(f"{here}[{i}].{name}") for name in ("kind", "name", "uid") if not owner[name]]
        if owner["apiVersion"] == "v1" and owner["kind"] == "Event":
            errors.append(invalid(here, owner, "/v1, Kind=Event is disallowed from being an owner"))
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        errors.append(invalid(here, owners, "at most one owner has controller: true"))
    return errors


def _not_empty(path: str) -> FieldError:
    return required(path, "must not be empty")


def _check_finalizers(metadata: dict[str, Any], path: str) -> Errors:
    finalizers = metadata.get("finalizers") or []
    errors = [error for name in finalizers for error in check(f"{path}.finalizers", name, LABEL_KEY)]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.append(
            invalid(f"{path}.finalizers", finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
        )
    return errors + [
        invalid(f"{path}.finalizers[{i}]", name, "name is neither a standard finalizer name nor is it fully qualified")
        for i, name in enumerate(finalizers)
        if "/" not in name and name not in _STANDARD_FINALIZERS
    ]


def check_metadata_update(new: dict[str, Any], old: dict[str, Any]) -> Errors:
    """What an update may not do to metadata."""
    after, before = new["metadata"], old["metadata"]
    errors: Errors = []
    if "deletionTimestamp" in before:
        extra = sorted(set(after.get("finalizers") or ()) - set(before.get("finalizers") or ()))
        if extra:
            shown = f"no finalizer can be added to what is being deleted, found {', '.join(extra)}"
            errors.append(forbidden("metadata.finalizers", shown))
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if after.get(name) != before.get(name):
            errors.append(invalid(f"metadata.{name}", after.get(name), IMMUTABLE))
    return errors
