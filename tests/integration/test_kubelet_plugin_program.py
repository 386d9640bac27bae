"""The whole plugin against the embedded API server, over real sockets, files and processes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError, PermanentError
from dracaena.api.names import gpu_device_name
from dracaena.api.objects import KubeObject, Node, ObjectMeta, Pod, ResourceClaim, ResourceSlice
from dracaena.api.podlist import decode_podlist
from dracaena.demo.apiserver import ApiServer, Fault
from dracaena.kube.client import KubeClient
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine
from dracaena.kubelet_plugin.program import Program
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from support.kube import client_for, wait_for
from support.plugin import files_below
from support.sockets import short_folder

DRIVER = "gpu.dracaena.dev"
NODE = "node-1"
MACHINE = "7-gpu-box"
GPUS = [gpu.uuid for gpu in read_machine(MACHINE).gpus]
CALL_S = 20


class World:
    """An API server with one node, and the folders of that node."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.client: KubeClient = client_for(server.url, folder)
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
            **changes,
        }
        return PluginSettings(**given)

    def arguments(self, **changes: Any) -> list[str]:
        settings = self.settings(**changes)
        names = ("node_name", "machine", "kubeconfig", "kubelet_root", "cdi_root", "dev_root", "pod_uid")
        return [f"--{name.replace('_', '-')}={getattr(settings, name)}" for name in names]

    def slices(self) -> list[ResourceSlice]:
        return list(self.client.list(ResourceSlice).items)

    def allocated_claim(self, name: str, gpus: list[int], pod: Pod | None = None) -> ResourceClaim:
        """Create a claim and allocate it as a controller does."""
        request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": len(gpus)}}
        document = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        self.client.create(ResourceClaim, document, namespace="default")
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": gpu_device_name(GPUS[n])} for n in gpus
        ]
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
        status: dict[str, Any] = {
            "allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}}
        }
        if pod is not None:
            status["reservedFor"] = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}]
        return self.client.merge_patch(
            ResourceClaim, name, {"status": status}, namespace="default", subresource="status"
        )

    def pod(self, name: str, claim: str) -> Pod:
        """Create a pod that runs on the node and uses a claim."""
        container = {"name": "main", "image": "app", "resources": {"claims": [{"name": "gpus"}]}}
        spec = {
            "nodeName": NODE,
            "containers": [container],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
        }
        return self.client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    def annotations(self, name: str) -> Mapping[str, str]:
        return self.client.get(Pod, name, namespace="default").metadata.annotations

    def podlist(self) -> list[tuple[str, tuple[str, ...]]]:
        data = (self.kubelet / "pod-resources" / "podlist.json").read_bytes()
        return [(entry.name, entry.gpu_list) for entry in decode_podlist(data)]

    def socket(self, pod_uid: str = "") -> Path:
        """Ask the registration socket where the driver serves, as kubelet does."""
        tail = f"-{pod_uid}" if pod_uid else ""
        path = self.kubelet / "plugins_registry" / f"{DRIVER}{tail}-reg.sock"
        with grpc.insecure_channel(f"unix:{path}") as channel:
            info = registration_grpc.RegistrationStub(channel).GetInfo(  # type: ignore[no-untyped-call]  # generated
                registration.InfoRequest(), timeout=CALL_S, wait_for_ready=True
            )
        return Path(info.endpoint)

    def prepare(self, *claims: ResourceClaim, pod_uid: str = "") -> dict[str, v1.NodePrepareResourceResponse]:
        request = v1.NodePrepareResourcesRequest(claims=[_claim(c) for c in claims])
        with grpc.insecure_channel(f"unix:{self.socket(pod_uid)}") as channel:
            stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
            return dict(stub.NodePrepareResources(request, timeout=CALL_S, wait_for_ready=True).claims)

    def unprepare(self, *claims: ResourceClaim, pod_uid: str = "") -> dict[str, str]:
        request = v1.NodeUnprepareResourcesRequest(claims=[_claim(c) for c in claims])
        with grpc.insecure_channel(f"unix:{self.socket(pod_uid)}") as channel:
            stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
            answer = stub.NodeUnprepareResources(request, timeout=CALL_S, wait_for_ready=True).claims
        return {uid: entry.error for uid, entry in answer.items()}


def _claim(claim: ResourceClaim) -> v1.Claim:
    meta: ObjectMeta = claim.metadata
    return v1.Claim(namespace=meta.namespace, name=meta.name, uid=meta.uid)


@pytest.fixture
def world() -> Iterator[World]:
    with short_folder() as folder, ApiServer() as server:
        yield World(server, folder)


