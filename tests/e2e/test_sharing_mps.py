"""Pods of two namespaces share a GPU by MPS, on the real control plane and kubelet: the supervisor runs the fake
driver's control program, and each container is looked into from its node.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dracaena.api import mps
from dracaena.api.mps import CLIENT_PIPES
from dracaena.kubelet_plugin.upkeep.mps_fault_watch import TOLD
from dracaena.mps.planning.state import ComputeMode, Role
from e2e import isolation
from e2e.api import Api
from e2e.cluster import Cluster
from e2e.gpu_pods import FREED_S, seen_inside, traces
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.pods import RUN_S, Pod, container_id, delete_pod, wait_new_container, wait_pending
from e2e.waiting import eventually
from support.fake_mps import FakeCudaClient
from support.gpu_lists import flag
from support.mps_model import OK
from support.mps_process import SupervisedNode

SHARE_CLASS: Final = f"share.{DRIVER}"
TEAM: Final = "team"
PUBLISH_S = 60.0

ROOT = isolation.ROOT / "m"
"""Short: sockets lie below it."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod with a claim of its own for a part of a GPU, in its namespace."""

    name: str
    namespace: str = "default"
    memory: str = "6Gi"
    cores: int = 30
    restart_policy: str = "Never"

    @property
    def claim(self) -> str:
        return f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims/{self.name}"

    @property
    def pod(self) -> TenantPod:
        environment = {"TENANT": self.name}
        return TenantPod(
            self.name,
            claims={"gpu": self.name},
            environment=environment,
            restart_policy=self.restart_policy,
            namespace=self.namespace,
        )


@dataclass(frozen=True, slots=True)
class TenantPod(Pod):
    namespace: str = "default"

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


@dataclass(frozen=True)
class Shared:
    """The cluster with GPU 0 shared, and its node's supervisor."""

    cluster: Cluster
    node: SupervisedNode
    protocol: int

    @property
    def api(self) -> Api:
        return self.cluster.api


@pytest.fixture(scope="module", params=[3, 2], ids="protocol-{}".format)
def shared(
    installed: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Shared]:
    devices = sorted(installed.installation.devices(), key=lambda device: device["attributes"]["index"]["int"])
    uuids = tuple(device["attributes"]["uuid"]["string"] for device in devices)
    assert len(uuids) == GPU_COUNT
    ROOT.mkdir()
    node = SupervisedNode(str(ROOT), tmp_path_factory.mktemp("mps"), request.param, uuids)
    node.start()
    _make_namespace(installed.api)
    installation = installed.installation
    try:
        with installation.plugin.restarted_with(flag("shared", "0"), f"--mps-root={ROOT}"):
            installation.wait_ready()
            eventually(
                lambda: any(device.get("allowMultipleAllocations") for device in installation.devices()),
                "one GPU is published as a shared one",
                within_s=PUBLISH_S,
            )
            yield Shared(installed, node, request.param)
        installation.wait_ready()
        eventually(
            lambda: not any(device.get("allowMultipleAllocations") for device in installation.devices()),
            "no GPU is shared any more",
            within_s=PUBLISH_S,
        )
    finally:
        node.kill_all()
        shutil.rmtree(ROOT)


def _make_namespace(api: Api) -> None:
    if api.find(f"/api/v1/namespaces/{TEAM}") is None:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    account = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
    eventually(lambda: api.find(account), "the namespace has its account", within_s=RUN_S)


def create(shared: Shared, tenant: Tenant) -> None:
    amounts = {"memory": tenant.memory, "cores": str(tenant.cores)}
    exactly = {"deviceClassName": SHARE_CLASS, "capacity": {"requests": amounts}}
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    devices = {
        "requests": [{"name": "gpu", "exactly": exactly}],
        "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
    }
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": tenant.name}}
    shared.api.create(tenant.claim.rpartition("/")[0], {**about, "spec": {"devices": devices}})
    shared.api.create(tenant.pod.path.rpartition("/")[0], tenant.pod.document())


def delete(shared: Shared, tenant: Tenant) -> None:
    """Delete pod and claim, and wait until the node has forgotten both."""
    uid = shared.api.get(tenant.claim)["metadata"]["uid"]
    delete_pod(shared.api, tenant.pod)
    eventually(lambda: not traces(shared.cluster, uid), f"the node forgets {tenant.name}", within_s=FREED_S)
    shared.api.delete(tenant.claim)


def told(shared: Shared, tenant: Tenant, reason: str) -> list[tuple[str, int]]:
    """Message and count of each Event on a tenant's pod with this reason; those of an earlier pod of its name stay."""
    uid = shared.api.get(tenant.pod.path)["metadata"]["uid"]
    found = shared.api.items(f"/api/v1/namespaces/{tenant.namespace}/events")
    mine = [event for event in found if event["involvedObject"].get("uid") == uid]
    return [(event["message"], event.get("count", 1)) for event in mine if event.get("reason") == reason]


def process_of(tenant: Tenant) -> int:
    """Return the process of a tenant's container, by an environment variable that only it has."""
    wanted = f"TENANT={tenant.name}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
    raise AssertionError(f"no process of {tenant.name}")


def share_of(shared: Shared, tenant: Tenant) -> str:
    """Return the name of a tenant's share on its node."""
    claim = shared.api.get(tenant.claim)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    uuid = f"GPU-{result['device'].removeprefix('gpu-')}"
    return mps.share_name(uuid, claim["metadata"]["uid"], result["shareID"])


