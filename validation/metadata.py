"""Checks the part of `metadata` that authors write: what the server writes (managedFields, uid, …) is not checked."""

from __future__ import annotations

from dracaena.api import limits
from dracaena.validation.field import Field
from dracaena.validation.syntax import (
    ANNOTATION_KEY,
    DNS_LABEL,
    DNS_SUBDOMAIN,
    FINALIZER,
    LABEL_KEY,
    LABEL_VALUE,
    Syntax,
)

_FIELDS = (
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")


def check_metadata(field: Field, *, namespaced: bool) -> None:
    """Check the metadata of an object whose name is a DNS name."""
    metadata = field.fields(*_FIELDS)
    if metadata is None:
        return
    _check_name(metadata["name"], metadata["generateName"])
    namespace = metadata["namespace"]
    if namespaced:
        if namespace.value != "":  # like an absent one it is filled in by the client that sends the object
            namespace.name(DNS_LABEL, optional=True)
    elif namespace.text():
        namespace.error("a namespace on an object that is in none", "no namespace")
    if (metadata["generation"].whole_number() or 0) < 0:
        metadata["generation"].error("negative", "0 or more, set by the server")
    metadata["uid"].text()
    metadata["resourceVersion"].text()
    _check_labels_and_annotations(metadata["labels"], metadata["annotations"])
    for finalizer in metadata["finalizers"].items() or ():
        if finalizer.value not in _STANDARD_FINALIZERS:
            finalizer.name(FINALIZER)
    _check_owners(metadata["ownerReferences"])


def check_template_metadata(field: Field) -> None:
    """Check the metadata that a template gives to its claims: only labels and annotations."""
    metadata = field.fields("labels", "annotations")
    if metadata is not None:
        _check_labels_and_annotations(metadata["labels"], metadata["annotations"])


def _check_name(name: Field, generate_name: Field) -> None:
    prefix = generate_name.text()
    if prefix and not DNS_SUBDOMAIN.holds(_completed(prefix)):
        generate_name.error("not the beginning of a DNS name", DNS_SUBDOMAIN.expected)
    if not name.text() and prefix == "":
        name.error("missing", f"{DNS_SUBDOMAIN.expected}; or generateName")
    elif name.value:
        name.name(DNS_SUBDOMAIN)


def _completed(prefix: str) -> str:
    """Return a prefix as the server judges it: a dash at its end and the character before it count as one letter."""
    return f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix


def _check_labels_and_annotations(labels: Field, annotations: Field) -> None:
    _check_map(labels, LABEL_KEY, LABEL_VALUE)
    _check_map(annotations, ANNOTATION_KEY, None)
    entries = annotations.value if isinstance(annotations.value, dict) else {}
    size = sum(
        len(text.encode("utf-8", "replace")) for entry in entries.items() for text in entry if isinstance(text, str)
    )
    if size > limits.ANNOTATIONS_BYTES:
        annotations.error(f"{size} bytes", f"at most {limits.ANNOTATIONS_BYTES >> 10} KiB in all")


def _check_map(field: Field, keys: Syntax, values: Syntax | None) -> None:
    for key, value in (field.entries() or {}).items():
        if not keys.holds(key):
            value.error(f"the key is not {keys.what}", keys.expected)
        text = value.text()
        if text is not None and values is not None and not values.holds(text):
            value.error(f"not {values.what}", values.expected)


def _check_owners(field: Field) -> None:
    controllers = 0
    for owner in field.items() or ():
        reference = owner.fields("apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion")
        if reference is None:
            continue
        for name in ("apiVersion", "kind", "name", "uid"):
            if reference[name].text() == "":
                reference[name].error("missing", "a text")
        reference["blockOwnerDeletion"].boolean()
        controllers += bool(reference["controller"].boolean())
    if controllers > 1:
        field.error(f"{controllers} controllers", "at most one owner with controller: true")