@pytest.fixture
def plugin(world: World) -> Iterator[Program]:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    yield program
    program.stop()


def http(program: Program, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{program.http_port}{path}", timeout=CALL_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def start_process(world: World, **changes: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "dracaena.cli.main", "kubelet-plugin", *world.arguments(**changes)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_node_publishes_its_tainted_gpus_and_is_ready_then(world: World, plugin: Program) -> None:
    wait_for(lambda: plugin.ready() is None, "ready")
    (published,) = world.slices()
    assert [device.name for device in published.spec.devices] == [gpu_device_name(uuid) for uuid in GPUS]
    assert {taint.key for device in published.spec.devices for taint in device.taints} == {
        "gpu.dracaena.dev/controller-allocated"
    }
    owner = published.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.uid) == ("Node", NODE, world.client.get(Node, NODE).metadata.uid)
    assert published.spec.pool.generation == 1
    assert http(plugin, "/readyz") == (200, "ok\n")
    assert "dracaena_plugin_published_devices 7.0" in http(plugin, "/metrics")[1]


def test_deleted_slices_come_back(world: World, plugin: Program) -> None:
    wait_for(lambda: plugin.ready() is None, "ready")
    (first,) = world.slices()
    world.client.delete(ResourceSlice, first.metadata.name)
    (again,) = wait_for(world.slices, "published again")
    assert again.metadata.uid != first.metadata.uid
    assert len(again.spec.devices) == 7


def test_with_kube_scheduler_as_allocator_devices_carry_no_taint(world: World) -> None:
    program = Program(world.settings(allocator="kube-scheduler"), registry=CollectorRegistry())
    program.start()
    try:
        wait_for(lambda: program.ready() is None, "ready")
        assert all(not device.taints for s in world.slices() for device in s.spec.devices)
        assert len(world.slices()[0].spec.devices) == 7
    finally:
        program.stop()


def test_a_claim_from_prepare_to_unprepare(world: World, plugin: Program) -> None:
    pod = world.pod("pod", "claim")
    claim = world.allocated_claim("claim", [3, 4], pod)
    answer = world.prepare(claim)[claim.metadata.uid]
    assert answer.error == ""
    spec = json.loads((world.folder / "cdi" / f"{DRIVER}-claim_{claim.metadata.uid}.json").read_bytes())
    assert [f"{spec['kind']}={device['name']}" for device in spec["devices"]] == [
        cdi_id for device in answer.devices for cdi_id in device.cdi_device_ids
    ]
    assert world.podlist() == [("pod", (GPUS[3], GPUS[4]))]
    wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("pod"), "annotated")
    assert world.annotations("pod")["gpu.dracaena.dev/uuids"] == f"{GPUS[3]},{GPUS[4]}"
    world.pod("second", "claim")
    wait_for(lambda: len(world.podlist()) == 2, "a second pod on the prepared claim is listed")
    wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("second"), "and annotated")
    world.client.delete(Pod, "second", namespace="default", grace_period_s=0)
    wait_for(lambda: len(world.podlist()) == 1, "a deleted pod leaves the list")
    assert world.unprepare(claim) == {claim.metadata.uid: ""}
    assert world.podlist() == []
    wait_for(lambda: "gpu.dracaena.dev/uuids" not in world.annotations("pod"), "annotations are gone")
    assert list((world.folder / "cdi").iterdir()) == []


def test_annotations_are_tried_again_when_the_server_fails(world: World, plugin: Program) -> None:
    world.server.faults.add(Fault(method="PATCH", path=".*/pods/.*", status=503, times=2))
    pod = world.pod("pod", "claim")
    claim = world.allocated_claim("claim", [0], pod)
    assert world.prepare(claim)[claim.metadata.uid].error == ""
    wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("pod"), "annotated")


def test_a_claim_of_the_same_name_with_another_uid_is_refused(world: World, plugin: Program) -> None:
    old = world.allocated_claim("claim", [0])
    world.client.delete(ResourceClaim, "claim", namespace="default")
    new = world.allocated_claim("claim", [1])
    error = world.prepare(old)[old.metadata.uid].error
    assert error == (
        f"claim default/claim was replaced: it has UID {new.metadata.uid}, kubelet asked for {old.metadata.uid}"
    )
    world.client.delete(ResourceClaim, "claim", namespace="default")
    assert "does not exist" in world.prepare(old)[old.metadata.uid].error
    assert files_below(world.folder / "cdi") == {}


def test_two_claims_for_one_device_and_the_holder_is_named(world: World, plugin: Program) -> None:
    first, second = world.allocated_claim("first", [0, 1]), world.allocated_claim("second", [1, 2])
    answers = world.prepare(first, second)
    assert answers[first.metadata.uid].error == ""
    assert f"is still held by claim default/first (UID {first.metadata.uid})" in answers[second.metadata.uid].error


