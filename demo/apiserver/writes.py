"""Creating and updating: from a request to a stored version, in the order in which kube-apiserver takes the steps.

Decode and default, admit, restore what this update cannot change, validate, write. All of it
happens under the storage lock, so that what was checked is what is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dracaena.demo.apiserver import admission, meta, patches, strategic
from dracaena.demo.apiserver.bodies import WARN, DecodedBody, parse_json, read_object, read_patched
from dracaena.demo.apiserver.decode import COMPACT, MERGED, SORTED
from dracaena.demo.apiserver.errors import (
    MODIFIED,
    ApiError,
    already_exists,
    bad_request,
    conflict,
    invalid,
    not_found,
)
from dracaena.demo.apiserver.fields import FieldError
from dracaena.demo.apiserver.fields import invalid as invalid_field
from dracaena.demo.apiserver.resources import NAMESPACE, Kind
from dracaena.demo.apiserver.storage import ObjectStorage, Stored, key_of, stored_as
from dracaena.demo.apiserver.strategies import Door
from dracaena.demo.apiserver.validation.metadata import check_metadata, check_metadata_update

Document = dict[str, Any]

_OPAQUE_TEXT: Final = {patches.JSON_PATCH: COMPACT, patches.MERGE_PATCH: MERGED, patches.STRATEGIC_PATCH: SORTED}


@dataclass(frozen=True, slots=True)
class Options:
    """The query of a write."""

    validation: str = WARN


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The outcome of a write."""

    stored: Stored
    created: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One object as a request names it."""

    kind: Kind
    namespace: str
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """Its storage key."""
        return key_of(self.namespace, self.name)


# From the stored object to the new one, with warnings.
Transform = Callable[[Document], DecodedBody]


class Writes:
    """Creates, updates and patches."""

    def __init__(
        self,
        storage: ObjectStorage,
        clock: Callable[[], datetime],
        names: meta.NameSource,
        version: str,
        policy: admission.PodPolicy,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._names = names
        self._version = version  # of Kubernetes
        self._policy = policy

    # ---- create

    def create(self, target: Target, raw: Any, options: Options) -> WriteOutcome:
        """POST. 409 if the name is taken, 404 if the namespace is missing."""
        with self._storage.lock:
            read = read_object(target.kind, raw, options.validation, self._clock(), self._version)
            return self._create(target, read)

    def _create(self, target: Target, read: DecodedBody) -> WriteOutcome:
        kind, now = target.kind, self._clock()
        strategy = kind.rules
        meta.require_namespace(read.document, kind, target.namespace)
        stated = read.document["metadata"].get("resourceVersion")
        document = meta.begin(read.document, kind, target.namespace, now, self._names)
        document = self._admit_creation(target, document)
        document = strategy.prepare_create(document, now)
        self._check_creation(kind, document)
        name = document["metadata"]["name"]
        key = key_of(target.namespace, name)
        if stated not in (None, "", "0"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        if self._storage.get(kind, key):
            raise already_exists(kind.qualified_resource, name)
        warnings = (*read.warnings, *strategy.warn(document))
        return WriteOutcome(self._storage.put(kind, key, document), created=True, warnings=warnings)

    def _admit_creation(self, target: Target, document: Document) -> Document:
        kind = target.kind
        if kind.namespaced:
            stored = self._storage.get(NAMESPACE, target.namespace)
            namespace = stored.document if stored else None
            admission.check_namespace(kind, document["metadata"].get("name", ""), target.namespace, namespace)
            if kind.kind == "Pod" and namespace is not None:
                document = {**self._policy(document, namespace)}
        return admission.admit_creation(kind, document)

    def _check_creation(self, kind: Kind, document: Document) -> None:
        errors = check_metadata(document, namespaced=kind.namespaced, names=kind.rules.names)
        errors += kind.rules.check_namespace(document, self._namespace_labels(document))
        self._refuse(kind, document, errors + kind.rules.check(document))

    def _refuse(self, kind: Kind, document: Document, errors: Sequence[FieldError]) -> None:
        """Raise what a check has found, each cause once."""
        if errors:
            raise invalid(kind.qualified_kind, document["metadata"].get("name", ""), list(dict.fromkeys(errors)))

    def _namespace_labels(self, document: Document) -> dict[str, str]:
        stored = self._storage.get(NAMESPACE, document["metadata"].get("namespace", ""))
        return dict(stored.document["metadata"].get("labels") or {}) if stored else {}

    # ---- update

    def replace(self, target: Target, raw: Any, options: Options) -> WriteOutcome:
        """PUT. Creates the object if the kind allows that."""
        with self._storage.lock:
            kind, now = target.kind, self._clock()
            read = read_object(kind, raw, options.validation, now, self._version)
            meta.require_name_match(read.document, target.name)
            meta.require_namespace(read.document, kind, target.namespace)
            old = self._storage.get(kind, target.key)
            strategy = kind.rules
            if old is None and strategy.creates_on_put and not target.subresource:
                return self._create(target, read)
            uid = read.document["metadata"].get("uid")
            if old is not None and uid:
                meta.check_identity(old.document, kind.qualified_resource, {"uid": uid})
            return self._update(target, old, lambda _live: read)

    def patch(self, target: Target, media_type: str, body: bytes, options: Options) -> WriteOutcome:
        """PATCH in any of the three forms."""
        with self._storage.lock:
            old = self._storage.get(target.kind, target.key)
            try:
                patch = parse_json(body)
            except ValueError as error:
                raise bad_request(f"error decoding patch: {error}") from None

            def transform(live: Document) -> DecodedBody:
                patched = _patched(target.kind, media_type, live, patch)
                opaque = _OPAQUE_TEXT[media_type]
                read = read_patched(target.kind, patched, options.validation, self._clock(), opaque, self._version)
                meta.require_namespace(read.document, target.kind, target.namespace)
                meta.require_name_match(read.document, target.name)
                return read

            return self._update(target, old, transform)

    def _update(self, target: Target, old: Stored | None, transform: Transform) -> WriteOutcome:
        kind = target.kind
        if old is None:
            raise not_found(kind.qualified_resource, target.name)
        live = old.document
        door = kind.rules.door(target.subresource)
        read = transform(live)
        document = read.document
        if not target.subresource:
            document = admission.admit_update(kind, document, live)
        document = _with_version(
            document, target, live, unconditional=kind.rules.unconditional or bool(target.subresource)
        )
        document = door.prepare(meta.carry_over(document, live), live)
        self._check_update(kind, door, document, live)
        warnings = read.warnings if target.subresource else (*read.warnings, *_update_warnings(kind, document))
        if document == live:
            return WriteOutcome(old, warnings=warnings)
        if meta.ends_with_update(document, live) and not document.get("spec", {}).get("finalizers"):
            self._storage.delete(kind, target.key)
            return WriteOutcome(stored_as(document, old.version), warnings=warnings)
        return WriteOutcome(self._storage.put(kind, target.key, document), warnings=warnings)

    def _check_update(self, kind: Kind, door: Door, new: Document, old: Document) -> None:
        errors = check_metadata(new, namespaced=kind.namespaced, names=kind.rules.names)
        errors += check_metadata_update(new, old)
        errors += door.check_namespace(new, old, self._namespace_labels(new))
        errors += door.check(new, old)
        self._refuse(kind, new, errors)


def _with_version(document: Document, target: Target, live: Document, *, unconditional: bool) -> Document:
    """409 if the client saw another version; a client that states none overwrites any, if that is allowed."""
    stated = document["metadata"].get("resourceVersion", "")
    present = live["metadata"]["resourceVersion"]
    if stated in ("", "0"):
        if not unconditional:
            error = invalid_field("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(target.kind.qualified_resource, target.name, [error])
        return meta.with_metadata(document, resourceVersion=present)
    if not stated.isdigit():
        raise ApiError(500, "", f'resourceVersion is a number, not "{stated}"')
    if stated != present:
        raise conflict(target.kind.qualified_resource, target.name, MODIFIED)
    return document


def _update_warnings(kind: Kind, document: Document) -> list[str]:
    return kind.rules.warn(document) if kind.kind == "ResourceSlice" else []


def _patched(kind: Kind, media_type: str, live: Document, patch: Any) -> Any:
    if media_type == patches.JSON_PATCH:
        return patches.json_patch(live, patch)
    if not isinstance(patch, dict):
        raise bad_request("the patch is no object")
    if media_type == patches.MERGE_PATCH:
        return patches.merge_patch(live, patch)
    body = {name: value for name, value in live.items() if name not in ("kind", "apiVersion")}
    change = {name: value for name, value in patch.items() if name not in ("kind", "apiVersion")}
    return strategic.merge(kind.struct, body, change)
