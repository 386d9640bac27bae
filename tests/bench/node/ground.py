"""One node in an API, its GPUs, and claims for them as a controller leaves them: allocated and reserved for a pod."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dracaena.api.names import DEFAULT_DRIVER_NAME, gpu_device_name
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine

DRIVER = DEFAULT_DRIVER_NAME
NODE = "node-1"
NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Claim:
    """What kubelet knows of a claim."""

    name: str
    uid: str
    pod_uid: str
    """Of the pod that uses it."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a claim has of a GPU that it shares, and `sharing` of its GpuConfig."""

    memory: str
    cores: int = 0
    sharing: Mapping[str, str] = field(default_factory=dict)


SMALL = Part("1Mi", sharing={"enforcement": "BestEffort"})
"""Hundreds of claims on one node can only be shares of its GPUs (shareID, KEP-5075); nothing is made for this one. Each
has its checkpoint, its CDI spec and its line of podlist.json like any other."""


class Ground:
    """Makes what kubelet and the controller would have made before a driver is called."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = KubeClient(Transport.from_kubeconfig(str(kubeconfig), user_agent="bench"))

    def make_node(self) -> None:
        """Make the node."""
        self._client.create(Node, {"metadata": {"name": NODE}})

    def published_devices(self) -> int:
        """Return how many devices the ResourceSlices of the driver hold."""
        return sum(len(one.spec.devices) for one in self._client.list(ResourceSlice).items)

    def delete_slices(self) -> None:
        """Delete the ResourceSlices, so that the next driver begins where the one before did."""
        for one in self._client.list(ResourceSlice).items:
            self._client.delete(ResourceSlice, one.metadata.name)

    def claim(self, name: str, device: str, part: Part | None = None) -> Claim:
        """Make a claim for one device, or for a part of one, and a pod on the node that uses it."""
        container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "nodeName": NODE,
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        }
        pod = self._client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace=NAMESPACE)
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": 1}}
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        self._client.create(ResourceClaim, document, namespace=NAMESPACE)
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
        status = {
            "allocation": {"devices": _devices(device, part), "nodeSelector": {"nodeSelectorTerms": terms}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod.metadata.uid}],
        }
        stored = self._client.merge_patch(
            ResourceClaim, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )
        return Claim(name, stored.metadata.uid, pod.metadata.uid)


def _devices(device: str, part: Part | None) -> dict[str, Any]:
    """Return what is allocated: a device or a part of it."""
    result: dict[str, Any] = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}
    if part is None:
        return {"results": [result]}
    consumed = {"memory": part.memory, "cores": str(part.cores)}
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", "sharing": dict(part.sharing)}
    config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {"results": [{**result, "shareID": str(uuid.uuid4()), "consumedCapacity": consumed}], "config": [config]}


def device_names(machine: str) -> tuple[str, ...]:
    """Return the names of the devices that a recorded machine has."""
    return tuple(gpu_device_name(gpu.uuid) for gpu in read_machine(machine).gpus)
