"""The whole plugin in a world of its own: an API server with one node, the node's folders, kubelet's calls."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc

from dracaena.api.names import gpu_device_name
from dracaena.api.objects import KubeObject, Node, ObjectMeta, Pod
from dracaena.api.podlist import decode_podlist
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.claims.calls import ANSWER_RESERVE_S
from dracaena.kubelet_plugin.program import Program
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from support.api_ground import ApiGround
from support.forked_programs import ForkedProgram
from support.kube import client_from, wait_for

DRIVER = "gpu.dracaena.dev"
NODE = "node-1"
MACHINE = "7-gpu-box"
GPUS = [gpu.uuid for gpu in read_machine(MACHINE).gpus]
CALL_S = 20
START_S = 60
"""For a process to start beside others on a loaded machine."""
NO_WAIT_S = ANSWER_RESERVE_S / 2
"""Leaves a call no time to wait for devices. With all of the reserve it may have some: gRPC rounds timeouts up, by
0.1 s here, and a plugin whose clock a test moves waits for those 0.1 s until the call is over."""


class NodeEvent(KubeObject, frozen=True):
    """An Event, with what says why it was written."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "events"
    KIND: ClassVar[str] = "Event"

    reason: str = ""
    message: str = ""


class World:
    """An API server with one node, and the folders of that node."""

    def __init__(self, server: ApiGround, folder: Path) -> None:
        self.folder = folder
        self.server = server
        self.client: KubeClient = client_from(server.kubeconfig(), folder)
        self.kubelet = folder / "k"
        self.create(Node, {"metadata": {"name": NODE}})

    def create(self, kind: type[KubeObject], document: Mapping[str, Any], namespace: str = "") -> KubeObject:
        return self.client.create(kind, document, namespace=namespace)

    def settings(self, **changes: Any) -> PluginSettings:
        given = {
            "node_name": NODE,
            "machine": MACHINE,
            "kubeconfig": str(self.folder / "kubeconfig"),
            "kubelet_root": str(self.kubelet),
            "cdi_root": str(self.folder / "cdi"),
            "dev_root": str(self.folder / "host"),
            "driver_root": str(self.folder / "host"),
            "host_root_mount": str(self.folder / "host"),
            **changes,
        }
        return PluginSettings(**given)

    def arguments(self, **changes: Any) -> list[str]:
        settings = self.settings(**changes)
        names = ("node_name", "machine", "kubeconfig", "kubelet_root", "cdi_root", "dev_root", "driver_root", "pod_uid")
        return [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in names]

    def slices(self) -> list[ResourceSlice]:
        return list(self.client.list(ResourceSlice).items)

    def allocated_claim(
        self,
        name: str,
        gpus: list[int],
        pod: Pod | None = None,
        *,
        devices: Sequence[str] = (),
        config: Sequence[Mapping[str, Any]] = (),
        **fields: Any,
    ) -> ResourceClaim:
        """Create a claim and allocate it as a controller does: GPUs by number, other devices by name. `config`: of the
        allocation; `fields`: further ones of each result."""
        names = [*(gpu_device_name(GPUS[n]) for n in gpus), *devices]
        request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": len(names)}}
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        self.client.create(ResourceClaim, document, namespace="default")
        results = [{"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **fields} for device in names]
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
        status: dict[str, Any] = {
            "allocation": {
                "devices": {"results": results, "config": list(config)},
                "nodeSelector": {"nodeSelectorTerms": terms},
            }
        }
        if pod is not None:
            status["reservedFor"] = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}]
        return self.client.merge_patch(
            ResourceClaim, name, {"status": status}, namespace="default", subresource="status"
        )

    def pod(self, name: str, claim: str, *, node: str = NODE) -> Pod:
        """Create a pod that runs on the node and uses a claim."""
        container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpus"}]}}
        spec = {
            "nodeName": node,
            "containers": [container],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
        }
        return self.client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    def further_pod(self, name: str, claim: ResourceClaim) -> Pod:
        """Create one more pod of a claim as kube-scheduler brings it here: the claim is reserved for it, then bound."""
        pod, meta = self.pod(name, claim.metadata.name, node=""), claim.metadata
        now = self.client.get(ResourceClaim, meta.name, namespace=meta.namespace).status.reserved_for
        pods = [(c.name, c.uid) for c in now] + [(name, pod.metadata.uid)]
        reserved = [{"resource": "pods", "name": n, "uid": uid} for n, uid in pods]
        patch = {"status": {"reservedFor": reserved}}
        self.client.merge_patch(ResourceClaim, meta.name, patch, namespace=meta.namespace, subresource="status")
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        self.client.create_subresource(Pod, name, "binding", binding, namespace=meta.namespace)
        return pod

    def annotations(self, name: str) -> Mapping[str, str]:
        return self.client.get(Pod, name, namespace="default").metadata.annotations

    def events(self) -> list[NodeEvent]:
        return list(self.client.list(NodeEvent).items)

    def podlist(self) -> list[tuple[str, tuple[str, ...]]]:
        data = (self.kubelet / "pod-resources" / "podlist.json").read_bytes()
        return [(entry.name, entry.gpu_list) for entry in decode_podlist(data)]

    def spec_text(self, claim: ResourceClaim) -> str:
        """The CDI spec of a claim as it is on disk."""
        return (self.folder / "cdi" / f"{DRIVER}-claim_{claim.metadata.uid}.json").read_text(encoding="utf-8")

    def socket(self, pod_uid: str = "") -> Path:
        """Ask the registration socket where the driver serves, as kubelet does; wait until somebody answers."""
        return Path(self._info(pod_uid).endpoint)

    def versions(self, pod_uid: str = "") -> list[str]:
        """Ask the registration socket which services there are."""
        return list(self._info(pod_uid).supported_versions)

    def _info(self, pod_uid: str) -> registration.PluginInfo:
        with grpc.insecure_channel(f"unix:{self._registry_socket(pod_uid)}") as channel:
            info: registration.PluginInfo = registration_grpc.RegistrationStub(channel).GetInfo(  # type: ignore[no-untyped-call]  # generated
                registration.InfoRequest(), timeout=START_S, wait_for_ready=True
            )
        return info

    def register(self, pod_uid: str = "") -> None:
        """Tell the plugin that kubelet has taken it, as kubelet does after GetInfo."""
        with grpc.insecure_channel(f"unix:{self._registry_socket(pod_uid)}") as channel:
            registration_grpc.RegistrationStub(channel).NotifyRegistrationStatus(  # type: ignore[no-untyped-call]
                registration.RegistrationStatus(plugin_registered=True), timeout=START_S, wait_for_ready=True
            )

    def _registry_socket(self, pod_uid: str) -> Path:
        """Wait until there is one: gRPC alone tries again after longer and longer pauses."""
        tail = f"-{pod_uid}" if pod_uid else ""
        socket = self.kubelet / "plugins_registry" / f"{DRIVER}{tail}-reg.sock"
        wait_for(socket.exists, f"{socket}", START_S)
        return socket

    def prepare(
        self, *claims: ResourceClaim, pod_uid: str = "", timeout_s: float = CALL_S
    ) -> dict[str, v1.NodePrepareResourceResponse]:
        """Prepare as kubelet does. With a timeout of NO_WAIT_S the plugin has no time to wait for devices."""
        request = v1.NodePrepareResourcesRequest(claims=[_claim(c) for c in claims])
        with grpc.insecure_channel(f"unix:{self.socket(pod_uid)}") as channel:
            stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
            return dict(stub.NodePrepareResources(request, timeout=timeout_s, wait_for_ready=True).claims)

    def unprepare(self, *claims: ResourceClaim, pod_uid: str = "") -> dict[str, str]:
        request = v1.NodeUnprepareResourcesRequest(claims=[_claim(c) for c in claims])
        with grpc.insecure_channel(f"unix:{self.socket(pod_uid)}") as channel:
            stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer = stub.NodeUnprepareResources(request, timeout=CALL_S, wait_for_ready=True).claims
        return {uid: entry.error for uid, entry in answer.items()}


def _claim(claim: ResourceClaim) -> v1.Claim:
    meta: ObjectMeta = claim.metadata
    return v1.Claim(namespace=meta.namespace, name=meta.name, uid=meta.uid)


def http(program: Program, path: str) -> tuple[int, str]:
    assert program.http is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{program.http.port}{path}", timeout=CALL_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def start_process(world: World, *, more: Sequence[str] = (), **changes: Any) -> ForkedProgram:
    """Start the plugin as a process. `more`: further arguments."""
    return ForkedProgram(("kubelet-plugin", *world.arguments(**changes), *more))


def start_command(world: World, *, more: Sequence[str] = (), **changes: Any) -> subprocess.Popen[str]:
    """The same as on a node: by its command, in an interpreter of its own."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dracaena.cli.main", "kubelet-plugin", *world.arguments(**changes), *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
