"""What scenarios send: paths, and documents that say no more than they must."""

from __future__ import annotations

from typing import Any

NAMESPACE = "desk"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
RESOURCE = "/apis/resource.k8s.io/v1"
PODS = f"{CORE}/pods"
EVENTS = f"{CORE}/events"
NODES = "/api/v1/nodes"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
STATEFUL_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATES = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaimtemplates"
CLASSES = f"{RESOURCE}/deviceclasses"
SLICES = f"{RESOURCE}/resourceslices"

DRIVER = "gpu.example.com"
PROTECTION = "resource.kubernetes.io/delete-protection"

Document = dict[str, Any]


def pod(name: str, metadata: Document | None = None, **spec: Any) -> Document:
    """A pod of one container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name} | (metadata or {}),
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}]} | spec,
    }


def node(name: str, metadata: Document | None = None, **fields: Any) -> Document:
    """A node; `fields` are spec and status."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name} | (metadata or {})} | fields


def exactly(name: str = "gpus", **fields: Any) -> Document:
    """A device request."""
    return {"name": name, "exactly": {"deviceClassName": "gpu"} | fields}


def claim(name: str, metadata: Document | None = None, **devices: Any) -> Document:
    """A ResourceClaim, for one GPU if `devices` has no requests."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name} | (metadata or {}),
        "spec": {"devices": {"requests": [exactly()]} | devices},
    }


def opaque(parameters: Any, driver: str = DRIVER) -> Document:
    """One entry of a config list."""
    return {"opaque": {"driver": driver, "parameters": parameters}}


def result(device: str = "gpu-0", **fields: Any) -> Document:
    """One device of an allocation."""
    return {"request": "gpus", "driver": DRIVER, "pool": "node-a", "device": device} | fields


def allocation(*results: Document, **fields: Any) -> Document:
    """What an allocator writes."""
    return {"devices": {"results": list(results)}} | fields


def consumer(name: str = "pod-a", uid: str = "uid-a") -> Document:
    """One entry of reservedFor."""
    return {"resource": "pods", "name": name, "uid": uid}


def device_class(name: str, **spec: Any) -> Document:
    """A DeviceClass."""
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def template(name: str, devices: Document, **fields: Any) -> Document:
    """A ResourceClaimTemplate; `fields` stand beside the claim's spec."""
    spec = {"spec": {"devices": devices}} | fields
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": spec,
    }


def resource_slice(name: str, devices: Any, metadata: Document | None = None, **spec: Any) -> Document:
    """A ResourceSlice of one node's pool; a field of None is left out."""
    fields = {
        "driver": DRIVER,
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-a",
        "devices": devices,
    } | spec
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name} | (metadata or {}),
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def event(name: str, **fields: Any) -> Document:
    """A core/v1 Event about a pod."""
    about = {"kind": "Pod", "namespace": NAMESPACE, "name": "pod-a", "uid": "uid-a"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about} | fields


def lease(name: str, metadata: Document | None = None, **spec: Any) -> Document:
    """A Lease."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name} | (metadata or {}),
        "spec": spec,
    }


def job(name: str, metadata: Document | None = None, **spec: Any) -> Document:
    """A job of one pod that runs once."""
    containers = [{"name": "main", "image": "busybox:1", "command": ["true"]}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name} | (metadata or {}),
        "spec": {"template": template} | spec,
    }


def deployment(name: str, metadata: Document | None = None, **spec: Any) -> Document:
    """A deployment of one pod."""
    containers = [{"name": "main", "image": "busybox:1"}]
    fields = {
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}},
    } | spec
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name} | (metadata or {}),
        "spec": {key: value for key, value in fields.items() if value is not None},
    }
