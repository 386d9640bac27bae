"""Stand-in for the namespace controller: empties a namespace that is being deleted, then lets it be removed.

Like the real one, it deletes everything in the namespace, says in the namespace's conditions what is left and which
finalizers it waits for, and removes its own finalizer when nothing is left. It leaves the finalizers of others alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceClaimTemplate
from dracaena.demo.objects import (
    DeploymentDocument,
    JobDocument,
    NamespaceDocument,
    ReplicaSetDocument,
    StatefulSetDocument,
)
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle, stamped
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import NotFoundError
from dracaena.kube.events import Event
from dracaena.kube.lease import Lease
from dracaena.process.clock import Clock, rfc3339

FINALIZER: Final = "kubernetes"
"""In spec.finalizers of every namespace whose content is not removed yet."""

CONTENT: Final[tuple[type[KubeObject], ...]] = (
    DeploymentDocument,
    ReplicaSetDocument,
    StatefulSetDocument,
    JobDocument,
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    Lease,
    Event,
)
"""The kinds in a namespace, in the order in which they are deleted: Events last, because deletions create some."""


class NamespaceController(CachedStandIn):
    """Runs between start() and stop(), on a cache of its own."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__("namespaces", client, clock, events_as="namespace-controller")
        self._namespaces = self._cache(NamespaceDocument)

    def _reconcile(self) -> float | None:
        going = [one for one in self._namespaces.values() if one.metadata.deletion_timestamp is not None]
        settle(going, self._finish, "namespace")
        return RETRY_S if going else None

    def _finish(self, namespace: NamespaceDocument) -> None:
        if FINALIZER not in namespace.spec.get("finalizers", ()):
            return
        name = namespace.metadata.name
        left = [item for kind in CONTENT for item in self._delete_all(kind, name)]
        self._report(namespace, left)
        if not left:
            self._let_go(name)

    def _delete_all(self, kind: type[KubeObject], namespace: str) -> Sequence[KubeObject]:
        """Delete all objects of a kind and return those that stay for now."""
        for item in self._client.list(kind, namespace=namespace).items:
            if item.metadata.deletion_timestamp is None:
                with suppress(NotFoundError):
                    self._delete(item, propagation_policy="Background")
        return self._client.list(kind, namespace=namespace).items

    def _report(self, namespace: NamespaceDocument, left: Sequence[KubeObject]) -> None:
        said = namespace.status.get("conditions", ())
        conditions = stamped(conditions_of(left), said, rfc3339(self._clock.now()))
        known = {one["type"] for one in conditions}
        conditions += [one for one in said if one["type"] not in known]
        if conditions != said:
            patch = {"metadata": {"uid": namespace.metadata.uid}, "status": {"conditions": conditions}}
            self._client.merge_patch(NamespaceDocument, namespace.metadata.name, patch, subresource="status")

    def _let_go(self, name: str) -> None:
        """Remove the finalizer through the only sub-resource that can."""
        now = self._client.get(NamespaceDocument, name)
        kept = [one for one in now.spec.get("finalizers", ()) if one != FINALIZER]
        metadata: dict[str, Any] = {
            "name": name,
            "uid": now.metadata.uid,
            "resourceVersion": now.metadata.resource_version,
        }
        metadata |= {"labels": now.metadata.labels, "annotations": now.metadata.annotations}
        metadata |= {"finalizers": now.metadata.finalizers}
        document = {"metadata": metadata, "spec": {"finalizers": kept}, "status": now.status}
        self._client.replace(NamespaceDocument, document, subresource="finalize")


def conditions_of(left: Iterable[KubeObject]) -> list[dict[str, Any]]:
    """Return the conditions of a namespace in which this is left; the real controller has three more, about failures
    that cannot happen here."""
    present = list(left)
    kinds = Counter(f"{item.RESOURCE}.{item.API_VERSION.rpartition('/')[0]}" for item in present)
    finalizers = Counter(name for item in present for name in item.metadata.finalizers)
    remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(kinds.items()))
    waits_for = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    waiting = "Some content in the namespace has finalizers remaining: "
    return [
        _condition("NamespaceContentRemaining", "SomeResourcesRemain", "Some resources are remaining: ", remaining)
        if present
        else _condition("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
        _condition("NamespaceFinalizersRemaining", "SomeFinalizersRemain", waiting, waits_for)
        if waits_for
        else _condition("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "No content has finalizers"),
    ]


def _condition(kind: str, reason: str, message: str, what: str = "") -> dict[str, Any]:
    return {"type": kind, "status": "True" if what else "False", "reason": reason, "message": message + what}
