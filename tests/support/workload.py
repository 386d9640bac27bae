"""Documents of pods, claims and allocations for tests against an API server."""

from __future__ import annotations

from typing import Any

from dracaena.api.names import DEFAULT_DRIVER_NAME, DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceClaimTemplate
from dracaena.kube.client import KubeClient

NAMESPACE = "default"


def claim_spec(count: int = 1) -> dict[str, Any]:
    exactly = {"deviceClassName": DEFAULT_DRIVER_NAME, "count": count}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def create_class(client: KubeClient) -> None:
    client.create(DeviceClass, {"metadata": {"name": DEFAULT_DRIVER_NAME}, "spec": {}})


def create_template(client: KubeClient, name: str, count: int = 1) -> None:
    document = {"metadata": {"name": name}, "spec": {"spec": claim_spec(count)}}
    client.create(ResourceClaimTemplate, document, namespace=NAMESPACE)


def create_claim(client: KubeClient, name: str, count: int = 1) -> ResourceClaim:
    document = {"metadata": {"name": name}, "spec": claim_spec(count)}
    return client.create(ResourceClaim, document, namespace=NAMESPACE)


def create_pod(
    client: KubeClient, name: str, *, template: str = "", claim: str = "", node: str = "", **spec: Any
) -> Pod:
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    container = {"name": "main", "image": "example/app:1.0", "resources": {"claims": [{"name": "gpus"}]}}
    document = {
        "metadata": {"name": name},
        "spec": {"containers": [container], "resourceClaims": [{"name": "gpus", **source}], **spec}
        | ({"nodeName": node} if node else {}),
    }
    return client.create(Pod, document, namespace=NAMESPACE)


def allocate(
    client: KubeClient,
    name: str,
    node: str,
    *,
    pods: tuple[Pod, ...] = (),
    devices: tuple[str, ...] = ("gpu-0",),
    timestamp: str | None = "2026-01-01T00:00:00Z",
) -> ResourceClaim:
    """Allocate a claim as the controller does: finalizer first, then the status in one write."""
    finalizers = {"metadata": {"finalizers": [DELETE_PROTECTION_FINALIZER]}}
    client.merge_patch(ResourceClaim, name, finalizers, namespace=NAMESPACE)
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    results = [{"request": "gpus", "driver": DEFAULT_DRIVER_NAME, "pool": node, "device": device} for device in devices]
    allocation: dict[str, Any] = {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    if timestamp is not None:
        allocation["allocationTimestamp"] = timestamp
    status: dict[str, Any] = {"allocation": allocation}
    if pods:
        status["reservedFor"] = [
            {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid} for pod in pods
        ]
    return client.merge_patch(ResourceClaim, name, {"status": status}, namespace=NAMESPACE, subresource="status")


def get_claim(client: KubeClient, name: str) -> ResourceClaim:
    return client.get(ResourceClaim, name, namespace=NAMESPACE)


def get_pod(client: KubeClient, name: str) -> Pod:
    return client.get(Pod, name, namespace=NAMESPACE)


def pod_names(client: KubeClient) -> list[str]:
    return [pod.metadata.name for pod in client.list(Pod, namespace=NAMESPACE).items]


def claims(client: KubeClient) -> tuple[ResourceClaim, ...]:
    return client.list(ResourceClaim, namespace=NAMESPACE).items
