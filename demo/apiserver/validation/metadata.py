"""Validation of ``metadata``, for every kind."""

from __future__ import annotations

import json
from typing import Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.fields import IMMUTABLE, FieldError, forbidden, invalid, required, reworded, too_long
from dracaena.demo.apiserver.validation.text import (
    Errors,
    NameRule,
    check,
    dns_label,
    label_value,
    qualified_name,
)

_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


def check_metadata(
    document: dict[str, Any], *, namespaced: bool, name_rule: NameRule, path: str = "metadata", common: bool = False
) -> Errors:
    """The rules that hold at creation and at every update. `common` leaves out what only the kind's own check adds."""
    metadata = document["metadata"]
    errors: Errors = []
    if metadata.get("generateName"):
        # Unlike a whole name, a prefix may end in a dash.
        stem = metadata["generateName"].removesuffix("-") + ("a" if metadata["generateName"].endswith("-") else "")
        errors += [invalid(f"{path}.generateName", metadata["generateName"], message) for message in name_rule(stem)]
    if not metadata.get("name"):
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        errors += check(f"{path}.name", metadata["name"], name_rule)
    if namespaced:
        if not metadata.get("namespace"):
            errors.append(required(f"{path}.namespace"))
        else:
            errors += check(f"{path}.namespace", metadata["namespace"], dns_label)
    elif metadata.get("namespace"):
        errors.append(forbidden(f"{path}.namespace", "not allowed on this type"))
    errors += check_labels(metadata, path) + _check_owners(metadata, path) + _check_finalizers(metadata, path)
    return errors if common else errors + _check_unqualified_finalizers(metadata, path)


def check_labels(metadata: dict[str, Any], path: str, *, annotations_first: bool = False) -> Errors:
    """Labels and annotations."""
    labels: Errors = []
    for key, value in (metadata.get("labels") or {}).items():
        labels += check(f"{path}.labels", key, qualified_name)
        labels += [invalid(f"{path}.labels", value, message) for message in label_value(value)]
    annotations: Errors = []
    size = 0
    for key, value in (metadata.get("annotations") or {}).items():
        annotations += [invalid(f"{path}.annotations", key, message) for message in qualified_name(key.lower())]
        size += len(key.encode()) + len(value.encode())
    if size > limits.ANNOTATIONS_BYTES:
        annotations.append(too_long(f"{path}.annotations", limits.ANNOTATIONS_BYTES))
    return annotations + labels if annotations_first else labels + annotations


def _check_owners(metadata: dict[str, Any], path: str) -> Errors:
    here = f"{path}.ownerReferences"
    errors: Errors = []
    controller = ""
    owners = metadata.get("ownerReferences") or []
    for i, owner in enumerate(owners):
        if not owner["apiVersion"].rpartition("/")[2]:
            error = invalid(f"{here}.apiVersion", owner["apiVersion"], "version must not be empty")
            errors.append(reworded(error, _not_empty(f"{here}[{i}].apiVersion")))
        errors += [
            reworded(invalid(f"{here}.{name}", "", "must not be empty"), _not_empty(f"{here}[{i}].{name}"))
            for name in ("kind", "name", "uid")
            if not owner[name]
        ]
        if owner["apiVersion"] == "v1" and owner["kind"] == "Event":
            errors.append(invalid(here, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            this = f"{owner['kind']}/{owner['name']}"
            if controller:
                errors.append(
                    invalid(
                        here,
                        owners,
                        (
                            'Only one reference can have Controller set to true. Found "true" in references for '
                            f"{controller} and {this}"
                        ),
                    )
                )
            controller = controller or this
    return errors


def _not_empty(path: str) -> FieldError:
    return required(path, "must not be empty")


def _check_finalizers(metadata: dict[str, Any], path: str) -> Errors:
    finalizers = metadata.get("finalizers") or []
    errors = [error for name in finalizers for error in check(f"{path}.finalizers", name, qualified_name)]
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        errors.append(
            invalid(f"{path}.finalizers", finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
        )
    return errors


def _check_unqualified_finalizers(metadata: dict[str, Any], path: str) -> Errors:
    return [
        invalid(f"{path}.finalizers[{i}]", name, "name is neither a standard finalizer name nor is it fully qualified")
        for i, name in enumerate(metadata.get("finalizers") or ())
        if "/" not in name and name not in _STANDARD_FINALIZERS
    ]


def check_metadata_update(new: dict[str, Any], old: dict[str, Any]) -> Errors:
    """What an update may not do to metadata."""
    after, before = new["metadata"], old["metadata"]
    errors: Errors = []
    if "deletionTimestamp" in before:
        extra = sorted(set(after.get("finalizers") or ()) - set(before.get("finalizers") or ()))
        if extra:
            shown = ", ".join(json.dumps(name) for name in extra)
            errors.append(
                forbidden(
                    "metadata.finalizers",
                    (
                        "no new finalizers can be added if the object is being deleted, found new finalizers "
                        f"[]string{{{shown}}}"
                    ),
                )
            )
    for name in ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if after.get(name) != before.get(name):
            errors.append(invalid(f"metadata.{name}", after.get(name), IMMUTABLE))
    return errors + check_labels(after, "metadata") + _check_owners(after, "metadata")