def test_stopping_removes_the_sockets_and_leaves_slices_and_claims(world: World) -> None:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    wait_for(lambda: program.ready() is None, "ready")
    claim = world.allocated_claim("claim", [0])
    assert world.prepare(claim)[claim.metadata.uid].error == ""
    program.stop()
    assert not [path for path in world.kubelet.rglob("*") if path.is_socket()]
    assert len(world.slices()) == 1
    assert (world.kubelet / "plugins" / DRIVER / "claims" / f"{claim.metadata.uid}.json").exists()


def test_the_same_instance_is_not_started_twice(world: World, plugin: Program) -> None:
    again = start_process(world)
    _, text = again.communicate(timeout=CALL_S)
    assert again.returncode == 2
    assert "this instance of the plugin runs already" in text
    assert str(world.kubelet / "plugins" / DRIVER / "instance.lock") in text
    assert "Traceback" not in text
    claim = world.allocated_claim("claim", [0])
    assert world.prepare(claim)[claim.metadata.uid].error == ""  # the first one still serves


def test_two_instances_of_an_upgrade_share_the_nodes_state(world: World) -> None:
    old, new = (start_process(world, pod_uid=uid) for uid in ("uid-old", "uid-new"))
    try:
        claim, other = world.allocated_claim("claim", [0]), world.allocated_claim("other", [0])
        answer = world.prepare(claim, pod_uid="uid-old")[claim.metadata.uid]
        assert answer.error == ""
        assert world.prepare(claim, pod_uid="uid-new")[claim.metadata.uid] == answer
        assert "still held" in world.prepare(other, pod_uid="uid-new")[other.metadata.uid].error
        old.terminate()
        assert old.wait(CALL_S) == 0
        assert world.unprepare(claim, pod_uid="uid-new") == {claim.metadata.uid: ""}
        assert world.prepare(other, pod_uid="uid-new")[other.metadata.uid].error == ""
        assert len(world.slices()) == 1
    finally:
        for process in (old, new):
            process.kill()
            process.communicate()


def test_after_a_kill_the_next_process_goes_on_with_the_same_state(world: World) -> None:
    pod = world.pod("pod", "claim")
    claim = world.allocated_claim("claim", [2, 5], pod)
    first = start_process(world)
    try:
        answer = world.prepare(claim)[claim.metadata.uid]
        assert answer.error == ""
        wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("pod"), "annotated")
        wait_for(world.slices, "published")
    finally:
        first.kill()
        first.communicate()
    before = {name: data for name, data in files_below(world.folder).items() if not name.endswith(".sock")}
    second = start_process(world)
    try:
        assert world.prepare(claim)[claim.metadata.uid] == answer
        assert files_below(world.folder) == before
        assert len(world.slices()) == 1
    finally:
        second.kill()
        second.communicate()


def test_a_socket_path_that_is_too_long_ends_with_exit_code_2(world: World) -> None:
    process = start_process(world, kubelet_root=str(world.folder / ("k" * 90)))
    _, text = process.communicate(timeout=CALL_S)
    assert process.returncode == 2
    assert "bytes, the kernel takes 107" in text
    assert len(text.splitlines()) == 1


def test_a_machine_that_is_not_known_is_bad_input(world: World) -> None:
    with pytest.raises(BadInputError, match="no recorded machine is called 'nothing'"):
        Program(world.settings(machine="nothing"), registry=CollectorRegistry())


def test_a_start_that_fails_half_way_leaves_no_socket_and_frees_the_instance(world: World) -> None:
    registry = world.kubelet / "plugins_registry"
    registry.mkdir(parents=True)
    (registry / f"{DRIVER}-reg.sock").write_text("mine")
    with pytest.raises(PermanentError, match="is in the way"):
        Program(world.settings(), registry=CollectorRegistry()).start()
    assert not [path for path in world.kubelet.rglob("*") if path.is_socket()]
    (registry / f"{DRIVER}-reg.sock").unlink()
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    program.stop()


def test_an_api_server_that_is_away_at_start_delays_publishing_only(world: World) -> None:
    world.server.faults.add(Fault(path=".*/resourceslices.*", status=503, times=10_000))
    claim = world.allocated_claim("claim", [0])
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert http(program, "/readyz") == (503, "not ready: the ResourceSlices of this node are not published yet\n")
        world.server.faults.clear()
        wait_for(lambda: program.ready() is None, "published after all", timeout_s=30)
    finally:
        program.stop()
