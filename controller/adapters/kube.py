"""ports.ClaimApi and ports.PodApi over the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import KubeObject, Pod
from dracaena.api.packed import unpacked
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.adapters.counting import counted
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import NotFoundError

T = TypeVar("T", bound=KubeObject)

POD_SCHEDULED = "PodScheduled"


class KubeClaimWrites:
    """Writes are merge patches with the resourceVersion that was read, so nothing is overwritten unseen."""

    def __init__(self, client: KubeClient, count: Callable[[str, str], None] = lambda verb, result: None) -> None:
        """`count` is called after each write with its verb (a method's name) and its result (counting.counted)."""
        self._client = client
        self._count = count

    def read_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """See ports.ClaimApi."""
        return self._read(ResourceClaim, namespace, name)

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        """See ports.PodApi."""
        return self._read(Pod, namespace, name)

    def nominate(self, pod: Pod, node: str) -> Pod:
        """See ports.PodApi."""
        meta = pod.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": {"nominatedNodeName": node or None}}
        with counted("nominate", self._count):
            return self._client.merge_patch(Pod, meta.name, patch, namespace=meta.namespace, subresource="status")

    def probe(self, pod: Pod, at: str) -> Pod:
        """See ports.PodApi. A merge patch replaces lists whole: the guard keeps the other conditions."""
        meta = pod.metadata
        replace = msgspec.structs.replace
        conditions = [
            replace(one, last_probe_time=at) if one.type == POD_SCHEDULED else one for one in pod.status.conditions
        ]
        patch = {
            "metadata": {"resourceVersion": meta.resource_version},
            "status": {"conditions": [msgspec.to_builtins(one) for one in conditions]},
        }
        with counted("probe", self._count):
            return self._client.merge_patch(Pod, meta.name, patch, namespace=meta.namespace, subresource="status")

    def ungate(self, pod: Pod) -> Pod:
        """See ports.PodApi. The server refuses a patch with another UID (409)."""
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "spec": {"schedulingGates": None}}
        with counted("ungate", self._count):
            return self._client.merge_patch(Pod, meta.name, patch, namespace=meta.namespace)

    def mark(self, claim: ResourceClaim) -> ResourceClaim:
        """See ports.ClaimApi. A merge patch replaces lists whole: the guard keeps other finalizers."""
        others = [name for name in unpacked(claim.metadata.finalizers) if name != DELETE_PROTECTION_FINALIZER]
        return self._patch("mark", claim, {"metadata": {"finalizers": [*others, DELETE_PROTECTION_FINALIZER]}})

    def allocate(
        self, claim: ResourceClaim, allocation: Mapping[str, Any], reserved_for: ConsumerReference
    ) -> ResourceClaim:
        """See ports.ClaimApi."""
        reservation = _references([reserved_for])
        status = {"allocation": allocation, "reservedFor": reservation}
        return self._patch("allocate", claim, {"status": status}, subresource="status")

    def reserve(self, claim: ResourceClaim, consumers: Sequence[ConsumerReference]) -> ResourceClaim:
        """See ports.ClaimApi."""
        status = {"reservedFor": _references(consumers) or None}
        return self._patch("reserve", claim, {"status": status}, subresource="status")

    def deallocate(self, claim: ResourceClaim) -> ResourceClaim:
        """See ports.ClaimApi. The API wants allocation, reservations and device status to go together."""
        status = {"allocation": None, "reservedFor": None, "devices": None}
        return self._patch("deallocate", claim, {"status": status}, subresource="status")

    def _read(self, kind: type[T], namespace: str, name: str) -> T | None:
        try:
            return self._client.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None

    def _patch(self, verb: str, claim: ResourceClaim, patch: Mapping[str, Any], subresource: str = "") -> ResourceClaim:
        meta = claim.metadata
        guarded = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": meta.resource_version}}
        with counted(verb, self._count):
            return self._client.merge_patch(
                ResourceClaim, meta.name, guarded, namespace=meta.namespace, subresource=subresource
            )


def _references(consumers: Sequence[ConsumerReference]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(consumer) for consumer in consumers]
