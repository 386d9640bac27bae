"""Stand-in for the garbage collector: what is deleted with its owner, and what stays when its owner is deleted.

Like the real one, it deletes an object whose owners are all gone; before an owner that is deleted in the foreground
goes, all that it owns is deleted; orphans lose their reference to the owner. It knows the kinds that this cluster
serves, and leaves objects with an owner of another kind alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dracaena.api.objects import KubeObject, OwnerReference, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.demo.objects import (
    DeploymentDocument,
    JobDocument,
    NodeWithStatus,
    ReplicaSetDocument,
    StatefulSetDocument,
)
from dracaena.demo.reconcile import RETRY_S, CachedStandIn, settle
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock

OWNED: Final[tuple[type[KubeObject], ...]] = (ReplicaSetDocument, Pod, ResourceClaim, ResourceSlice)
"""Kinds that others own."""

OWNERS: Final[tuple[type[KubeObject], ...]] = (
    DeploymentDocument,
    ReplicaSetDocument,
    StatefulSetDocument,
    JobDocument,
    Pod,
    NodeWithStatus,
)
"""Kinds that own others."""

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"


class GarbageCollector(CachedStandIn):
    """Runs between start() and stop(), on caches of its own."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        super().__init__("garbage", client, clock, events_as="garbage-collector")
        kinds = dict.fromkeys((*OWNED, *OWNERS))
        self._seen: dict[type[KubeObject], Any] = {kind: self._cache(kind) for kind in kinds}
        self._owner_kinds = {(kind.API_VERSION, kind.KIND): kind for kind in OWNERS}

    def _reconcile(self) -> float | None:
        results = (
            settle(self._all(OWNED), self._collect, "garbage"),
            settle(self._all(OWNERS), self._finish_owner, "owner"),
        )
        return None if all(results) else RETRY_S

    def _all(self, kinds: Iterable[type[KubeObject]]) -> list[KubeObject]:
        return [item for kind in kinds for item in self._seen[kind].values()]

    def _collect(self, seen: KubeObject) -> None:
        if not self._is_garbage(seen):
            return
        # The cache may be behind: an owner that orphans its objects is gone right after its reference was removed.
        meta = seen.metadata
        item = self._read(type(seen), meta.name, meta.namespace)
        if item is not None and self._is_garbage(item):
            version = item.metadata.resource_version
            self._delete(item, resource_version=version, propagation_policy="Background")

    def _is_garbage(self, item: KubeObject) -> bool:
        owners = item.metadata.owner_references
        return (
            bool(owners)
            and item.metadata.deletion_timestamp is None
            and all(self._is_gone(item, owner) for owner in owners)
        )

    def _is_gone(self, item: KubeObject, owner: OwnerReference) -> bool:
        kind = self._owner_kinds.get((owner.api_version or Pod.API_VERSION, owner.kind))
        if kind is None:
            return False
        namespace = item.metadata.namespace if kind.NAMESPACED else ""
        seen = self._seen[kind].get(f"{namespace}/{owner.name}" if namespace else owner.name)
        if seen is None or seen.metadata.uid != owner.uid:
            # The caches may be behind one another: only the API itself can say that an owner is gone.
            seen = self._read(kind, owner.name, namespace)
        return seen is None or seen.metadata.uid != owner.uid

    def _finish_owner(self, owner: KubeObject) -> None:
        """What the deletion of an owner waits for."""
        finalizers = owner.metadata.finalizers
        if owner.metadata.deletion_timestamp is None or not {ORPHAN, FOREGROUND} & set(finalizers):
            return
        owned = [item for item in self._listed(owner.metadata.namespace) if _names(item, owner)]
        for item in owned:
            if ORPHAN in finalizers:
                self._release(item, owner)
            elif item.metadata.deletion_timestamp is None:
                self._delete(item, propagation_policy="Background")
        if owned and FOREGROUND in finalizers:
            return  # they wake us when they go
        self._drop_finalizers(owner, ORPHAN, FOREGROUND)

    def _listed(self, namespace: str) -> list[KubeObject]:
        """Everything that may be owned, read afresh: objects that a cache has not seen yet must not be left behind."""
        kinds = [kind for kind in OWNED if kind.NAMESPACED or not namespace]
        return [item for kind in kinds for item in self._client.list(kind, namespace=namespace).items]

    def _release(self, item: KubeObject, owner: KubeObject) -> None:
        """Remove the owner with a patch by UID, which leaves the fields of other owners as they are."""
        meta = item.metadata
        gone = {"$patch": "delete", "uid": owner.metadata.uid}
        patch = {"metadata": {"uid": meta.uid, "ownerReferences": [gone]}}
        self._client.strategic_patch(type(item), meta.name, patch, namespace=meta.namespace)


def _names(item: KubeObject, owner: KubeObject) -> bool:
    return any(one.uid == owner.metadata.uid for one in item.metadata.owner_references)
