"""The whole plugin on NVML: a fake library under the real pynvml, a driver root on disk, an API server.

Time is the test's: it stands still while the driver is asked, or a slow machine would look like a driver that hangs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import gpu_device_name
from dracaena.kubelet_plugin.adapters.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml_library import DriverNotReadyError, NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml_machine import NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded_machine import read_machine
from dracaena.kubelet_plugin.adapters.sysfs import Sysfs
from dracaena.kubelet_plugin.live_machine import READ_DEADLINE_S, REREAD_S, RETRY_S
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.clock import FakeClock
from support.driver_root import VERSION, put, put_driver
from support.fake_nvml import FakeMig, FakeNvml
from support.fake_sysfs import write_machine
from support.kube import wait_for
from support.plugin_world import CALL_S, MACHINE, NODE, World, http, start_process
from support.sockets import short_folder

RECORDED = read_machine(MACHINE)
NAMES = [gpu_device_name(gpu.uuid) for gpu in RECORDED.gpus]
MIG = FakeMig(0, 0, "MIG-00000000-0000-4000-8000-000000000001", "NVIDIA MIG 1g.5gb", gpu_instance=7, start=4)


class Node:
    """A plugin whose driver is a fake; without `nvml` the driver is not there yet."""

    def __init__(self, world: World) -> None:
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
            world.settings(machine=""), clock=self.clock, registry=CollectorRegistry(), source=self.source
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
