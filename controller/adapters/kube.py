"""ports.ClaimApi and ports.PodReader over the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import ConsumerReference, KubeObject, Pod, ResourceClaim
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import NotFoundError

T = TypeVar("T", bound=KubeObject)


class KubeClaims:
    """Writes are merge patches with the resourceVersion that was read, so nothing is overwritten unseen."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def read_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """See ports.ClaimApi."""
        return self._read(ResourceClaim, namespace, name)

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        """See ports.PodReader."""
        return self._read(Pod, namespace, name)

    def mark(self, claim: ResourceClaim, *, annotation: str, value: str) -> ResourceClaim:
        """See ports.ClaimApi. A merge patch replaces lists whole: the guard keeps other finalizers."""
        others = [name for name in claim.metadata.finalizers if name != DELETE_PROTECTION_FINALIZER]
        metadata = {"finalizers": [*others, DELETE_PROTECTION_FINALIZER], "annotations": {annotation: value}}
        return self._patch(claim, {"metadata": metadata})

    def allocate(
        self, claim: ResourceClaim, allocation: Mapping[str, Any], reserved_for: ConsumerReference
    ) -> ResourceClaim:
        """See ports.ClaimApi."""
        reservation = _references([reserved_for])
        status = {"allocation": allocation, "reservedFor": reservation}
        return self._patch(claim, {"status": status}, subresource="status")

    def reserve(self, claim: ResourceClaim, consumers: Sequence[ConsumerReference]) -> ResourceClaim:
        """See ports.ClaimApi."""
        return self._patch(claim, {"status": {"reservedFor": _references(consumers) or None}}, subresource="status")

    def deallocate(self, claim: ResourceClaim) -> ResourceClaim:
        """See ports.ClaimApi. The API wants allocation, reservations and device status to go together."""
        status = {"allocation": None, "reservedFor": None, "devices": None}
        return self._patch(claim, {"status": status}, subresource="status")

    def _read(self, kind: type[T], namespace: str, name: str) -> T | None:
        try:
            return self._client.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None

    def _patch(self, claim: ResourceClaim, patch: Mapping[str, Any], subresource: str = "") -> ResourceClaim:
        meta = claim.metadata
        guarded = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": meta.resource_version}}
        return self._client.merge_patch(
            ResourceClaim, meta.name, guarded, namespace=meta.namespace, subresource=subresource
        )


def _references(consumers: Sequence[ConsumerReference]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(consumer) for consumer in consumers]
