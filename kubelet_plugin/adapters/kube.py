"""What the plugin reads from and writes to the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from dracaena.api.errors import PermanentError
from dracaena.api.objects import KubeObject, Node, Pod, PodCondition, Wire
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from dracaena.kubelet_plugin.ports import ClaimGoneError
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference


class ConditionsOnly(Wire, frozen=True):
    """The part of a node's status that is read here; Node itself is cached by the thousand, so it has no conditions."""

    conditions: tuple[PodCondition, ...] = ()


class KubeClaims:
    """Implements ports.ClaimReader and ports.ClaimStatusWriter."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        """See ClaimReader."""
        try:
            claim = self._client.get(ResourceClaim, reference.name, namespace=reference.namespace)
        except NotFoundError as error:
            raise ClaimGoneError(f"claim {reference} (UID {reference.uid}) does not exist") from error
        if claim.metadata.uid != reference.uid:
            raise ClaimGoneError(
                f"claim {reference} was replaced: it has UID {claim.metadata.uid}, kubelet asked for {reference.uid}"
            )
        return claim

    def find_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """See ClaimReader. Raises KubeError."""
        try:
            return self._client.get(ResourceClaim, name, namespace=namespace)
        except NotFoundError:
            return None

    def set_devices(self, claim: ResourceClaim, devices: Sequence[msgspec.Raw | Mapping[str, Any]]) -> None:
        """See ClaimStatusWriter. The version in the patch protects entries that were added since the claim was read."""
        meta = claim.metadata
        patch = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"devices": list(devices)},
        }
        try:
            self._client.merge_patch(ResourceClaim, meta.name, patch, namespace=meta.namespace, subresource="status")
        except NotFoundError as error:
            raise ClaimGoneError(f"claim {claim.key} (UID {meta.uid}) does not exist") from error
        except (ForbiddenError, InvalidError) as error:
            raise PermanentError(str(error)) from error


class NodeReadiness(KubeObject, frozen=True):
    """A node with its conditions."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "nodes"
    KIND: ClassVar[str] = "Node"

    status: ConditionsOnly = ConditionsOnly()


msgspec.json.Decoder(NodeReadiness)  # inspected by the thread that imports: see kube.client


def node_is_ready(client: KubeClient, name: str) -> bool:
    """Whether the API server considers a node ready. Raises KubeError."""
    conditions = client.get(NodeReadiness, name).status.conditions
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def set_node_condition(client: KubeClient, name: str, condition: Mapping[str, str]) -> None:
    """Set one condition of a Node's status; the others stay. Raises KubeError."""
    client.strategic_patch(Node, name, {"status": {"conditions": [dict(condition)]}}, subresource="status")


class KubePods:
    """Implements ports.PodAccess for the pods of one node. `node_view` reads them, `client` writes."""

    def __init__(self, client: KubeClient, node_view: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_view = node_view
        self._node_name = node_name

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        """See PodAccess.

        Uses a list: the node authorizer allows that by its selector, but a get only once its own watch has seen the
        pod.
        """
        selector = f"metadata.name={name},spec.nodeName={self._node_name}"
        found = self._node_view.list(Pod, namespace=namespace, field_selector=selector).items
        return found[0] if found else None

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        """See PodAccess. The UID in the patch makes the server refuse it for a new pod of the same name."""
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": dict(annotations)}}
        try:
            self._client.merge_patch(Pod, pod.metadata.name, patch, namespace=pod.metadata.namespace)
        except (NotFoundError, ConflictError):
            return  # the pod is gone: the watch will report it


class KubeSlices:
    """Implements ports.SliceAccess for one driver on one node. `node_view` reads the Node, `client` does the rest."""

    def __init__(self, client: KubeClient, node_view: KubeClient, driver: str, node_name: str) -> None:
        self._client = client
        self._node_view = node_view
        self._node_name = node_name
        self.field_selector = f"spec.driver={driver},spec.nodeName={node_name}"

    def read_node(self) -> Node:
        """See SliceAccess."""
        return self._node_view.get(Node, self._node_name)

    def list_slices(self) -> tuple[ResourceSlice, ...]:
        """See SliceAccess."""
        return self._client.list(ResourceSlice, field_selector=self.field_selector).items

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        """See SliceAccess."""
        return self._client.create(ResourceSlice, document)

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        """See SliceAccess."""
        patch = {"metadata": {"resourceVersion": published.metadata.resource_version}, "spec": spec}
        return self._client.merge_patch(ResourceSlice, published.metadata.name, patch)

    def delete_slice(self, published: ResourceSlice) -> None:
        """See SliceAccess."""
        meta = published.metadata
        try:
            self._client.delete(ResourceSlice, meta.name, uid=meta.uid, resource_version=meta.resource_version)
        except NotFoundError:
            return
