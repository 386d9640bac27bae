"""What a server does to ``metadata`` by itself: names, identities, times, and the rules of deletion."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from dracaena.api import limits
from dracaena.demo.apiserver.errors import Qualified, bad_request, conflict, invalid
from dracaena.demo.apiserver.fields import not_supported
from dracaena.demo.apiserver.times import read_time, write_time

if TYPE_CHECKING:
    from dracaena.demo.apiserver.resources import Kind

Document = dict[str, Any]

# The alphabet of Kubernetes' generated names: no vowels, so that no words arise.
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"

# Finalizers that stand for a garbage collector's work.
ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
_CLIENTS: Final = ("generateName", "labels", "annotations", "ownerReferences", "finalizers")
"""Fields that a client fills in when it creates an object, besides the name."""
_POLICIES: Final = ("Foreground", "Background", "Orphan")


class NameSource:
    """Random parts of names and UIDs."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source or random.SystemRandom()

    def suffix(self) -> str:
        """Five characters."""
        return "".join(self._source.choices(_SUFFIX_ALPHABET, k=limits.GENERATED_SUFFIX_BYTES))

    def uid(self) -> str:
        """A random UUID, lower case."""
        return str(uuid.UUID(int=self._source.getrandbits(128), version=4))


def with_metadata(document: Document, **changes: Any) -> Document:
    """A copy with metadata fields set; None removes one."""
    metadata = document["metadata"] | changes
    return document | {"metadata": {name: value for name, value in metadata.items() if value is not None}}


def begin(document: Document, kind: Kind, namespace: str, now: datetime, names: NameSource) -> Document:
    """The system's part of a new object's metadata: what the client sent there is replaced."""
    metadata = document["metadata"]
    name = metadata.get("name")
    if not name and metadata.get("generateName"):
        name = metadata["generateName"][: limits.GENERATED_NAME_BYTES - limits.GENERATED_SUFFIX_BYTES] + names.suffix()
    kept = {field: metadata[field] for field in _CLIENTS if field in metadata}
    system = {"name": name, "namespace": namespace, "uid": names.uid(), "creationTimestamp": write_time(now)}
    return document | {"metadata": kept | {field: value for field, value in system.items() if value}}


def require_namespace(document: Document, kind: Kind, namespace: str) -> None:
    """400 when the object names another namespace than the request."""
    stated = document["metadata"].get("namespace", "")
    if stated and stated != namespace:
        shown = namespace or ""
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
            if kind.namespaced
            else f'namespace "{stated}" may not be set on {kind.kind}{shown}'
        )


def carry_over(new: Document, old: Document) -> Document:
    """An update's metadata with the parts that no update can change taken from the stored object."""
    before, after = old["metadata"], new["metadata"]
    return with_metadata(
        new,
        namespace=before.get("namespace"),
        generation=before.get("generation"),
        uid=after.get("uid") or before["uid"],
        creationTimestamp=before["creationTimestamp"],
        deletionTimestamp=before.get("deletionTimestamp") or after.get("deletionTimestamp"),
        deletionGracePeriodSeconds=after.get("deletionGracePeriodSeconds", before.get("deletionGracePeriodSeconds")),
        managedFields=None,
    )


def bumped(document: Document, old: Document) -> Document:
    """`document` with the generation after `old`'s."""
    return with_metadata(document, generation=old["metadata"].get("generation", 0) + 1)


def is_deleting(document: Document) -> bool:
    """True once deletion has begun."""
    return "deletionTimestamp" in document["metadata"]


def ends_with_update(new: Document, old: Document) -> bool:
    """True when this update takes the last finalizer off an object whose deletion only waited for it."""
    return (
        is_deleting(old)
        and not new["metadata"].get("finalizers")
        and not old["metadata"].get("deletionGracePeriodSeconds")
        and not new["metadata"].get("deletionGracePeriodSeconds")
    )


def mark_deleting(document: Document, now: datetime) -> Document:
    """The mark on an object that waits for its finalizers only."""
    present = document["metadata"].get("deletionTimestamp")
    if present is None or read_time(present) > now:
        present = write_time(now)
    was_deleting = is_deleting(document)
    generation = document["metadata"].get("generation", 0)
    marked = with_metadata(document, deletionTimestamp=present, deletionGracePeriodSeconds=0)
    return marked if was_deleting or not generation else with_metadata(marked, generation=generation + 1)


def check_identity(document: Document, what: Qualified, wanted: Document) -> None:
    """409 if the object has not the ``uid`` and the ``resourceVersion`` that a request names."""
    metadata = document["metadata"]
    for name in ("uid", "resourceVersion"):
        given = wanted.get(name)
        if given is not None and given != metadata[name]:
            raise conflict(what, metadata["name"], f"{name} is {metadata[name]}, the request names {given}")


def check_delete_options(options: Document) -> None:
    """422 for an unknown policy."""
    policy = options.get("propagationPolicy")
    if policy is not None and policy not in _POLICIES:
        unknown = not_supported("propagationPolicy", policy, _POLICIES)
        raise invalid(Qualified("meta.k8s.io", "DeleteOptions"), "", [unknown])


def collector_finalizers(document: Document, options: Document, *, orphans: bool = False) -> list[str]:
    """The finalizers after a DELETE: a propagation policy adds the mark of the garbage collector's work.

    `orphans`: dependents are left alone if nothing is said about them.
    """
    present = document["metadata"].get("finalizers") or []
    policy = options.get("propagationPolicy")
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy or "")
    if policy is None:
        wanted = next((name for name in present if name in (ORPHAN, FOREGROUND)), ORPHAN if orphans else None)
    kept = [name for name in present if name not in (ORPHAN, FOREGROUND)]
    return [*kept, wanted] if wanted else kept


def graceful_mark(
    document: Document, options: Document, now: datetime, full_period_s: Callable[[Document, Document], int]
) -> tuple[Document, int] | None:
    """Begin or shorten a graceful deletion: the marked object and its grace in seconds. None: it is already under way.

    `full_period_s` gives the grace of a deletion that begins now.
    """
    metadata = document["metadata"]
    asked = options.get("gracePeriodSeconds")
    asked = 1 if asked is not None and asked < 0 else asked
    if not is_deleting(document):
        period = full_period_s(document, options)
        marked = with_metadata(
            document,
            deletionTimestamp=write_time(now + timedelta(seconds=period)),
            deletionGracePeriodSeconds=period,
        )
        generation = metadata.get("generation", 0)
        return (with_metadata(marked, generation=generation + 1) if generation else marked), period
    present = metadata.get("deletionGracePeriodSeconds", 0)
    if present == 0:
        return document, 0
    if asked is None or asked >= present:
        return None
    end = read_time(metadata["deletionTimestamp"]) - timedelta(seconds=present) + timedelta(seconds=asked)
    if end < now:
        end, asked = now, min(asked, 1)
    return with_metadata(document, deletionTimestamp=write_time(end), deletionGracePeriodSeconds=asked), asked


def status_details(kind: Kind, document: Document) -> Document:
    """The ``Status`` of success that some kinds answer a DELETE with."""
    metadata = document["metadata"]
    details = {"name": metadata["name"], "group": kind.group, "kind": kind.plural, "uid": metadata["uid"]}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {name: value for name, value in details.items() if value},
    }


def require_name_match(document: Document, name: str) -> None:
    """400 when the object's name is not the one in the path."""
    stated = document["metadata"].get("name", "")
    if not stated:
        raise bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")
    if stated != name:
        raise bad_request(f"the name of the object ({stated}) does not match the name on the URL ({name})")