def status_of(shared: Shared, tenant: Tenant) -> mps.MpsShareStatus:
    found = shared.node.status(share_of(shared, tenant))
    assert found is not None
    return found


def is_recorded(shared: Shared, *tenants: Tenant) -> bool:
    """Whether the plugin has on disk that it told the faults of these tenants' shares."""
    path = shared.cluster.installation.plugin_data / TOLD
    told: dict[str, object] = json.loads(path.read_bytes()) if path.exists() else {}
    return all(share_of(shared, tenant) in told for tenant in tenants)


def pipes_inside(tenant: Tenant) -> str:
    """Return the container's pipe folder, as its node sees into the container."""
    return f"/proc/{process_of(tenant)}/root{CLIENT_PIPES}"


def check_inside(shared: Shared, tenant: Tenant) -> None:
    """A tenant's container has its GPU, its own pipe folder, and its limits."""
    seen = seen_inside(shared.api, tenant.pod)
    assert seen.numbers == {0}
    assert seen.environment["CUDA_MPS_PIPE_DIRECTORY"] == CLIENT_PIPES
    status = status_of(shared, tenant)
    mounts = {mount.container_path: mount.host_path for mount in status.mounts}
    assert Path(pipes_inside(tenant)).samefile(mounts[CLIENT_PIPES])
    limits = {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(tenant.cores),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{status.gpu}=6144M",
    }
    found = {name: seen.environment.get(name) for name in limits}
    assert found == (limits if shared.protocol == 2 else dict.fromkeys(limits))


def client_in(tenant: Tenant) -> FakeCudaClient:
    """Let the tenant's own process connect to its server, from its own mount."""
    client = FakeCudaClient(pipes_inside(tenant), process_of(tenant))
    assert client.code == OK
    return client


def servers(shared: Shared) -> list[int]:
    return [process.pid for process in shared.node.table.find() if process.role is Role.SERVER]


def test_pods_of_two_namespaces_share_a_gpu_and_the_third_waits_until_one_goes(shared: Shared) -> None:
    first, second, third = Tenant("first"), Tenant("second", TEAM, cores=40), Tenant("third")
    for tenant in (first, second):
        create(shared, tenant)
    for tenant in (first, second):
        check_inside(shared, tenant)
    assert Path(pipes_inside(first)).samefile(pipes_inside(second)) is (shared.protocol == 2)
    clients = [client_in(tenant) for tenant in (first, second)]

    create(shared, third)
    wait_pending(shared.api, third.pod, "")
    why = eventually(
        lambda: [text for text, _ in told(shared, third, "WaitingForGPUs") if "most memory left" in text],
        "the third is told why it waits",
        within_s=RUN_S,
    )
    assert "the GPU with most memory left has 4 GiB" in why[0]

    before = [container_id(shared.api, tenant.pod) for tenant in (first, second)], servers(shared)
    restart_all(shared)
    assert before == ([container_id(shared.api, tenant.pod) for tenant in (first, second)], servers(shared))
    for tenant in (first, second):
        check_inside(shared, tenant)

    clients[0].fault()
    for tenant in (first, second):
        eventually(
            lambda at=tenant: told(shared, at, "MpsServerFault"),  # type: ignore[misc]
            f"{tenant.name} is told of the fault",
            within_s=RUN_S,
        )
    assert told(shared, third, "MpsServerFault") == []
    for client in clients:
        client.close()
    # A plugin that is killed before that tells the fault again (mps_fault_watch.py).
    eventually(lambda: is_recorded(shared, first, second), "it is recorded that they were told", within_s=RUN_S)
    restart_all(shared)
    assert [count for tenant in (first, second) for _, count in told(shared, tenant, "MpsServerFault")] == [1, 1]

    delete(shared, first)
    check_inside(shared, third)
    client_in(third).close()
    for tenant in (second, third):
        delete(shared, tenant)
    shared.node.gone()


def restart_all(shared: Shared) -> None:
    """Restart the supervisor and the plugin by kill -9, and kubelet."""
    shared.node.end(signal.SIGKILL)
    shared.cluster.installation.plugin.kill()
    with shared.cluster.kubelet_away():
        shared.node.start()
        shared.cluster.installation.plugin.start(flag("shared", "0"), f"--mps-root={ROOT}")
    shared.cluster.installation.wait_ready()


def test_a_node_restart_gives_a_share_its_server_again(shared: Shared) -> None:
    tenant = Tenant("rebooted", restart_policy="Always")
    create(shared, tenant)
    check_inside(shared, tenant)
    container = container_id(shared.api, tenant.pod)
    installation, node = shared.cluster.installation, shared.cluster.node
    installation.plugin.kill()
    node.power_off()
    shared.node.kill_all()
    shutil.rmtree(ROOT)  # it is on a tmpfs
    ROOT.mkdir()
    shared.node.modes.write(dict.fromkeys(shared.node.modes.all(), ComputeMode.DEFAULT))  # as a driver that is loaded
    with installation.published_anew():
        node.power_on()
        shared.node.start()
        installation.plugin.start(flag("shared", "0"), f"--mps-root={ROOT}")
    installation.wait_ready()
    shared.cluster.wait_node_ready()
    wait_new_container(shared.api, tenant.pod, container)
    check_inside(shared, tenant)
    client_in(tenant).close()
    delete(shared, tenant)
    shared.node.gone()
