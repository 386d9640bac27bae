"""Deleting and binding: the writes in which the client does not send the document."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from dracaena.demo.apiserver import admission, meta
from dracaena.demo.apiserver.errors import ApiError, Qualified, bad_request, conflict, not_found
from dracaena.demo.apiserver.fields import aggregate
from dracaena.demo.apiserver.resources import NAMESPACE, POD
from dracaena.demo.apiserver.storage import ObjectStorage, Stored, key_of
from dracaena.demo.apiserver.times import write_time
from dracaena.demo.apiserver.validation.pods import check_binding
from dracaena.demo.apiserver.writes import Target

Document = dict[str, Any]

_BINDING = Qualified("", "pods/binding")


class Deletes:
    """DELETE in its three ways: at once, after a grace period, after the last finalizer."""

    def __init__(self, storage: ObjectStorage, clock: Callable[[], datetime]) -> None:
        self._storage = storage
        self._clock = clock

    def delete(self, target: Target, options: Document) -> tuple[Stored, bool]:
        """Delete, or begin to delete. Returns the last state, and whether the object is gone."""
        meta.check_delete_options(options)
        kind = target.kind
        with self._storage.lock:
            if kind is NAMESPACE:
                admission.check_namespace_deletion(target.name)
            stored = self._storage.get(kind, target.key)
            if stored is None:
                raise not_found(kind.qualified_resource, target.name)
            meta.check_identity(stored.document, kind.qualified_kind, options.get("preconditions") or {})
            if kind is NAMESPACE:
                return self._delete_namespace(target, stored)
            if kind.rules.grace_s:
                return self._delete_gracefully(target, stored, options)
            return self._delete_plainly(target, stored, options)

    def _put(self, target: Target, document: Document, old: Stored) -> Stored:
        return old if document == old.document else self._storage.put(target.kind, target.key, document)

    def _delete_plainly(self, target: Target, stored: Stored, options: Document) -> tuple[Stored, bool]:
        orphans = target.kind.deletion_orphans
        finalizers = meta.collector_finalizers(stored.document, options, orphans=orphans)
        if not finalizers:
            return self._storage.delete(target.kind, target.key), True
        marked = meta.mark_deleting(meta.with_metadata(stored.document, finalizers=finalizers), self._clock())
        return self._put(target, marked, stored), False

    def _delete_gracefully(self, target: Target, stored: Stored, options: Document) -> tuple[Stored, bool]:
        grace_s = target.kind.rules.grace_s
        assert grace_s is not None
        outcome = meta.graceful_mark(stored.document, options, self._clock(), grace_s)
        if outcome is None:
            return stored, False
        marked, left_s = outcome
        finalizers = meta.collector_finalizers(marked, options)
        marked = meta.with_metadata(marked, finalizers=finalizers or None)
        after = self._put(target, marked, stored)
        if finalizers or left_s > 0:
            return after, False
        return self._storage.delete(target.kind, target.key), True

    def _delete_namespace(self, target: Target, stored: Stored) -> tuple[Stored, bool]:
        """Mark a namespace; whoever empties it removes its finalizer through ``/finalize``, as in a real cluster."""
        document = stored.document
        if not meta.is_deleting(document):
            marked = meta.with_metadata(document, deletionTimestamp=write_time(self._clock()))
            marked |= {"status": document["status"] | {"phase": "Terminating"}}
            return self._put(target, marked, stored), False
        if document["spec"].get("finalizers") or document["metadata"].get("finalizers"):
            return stored, False
        return self._storage.delete(target.kind, target.key), True

    # ---- binding

    def bind(self, target: Target, binding: Document) -> None:
        """POST pods/NAME/binding: the pod gets its node, once."""
        if binding["metadata"].get("name") != target.name:
            raise bad_request("name in URL does not match name in Binding object")
        errors = check_binding(binding)
        if errors:
            raise ApiError(500, "", aggregate(errors))
        with self._storage.lock:
            stored = self._storage.get(POD, key_of(target.namespace, target.name))
            if stored is None:
                raise not_found(POD.qualified_resource, target.name)
            pod = stored.document
            self._check_bindable(pod, binding)
            self._storage.put(POD, key_of(target.namespace, target.name), self._bound(pod, binding))

    def _check_bindable(self, pod: Document, binding: Document) -> None:
        metadata, wanted = pod["metadata"], binding["metadata"]
        name = metadata["name"]
        named = {field: text for field, text in wanted.items() if text}
        meta.check_identity(pod, POD.qualified_resource, named)
        if meta.is_deleting(pod):
            raise conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            node = pod["spec"]["nodeName"]
            raise conflict(_BINDING, name, f'pod {name} is already assigned to node "{node}"')
        if pod["spec"].get("schedulingGates"):
            raise conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")

    def _bound(self, pod: Document, binding: Document) -> Document:
        status = {name: value for name, value in pod["status"].items() if name != "nominatedNodeName"}
        condition = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": write_time(self._clock()),
        }
        kept = [one for one in status.get("conditions") or () if one["type"] != "PodScheduled"]
        status["conditions"] = [*kept, condition]
        metadata = dict(pod["metadata"])
        for part in ("annotations", "labels"):
            added = binding["metadata"].get(part) or {}
            if added:
                merged = (metadata.get(part) or {}) | added
                metadata[part] = {name: merged[name] for name in sorted(merged)}
        spec = pod["spec"] | {"nodeName": binding["target"]["name"]}
        return pod | {"metadata": metadata, "spec": spec, "status": status}
