"""The whole plugin on NVML: a fake library under the real pynvml, a driver root on disk, an API server.

Time is the test's: it stands still while the driver is asked, or a slow machine would look like a driver that hangs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pynvml
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.names import gpu_device_name, taint_key
from dracaena.api.objects import KubeObject
from dracaena.api.topology import topology_from_matrix
from dracaena.kubelet_plugin.adapters.health import RESEND_S
from dracaena.kubelet_plugin.adapters.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml_library import DriverNotReadyError, NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml_machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs import Sysfs
from dracaena.kubelet_plugin.health_monitor import DEADLINE_S, EVENTS_S, POLL_S
from dracaena.kubelet_plugin.live_machine import READ_DEADLINE_S, REREAD_S, RETRY_S
from dracaena.kubelet_plugin.program import Program
from dracaena.proto.health.v1 import api_pb2 as health_v1
from dracaena.proto.health.v1 import api_pb2_grpc as health_v1_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as health_v1alpha1
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from support.api_ground import ApiGround
from support.clock import FakeClock
from support.driver_root import VERSION, put, put_driver
from support.fake_nvml import FakeHealth, FakeMig, FakeNvml
from support.fake_sysfs import write_machine
from support.kube import wait_for
from support.plugin_world import CALL_S, DRIVER, MACHINE, NODE, World, http, start_process
from support.sockets import short_folder

RECORDED = read_machine(MACHINE)
NAMES = [gpu_device_name(gpu.uuid) for gpu in RECORDED.gpus]
MIG = FakeMig(0, 0, "MIG-00000000-0000-4000-8000-000000000001", "NVIDIA MIG 1g.5gb", gpu_instance=7, start=4)


class NodeEvent(KubeObject, frozen=True):
    """An Event, with what says why it was written."""

    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "events"
    KIND: ClassVar[str] = "Event"

    reason: str = ""


class Node:
    """A plugin whose driver is a fake; without `nvml` the driver is not there yet."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.nvml: FakeNvml | None = FakeNvml(RECORDED)
        self.clock = FakeClock()
        self.source = NvmlMachine(
            NODE,
            NvmlReader(NvmlLibrary(self._library)),
            Sysfs(str(world.folder / "sys")),
            MigAccess(str(world.folder / "proc")),
        )
        self.program = Program(
            world.settings(machine="", **changes), clock=self.clock, registry=CollectorRegistry(), source=self.source
        )

    def _library(self) -> object:
        if self.nvml is None:
            raise DriverNotReadyError("waiting for the NVIDIA driver: no library")
        return self.nvml

    def until(self, condition: Callable[[], Any], what: str, step_s: float = 0.1, *, hanging: bool = False) -> Any:
        def look() -> Any:
            if hanging or not self.source.doing():
                self.clock.advance(step_s / 10)
            return condition()

        return wait_for(look, what, timeout_s=30)

    def devices(self) -> list[str]:
        return [device.name for s in self.world.slices() for device in s.spec.devices]

    def ready(self) -> None:
        self.world.register()
        self.until(lambda: self.program.ready() is None, "ready")

    def spec(self, claim: Any) -> dict[str, Any]:
        document = json.loads(self.world.spec_text(claim))
        assert isinstance(document, dict)
        return document


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        write_machine(folder / "sys", RECORDED)
        put_driver(folder / "host")
        put(folder, "host/dev/nvidiactl")
        yield World(server, folder)


@pytest.fixture
def node(world: World) -> Iterator[Node]:
    made = Node(world)
    yield made
    made.program.stop()


