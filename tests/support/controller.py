"""A controller over an API server, in this process, and a cluster for it to decide about."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceSlice
from dracaena.controller.program import Controller
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.wiring import upkeep_rules
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import ApiUnavailableError
from dracaena.kube.transport import Stream, Transport
from dracaena.process.clock import Clock, SystemClock
from support.allocation import DRIVER, pool_slice, request
from support.api_ground import ApiGround

NAMESPACE = "default"
ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110"}
"""What a node has for pods beside GPUs."""


class DyingTransport(Transport):
    """Lets a number of claim writes through; then the process is as good as dead: no request gets out any more."""

    writes_left: int = 1_000_000

    def __init__(self, configuration: Any, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.dead = threading.Event()
        self._counting = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        with self._counting:
            if method == "PATCH" and "/resourceclaims/" in path:
                if self.writes_left == 0:
                    self.dead.set()
                self.writes_left -= 1
            self._refuse_when_dead(method, path)
        return super().request(method, path, query=query, body=body, content_type=content_type)

    def stream(self, path: str, *, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        self._refuse_when_dead("WATCH", path)
        return super().stream(path, query=query, read_timeout_s=read_timeout_s)

    def _refuse_when_dead(self, method: str, path: str) -> None:
        if self.dead.is_set():
            raise ApiUnavailableError(f"{method} {path}", None, "", "killed")


def transport(server: ApiGround, folder: Path, *, writes: int = 1_000_000) -> DyingTransport:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(server.kubeconfig()))
    made = DyingTransport.from_kubeconfig(str(path), user_agent="tests")
    assert isinstance(made, DyingTransport)
    made.writes_left = writes
    return made


@contextmanager
def running_controller(
    connection: Transport,
    *,
    registry: CollectorRegistry | None = None,
    settle_s: float = 0.05,
    longest_bind_s: float = 1560.0,
    nominate_above_nodes: int = 500,
    starvation_wait_s: float = 300.0,
    clock: Clock | None = None,
) -> Iterator[Controller]:
    settings = ControllerSettings(
        longest_bind_s=longest_bind_s,
        leader_elect=False,
        nominate_above_nodes=nominate_above_nodes,
        starvation_wait_s=starvation_wait_s,
    )
    usual = upkeep_rules(settings)
    controller = Controller(
        settings,
        KubeClient(connection),
        clock=clock or SystemClock(),
        registry=registry or CollectorRegistry(),
        rules=replace(usual, bounds=replace(usual.bounds, settle_s=settle_s)),
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def publish(client: KubeClient, machines: Mapping[str, Machine]) -> None:
    """Make nodes, their slices and the class."""
    for name, made in machines.items():
        client.create(Node, {"metadata": {"name": name}, "status": {"allocatable": ROOM}})
        client.merge_patch(Node, name, {"spec": {"taints": None}})  # a new node is not ready until a kubelet says so
        item = pool_slice(name, made)
        spec = msgspec.to_builtins(item.spec)
        client.create(ResourceSlice, {"metadata": {"name": item.metadata.name}, "spec": spec})
    client.create(DeviceClass, {"metadata": {"name": DRIVER}, "spec": {}})


def ask(client: KubeClient, pod_name: str, claims: Mapping[str, int], **spec: Any) -> Pod:
    """Make claims of these counts and a pod that names them."""
    for name, count in claims.items():
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request(count=count)]}}}
        client.create(ResourceClaim, document, namespace=NAMESPACE)
    return create_pod(client, pod_name, *claims, **spec)


def create_pod(client: KubeClient, pod_name: str, *claims: str, **spec: Any) -> Pod:
    entries = [{"name": f"c{place}", "resourceClaimName": name} for place, name in enumerate(claims)]
    uses = [{"name": entry["name"]} for entry in spec.get("resourceClaims", entries)]
    container = {"name": "main", "image": "example/app:1.0", "resources": {"claims": uses}}
    whole = {"containers": [container], "resourceClaims": entries, **spec}
    return client.create(Pod, {"metadata": {"name": pod_name}, "spec": whole}, namespace=NAMESPACE)


def claims_by_name(client: KubeClient) -> dict[str, ResourceClaim]:
    return {item.metadata.name: item for item in client.list(ResourceClaim, namespace=NAMESPACE).items}


def allocated_all(client: KubeClient) -> dict[str, ResourceClaim] | None:
    """All claims when each is allocated, else None."""
    found = claims_by_name(client)
    return found if all(item.status.allocation is not None for item in found.values()) else None


def devices_of(item: ResourceClaim) -> tuple[tuple[str, str], ...]:
    if item.status.allocation is None:
        return ()
    return tuple((result.pool, result.device) for result in item.status.allocation.devices.results)


def check_invariants(client: KubeClient) -> None:
    """What must hold at every moment: no device twice, no allocation that nobody would free."""
    held = [device for item in claims_by_name(client).values() for device in devices_of(item)]
    assert len(held) == len(set(held)), held
    for item in claims_by_name(client).values():
        if item.status.allocation is not None:
            assert DELETE_PROTECTION_FINALIZER in item.metadata.finalizers, item.key
            assert item.status.allocation.allocation_timestamp, item.key
