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


class PodDocument(KubeObject, frozen=True):
    """A pod with nothing dropped: for a status that is read and written back."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "pods"
    KIND: ClassVar[str] = "Pod"

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class NamespaceDocument(KubeObject, frozen=True):
    """A namespace with nothing dropped of spec and status."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "namespaces"
    KIND: ClassVar[str] = "Namespace"
    NAMESPACED: ClassVar[bool] = False

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class JobDocument(KubeObject, frozen=True):
    """A job with nothing dropped of spec and status."""

    API_VERSION: ClassVar[str] = "batch/v1"
    RESOURCE: ClassVar[str] = "jobs"
    KIND: ClassVar[str] = "Job"

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class DeploymentDocument(KubeObject, frozen=True):
    """A deployment with nothing dropped of spec and status."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "deployments"
    KIND: ClassVar[str] = "Deployment"

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class StatefulSetDocument(KubeObject, frozen=True):
    """A stateful set with nothing dropped of spec and status."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "statefulsets"
    KIND: ClassVar[str] = "StatefulSet"

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class ReplicaSetDocument(KubeObject, frozen=True):
    """A replica set with nothing dropped of spec and status."""

    API_VERSION: ClassVar[str] = "apps/v1"
    RESOURCE: ClassVar[str] = "replicasets"
    KIND: ClassVar[str] = "ReplicaSet"

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


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
