"""Kinds and fields that only the stand-ins need, in addition to those of dracaena.api."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from dracaena.api.objects import KubeObject, Node, NodeStatus, Pod, PodCondition
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice


class ReportedStatus(NodeStatus, frozen=True):
    """status of a node; its conditions have the fields of a pod's."""

    conditions: list[PodCondition] = msgspec.field(default_factory=list)


class NodeWithStatus(Node, frozen=True):
    """A node with what its kubelet reports."""

    status: ReportedStatus = ReportedStatus()


class WholeDocument(KubeObject, frozen=True):
    """An object with nothing dropped of spec and status."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class PodDocument(WholeDocument, frozen=True):
    """A pod, for a status that is read and written back."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "pods"
    KIND: ClassVar[str] = "Pod"


class NamespaceDocument(WholeDocument, frozen=True):
    """A namespace."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "namespaces"
    KIND: ClassVar[str] = "Namespace"
    NAMESPACED: ClassVar[bool] = False


class JobDocument(WholeDocument, frozen=True):
    """A job."""

    API_VERSION: ClassVar[str] = "batch/v1"
    RESOURCE: ClassVar[str] = "jobs"
    KIND: ClassVar[str] = "Job"


class DeploymentDocument(WholeDocument, frozen=True):
    """A deployment."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "deployments"
    KIND: ClassVar[str] = "Deployment"


class StatefulSetDocument(WholeDocument, frozen=True):
    """A stateful set."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "statefulsets"
    KIND: ClassVar[str] = "StatefulSet"


class ReplicaSetDocument(WholeDocument, frozen=True):
    """A replica set."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "replicasets"
    KIND: ClassVar[str] = "ReplicaSet"


def owned_by(item: KubeObject, owner: KubeObject) -> bool:
    """Whether `owner` is the controller of `item`."""
    return any(one.controller and one.uid == owner.metadata.uid for one in item.metadata.owner_references)


def owner_reference(owner: KubeObject) -> dict[str, Any]:
    """Return the entry of ownerReferences in what `owner` makes."""
    return {
        "apiVersion": owner.API_VERSION,
        "kind": owner.KIND,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


KINDS: dict[tuple[str, str], type[KubeObject]] = {
    (kind.API_VERSION, kind.KIND): kind
    for kind in (DeviceClass, Node, Pod, ResourceClaim, ResourceClaimTemplate, ResourceSlice)
}
"""What a manifest of the demo may contain, by apiVersion and kind."""