def test_a_node_is_published_as_its_recording_would_be_and_a_claim_gets_gpus_and_driver(node: Node) -> None:
    node.program.start()
    node.ready()
    assert node.devices() == NAMES
    claim = node.world.allocated_claim("claim", [1, 2])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    spec, host = node.spec(claim), node.world.folder / "host"
    assert {"hostPath": f"{host}/dev/nvidiactl", "path": "/dev/nvidiactl"} in spec["containerEdits"]["deviceNodes"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
    assert mounts["/usr/lib64/libcuda.so.1"] == f"{host}/usr/lib64/libcuda.so.{VERSION}"
    assert all(Path(path).exists() for path in mounts.values())


def taints(node: Node) -> dict[str, list[tuple[str, str, str]]]:
    """Return what is published on each device beside the taint that all have."""
    return {
        device.name: [
            (taint.key.removeprefix(f"{DRIVER}/"), taint.value, taint.effect)
            for taint in device.taints
            if taint.key != taint_key(DRIVER)
        ]
        for s in node.world.slices()
        for device in s.spec.devices
    }


def times(node: Node) -> dict[tuple[str, str], str | None]:
    return {
        (device.name, taint.key): taint.time_added
        for s in node.world.slices()
        for device in s.spec.devices
        for taint in device.taints
    }


def node_events(node: Node) -> list[str]:
    return sorted(event.reason for event in node.world.client.list(NodeEvent).items)


def test_an_xid_taints_its_gpu_beside_our_taint_until_the_driver_asks_for_nothing_any_more(node: Node) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    before = times(node)
    node.nvml.health[2].recovery_action = 1
    node.nvml.report_xid(2, 79)
    node.nvml.report_xid(3, 31)
    bad = [("recovery-action", "gpu-reset", "NoSchedule"), ("xid", "79", "NoSchedule")]
    node.until(lambda: taints(node)[NAMES[2]] == bad and taints(node)[NAMES[3]], "tainted", EVENTS_S)
    assert taints(node)[NAMES[3]] == [("xid", "31", "None")]
    assert all(taints(node)[name] == [] for name in [*NAMES[:2], *NAMES[4:]])
    tainted = times(node)
    assert before.items() <= tainted.items()
    assert 'dracaena_plugin_device_health{health="unhealthy"} 1.0' in http(node.program, "/metrics")[1]
    node.until(lambda: node_events(node) == ["GpuUnhealthy"], "an event")
    node.nvml.health[2].recovery_action = 0
    node.until(lambda: taints(node)[NAMES[2]] == [], "cleared", POLL_S)
    assert times(node).items() <= tainted.items()  # what stays was not added anew
    node.until(lambda: node_events(node) == ["GpuHealthy", "GpuUnhealthy"], "an event")


def test_an_admin_says_which_xids_count_and_whether_pods_are_evicted(world: World) -> None:
    node = Node(world, ignored_xids="48,62", fatal_xids="13", evict_from_lost=True)
    assert node.nvml is not None
    node.nvml.health = [FakeHealth(recovery_action=1) for _ in NAMES]
    node.program.start()
    try:
        node.ready()
        for gpu, xid in enumerate((48, 13, 79)):
            node.nvml.report_xid(gpu, xid)
        wanted = [("xid", "48", "None"), ("xid", "13", "NoSchedule"), ("xid", "79", "NoExecute")]
        node.until(lambda: all(x in taints(node)[n] for n, x in zip(NAMES[:3], wanted, strict=True)), "tainted", 1)
    finally:
        node.program.stop()


def test_faults_of_a_recorded_machine_come_from_a_file(world: World) -> None:
    faults = world.folder / "faults.json"
    clock = FakeClock()
    settings = world.settings(faults=str(faults))
    program = Program(settings, clock=clock, registry=CollectorRegistry())
    program.start()

    def status() -> str:
        clock.advance(EVENTS_S / 10)
        return http(program, "/metrics")[1]

    try:
        world.register()
        wait_for(lambda: f'health="healthy"}} {len(NAMES)}.0' in status(), "well")
        faults.write_text(json.dumps({RECORDED.gpus[1].uuid: {"lost": "pulled out"}}))
        wait_for(lambda: 'health="unhealthy"} 1.0' in status(), "one lost", timeout_s=30)
        wait_for(lambda: (status(), len(world.slices()[0].spec.devices[1].taints))[1] == 2, "tainted", timeout_s=30)
        faults.unlink()
        wait_for(lambda: 'health="unhealthy"} 0.0' in status(), "well again", timeout_s=30)
    finally:
        program.stop()


def test_without_the_watch_nothing_is_asked_nothing_tainted_and_no_stream_announced(world: World) -> None:
    node = Node(world, watch_health=False)
    node.program.start()
    try:
        node.ready()
        assert node.nvml is not None
        assert "nvmlEventSetCreate" not in node.nvml.calls
        assert world.versions() == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert set(map(tuple, taints(node).values())) == {()}
    finally:
        node.program.stop()


def test_a_gpu_that_is_lost_stays_published_but_not_as_healthy(node: Node) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    node.nvml.refuse("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    lost = [("gpu-lost", "", "NoSchedule")]
    node.until(lambda: taints(node)[NAMES[1]] == lost, "tainted", POLL_S)
    assert node.devices() == NAMES
    node.nvml.allow()
    node.until(lambda: taints(node)[NAMES[1]] == [], "cleared", POLL_S)


def test_a_gpu_that_leaves_the_machine_leaves_the_slice_and_comes_back_with_it(node: Node) -> None:
    bound = node.world.folder / "sys/bus/pci/drivers/nvidia"
    bound.mkdir(parents=True)
    (bound / "0000:18:00.0").touch()
    node.program.start()
    node.ready()
    whole, less = node.nvml, without_last_gpu(RECORDED)
    node.nvml = FakeNvml(less)
    (bound / "0000:18:00.0").unlink()
    node.until(lambda: node.devices() == NAMES[:-1], "one less", REREAD_S)
    node.nvml = whole
    (bound / "0000:18:00.0").touch()
    node.until(lambda: node.devices() == NAMES, "all", REREAD_S)


def test_a_driver_that_hangs_for_long_holds_new_pods_back_and_no_claim_that_is_there(node: Node) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    release = node.nvml.wedged["nvmlDeviceGetRemappedRows"] = threading.Event()
    try:
        silent = [("silent", "", "NoSchedule")]
        node.until(lambda: taints(node)[NAMES[0]] == silent, "tainted", DEADLINE_S, hanging=True)
        claim = node.world.allocated_claim("claim", [1])
        assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    finally:
        release.set()
    node.until(lambda: taints(node)[NAMES[0]] == [], "cleared", POLL_S)


def test_an_xid_of_a_gpu_instance_taints_its_mig_devices_only(node: Node) -> None:
    minor = RECORDED.gpus[0].minor
    caps = "".join(f"gpu{minor}/gi{gi}/access {64 + gi}\ngpu{minor}/gi{gi}/ci0/access {80 + gi}\n" for gi in (7, 8))
    put(node.world.folder, "proc/driver/nvidia-caps/mig-minors", caps.encode())
    assert node.nvml is not None
    node.nvml.migs = (MIG, replace(MIG, number=1, uuid=MIG.uuid[:-1] + "2", gpu_instance=8, start=5))
    node.program.start()
    node.ready()
    one, other = node.devices()[-2:]
    node.nvml.health[0].recovery_action = None
    node.nvml.report_xid(0, 48, gpu_instance=8)
    node.until(lambda: taints(node)[other] == [("xid", "48", "NoSchedule")], "tainted", EVENTS_S)
    assert taints(node)[one] == []


@pytest.mark.parametrize(
    ("messages", "services"), [(health_v1, health_v1_grpc), (health_v1alpha1, health_v1alpha1_grpc)]
)
def test_kubelet_is_told_the_health_of_all_devices_at_each_change_and_again_in_time(
    node: Node, messages: Any, services: Any
) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    assert node.world.versions()[2:] == ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    heard: list[Any] = []
    with grpc.insecure_channel(f"unix:{node.world.socket()}") as channel:
        stream = services.DRAResourceHealthStub(channel).NodeWatchResources(messages.NodeWatchResourcesRequest())
        reader = threading.Thread(target=listen, args=(stream, heard))
        reader.start()
        try:
            node.until(lambda: heard, "the first list", EVENTS_S)
            assert [d.device.device_name for d in heard[-1].devices] == NAMES
            assert {(d.device.pool_name, d.health) for d in heard[-1].devices} == {(NODE, messages.HEALTHY)}
            first = heard[-1].devices[0].last_updated_time
            node.until(lambda: heard[-1].devices[0].last_updated_time > first, "again", RESEND_S)
            node.nvml.health[1].remap_pending = True
            node.until(lambda: heard[-1].devices[1].health == messages.UNHEALTHY, "sick", POLL_S)
            assert heard[-1].devices[1].message == "a row remap waits for a GPU reset"
            assert [d.health for d in heard[-1].devices].count(messages.HEALTHY) == len(NAMES) - 1
            node.nvml.health[1].remap_pending = False
            node.until(lambda: heard[-1].devices[1].health == messages.HEALTHY, "well", POLL_S)
        finally:
            stream.cancel()
            reader.join()


def listen(stream: Any, heard: list[Any]) -> None:
    with suppress(grpc.RpcError):  # the test ends it
        heard.extend(stream)


def without_last_gpu(machine: Machine) -> Machine:
    gpus = machine.gpus[:-1]
    return replace(
        machine,
        gpus=gpus,
        topology=topology_from_matrix([["X" if a == b else "SYS" for b in range(len(gpus))] for a in range(len(gpus))]),
    )


def test_until_the_driver_is_there_the_node_says_what_it_waits_for(node: Node) -> None:
    nvml, node.nvml = node.nvml, None
    node.program.start()
    node.until(
        lambda: http(node.program, "/readyz") == (503, "not ready: waiting for the NVIDIA driver: no library\n"), ""
    )
    claim = node.world.allocated_claim("claim", [1])
    refusal = node.world.prepare(claim)[claim.metadata.uid].error
    assert refusal == "the GPUs of this node are not known yet: waiting for the NVIDIA driver: no library"
    assert node.world.slices() == []
    assert "dracaena_plugin_reading_stale 1.0" in http(node.program, "/metrics")[1]
    node.nvml = nvml
    node.world.register()
    node.until(lambda: node.program.ready() is None, "ready", RETRY_S)
    assert node.devices() == NAMES
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert "dracaena_plugin_reading_stale 0.0" in http(node.program, "/metrics")[1]


def test_while_the_driver_is_away_claims_of_an_earlier_run_are_answered_and_taken_back(world: World) -> None:
    first = Node(world)
    first.program.start()
    claim, other = world.allocated_claim("claim", [1]), world.allocated_claim("other", [2])
    try:
        first.ready()
        answer = world.prepare(claim, other)[claim.metadata.uid]
    finally:
        first.program.stop()
    second = Node(world)
    second.nvml = None
    second.program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid] == answer
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
        assert second.devices() == NAMES  # what is published stays
    finally:
        second.program.stop()


def test_a_call_that_hangs_stops_neither_prepare_nor_the_end_of_the_program(node: Node) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    release = node.nvml.wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
    try:
        node.until(node.source.doing, "the next reading", REREAD_S)
        claim, other = node.world.allocated_claim("claim", [1]), node.world.allocated_claim("other", [2])
        assert node.world.prepare(claim)[claim.metadata.uid].error == ""
        stale = "dracaena_plugin_reading_stale 1.0"
        node.until(lambda: stale in http(node.program, "/metrics")[1], "stale", READ_DEADLINE_S, hanging=True)
        assert node.program.ready() is None
        assert node.devices() == NAMES
        assert node.world.prepare(other)[other.metadata.uid].error == ""
        assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
        node.program.stop()
    finally:
        release.set()


def test_a_gpu_that_is_divided_is_replaced_by_its_parts(node: Node) -> None:
    node.program.start()
    node.ready()
    minor = RECORDED.gpus[0].minor
    put(
        node.world.folder,
        "proc/driver/nvidia-caps/mig-minors",
        f"gpu{minor}/gi7/access 64\ngpu{minor}/gi7/ci0/access 65\n".encode(),
    )
    assert node.nvml is not None
    node.nvml.migs = (MIG,)
    name = f"mig-{RECORDED.gpus[0].uuid.lower().removeprefix('gpu-')}-1g-5gb-4"
    node.until(lambda: node.devices() == [*NAMES[1:], name], "the parts", REREAD_S)
    assert "dracaena_plugin_skipped_devices 1.0" in http(node.program, "/metrics")[1]
    claim = node.world.allocated_claim("claim", [], devices=[name])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    (device,) = node.spec(claim)["devices"]
    assert [entry["path"] for entry in device["containerEdits"]["deviceNodes"]] == [
        f"/dev/nvidia{RECORDED.gpus[0].minor}",
        "/dev/nvidia-caps/nvidia-cap64",
        "/dev/nvidia-caps/nvidia-cap65",
    ]


def test_without_the_drivers_files_a_claim_waits_and_says_where_they_were_looked_for(node: Node) -> None:
    for library in (node.world.folder / "host/usr/lib64").iterdir():
        library.unlink()
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [1])
    refusal = node.world.prepare(claim)[claim.metadata.uid].error
    assert refusal.startswith(f"no NVIDIA driver below {node.world.folder}/host")
    put_driver(node.world.folder / "host")
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""


def test_without_the_drivers_control_node_a_claim_waits_and_says_what_to_do(node: Node) -> None:
    control = node.world.folder / "host/dev/nvidiactl"
    control.unlink()
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [1])
    refusal = node.world.prepare(claim)[claim.metadata.uid].error
    assert refusal.startswith(f"no /dev/nvidiactl below {node.world.folder}/host")
    control.touch()
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""


def test_a_process_that_waits_for_the_driver_ends_at_once_when_told(world: World) -> None:
    empty = str(world.folder / "empty")
    process = start_process(world, machine="", driver_root=empty)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        waiting = next(line for line in lines if "waiting for the NVIDIA driver" in line)
        assert f"no libnvidia-ml.so.1 below {empty}" in waiting
        assert world.socket().exists()
        process.terminate()
        assert process.wait(CALL_S) == 0
    finally:
        process.kill()
        process.communicate()
