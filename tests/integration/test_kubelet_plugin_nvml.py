"""The whole plugin on NVML: what is read, published and given to claims (support.nvml_world)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dracaena.api.objects import KubeObject, Pod
from dracaena.kube.reflector import FIRST_BACKOFF_S
from dracaena.kubelet_plugin.node.live_machine import READ_DEADLINE_S, REREAD_S, RETRY_S
from dracaena.kubelet_plugin.upkeep.device_watch import GATHER_S, DeviceWatch
from dracaena.kubelet_plugin.upkeep.mps_fault_watch import MpsFaultWatch
from dracaena.kubelet_plugin.upkeep.share_renewal import ShareRenewal
from support.api_ground import ApiGround
from support.gpu_driver_root import VERSION, put, put_gpu_driver
from support.kube import wait_for
from support.late_watch import WATCHED, late_reading, late_watch, seen_to_rest, start_with_late_watch
from support.nvml_world import MIG, NAMES, RECORDED, NvmlNode, nvml_node, nvml_world
from support.plugin_world import CALL_S, DRIVER, World, http, start_process


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        yield made


@pytest.fixture
def node(world: World) -> Iterator[NvmlNode]:
    with nvml_node(world) as made:
        yield made


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.RESOURCE)
def test_a_watch_that_begins_last_delays_no_publication(node: NvmlNode, kind: type[KubeObject]) -> None:
    start_with_late_watch(node, kind)


@pytest.mark.parametrize("part", [DeviceWatch, ShareRenewal, MpsFaultWatch])
def test_what_tells_pods_looks_once_they_are_known_without_a_pause(
    world: World, part: type[DeviceWatch | ShareRenewal | MpsFaultWatch]
) -> None:
    look, looks = part.look, Counter[bool]()

    def noting(self: Any) -> Any:
        users_known = made.program._claims.reporter.users_known
        try:
            return look(self)
        finally:
            looks[users_known] += 1

    with nvml_node(world, mps_root=str(world.folder / "mps")) as made, late_watch(Pod) as begin:
        with patch.object(part, "look", noting):
            made.program.start()
            made.until(lambda: looks[False], "it has looked while no pods were known", GATHER_S)
            wait_for(lambda: "has not been asked yet" not in (made.program.ready() or ""), "the GPUs were read")
            since_s = made.clock.monotonic()
            begin()
            made.until(lambda: looks[True], "it has looked since", GATHER_S / 10)
            assert made.clock.monotonic() - since_s < 1.0, "no pause has passed"


def test_what_failed_for_want_of_a_reading_is_done_when_the_first_one_comes(world: World, node: NvmlNode) -> None:
    claims = [world.allocated_claim(name, [gpu], world.pod(f"pod-of-{name}", name)) for gpu, name in enumerate("ab")]
    node.program.start()
    node.ready()
    assert [each.error for each in world.prepare(*claims).values()] == ["", ""]
    node.stop()
    specs = [world.spec_text(claim) for claim in claims]
    spec = world.folder / "cdi" / f"{DRIVER}-claim_{claims[0].metadata.uid}.json"
    spec.unlink()
    (checkpoint,) = world.kubelet.rglob(f"{claims[1].metadata.uid}.json")
    checkpoint.unlink()
    with nvml_node(world) as again, late_reading() as begin, seen_to_rest() as resting:
        again.program.start()
        again.until(lambda: {"assignments", "device-watch", "sweeper"} <= set(resting), "all have tried in vain", 0.01)
        assert not spec.exists()
        assert not checkpoint.exists()
        since_s = again.clock.monotonic()
        begin()
        again.until(spec.exists, "the lost spec is written again", 0.01)
        again.until(checkpoint.exists, "the lost checkpoint is written again", 0.01)
        assert again.clock.monotonic() - since_s < FIRST_BACKOFF_S / 2, "no pause after a failure has passed"
    assert [world.spec_text(claim) for claim in claims] == specs


def test_a_node_is_published_as_its_recording_would_be_and_a_claim_gets_gpus_and_driver(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    assert node.devices() == NAMES
    claim = node.world.allocated_claim("claim", [1, 2])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    spec, host = node.spec(claim), node.world.folder / "host"
    assert {"hostPath": f"{host}/dev/nvidiactl", "path": "/dev/nvidiactl"} in spec["containerEdits"]["deviceNodes"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
    cuda = f"/usr/lib64/libcuda.so.{VERSION}"
    assert mounts[cuda] == f"{host}{cuda}"
    hooks = {hook["args"][1]: hook["args"][2:] for hook in spec["containerEdits"]["hooks"]}
    assert f"libcuda.so.{VERSION}::/usr/lib64/libcuda.so.1" in hooks["create-symlinks"]
    assert all(Path(path).exists() for path in mounts.values())


def test_until_the_driver_is_there_the_node_says_what_it_waits_for(node: NvmlNode) -> None:
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
    first = NvmlNode(world)
    first.program.start()
    claim, other = world.allocated_claim("claim", [1]), world.allocated_claim("other", [2])
    try:
        first.ready()
        answer = world.prepare(claim, other)[claim.metadata.uid]
    finally:
        first.stop()
    second = NvmlNode(world)
    second.nvml = None
    second.program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid] == answer
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
        assert second.devices() == NAMES  # what is published stays
    finally:
        second.stop()


def test_a_call_that_hangs_stops_neither_prepare_nor_the_end_of_the_program(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    release = node.nvml.wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
    try:
        call = "nvmlDeviceGetMemoryInfo of GPU 0"
        node.until(lambda: node.source.doing() == call, "the next reading has come to the call", REREAD_S)
        claim, other = node.world.allocated_claim("claim", [1]), node.world.allocated_claim("other", [2])
        assert node.world.prepare(claim)[claim.metadata.uid].error == ""
        stale = "dracaena_plugin_reading_stale 1.0"
        node.until(lambda: stale in http(node.program, "/metrics")[1], "stale", READ_DEADLINE_S, hanging=True)
        hangs = f"the NVIDIA driver does not answer: {call} has not returned in time"
        assert (node.program.ready(), node.program.alive()) == (hangs, None)
        assert node.devices() == NAMES
        assert node.world.prepare(other)[other.metadata.uid].error == ""
        assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
        node.program.stop()
    finally:
        release.set()


def test_a_gpu_that_is_divided_is_replaced_by_its_parts(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    minor = RECORDED.gpus[0].minor
    put(
        node.world.folder,
        "proc/driver/nvidia-caps/mig-minors",
        f"gpu{minor}/gi7/access 64\ngpu{minor}/gi7/ci0/access 65\n".encode(),
    )
    for cap in (64, 65):
        put(node.world.folder, f"host/dev/nvidia-caps/nvidia-cap{cap}", f"234:{cap}".encode())
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


def test_without_the_drivers_files_a_claim_waits_and_says_where_they_were_looked_for(node: NvmlNode) -> None:
    for library in (node.world.folder / "host/usr/lib64").iterdir():
        library.unlink()
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [1])
    refusal = node.world.prepare(claim)[claim.metadata.uid].error
    assert refusal.startswith(f"no NVIDIA driver below {node.world.folder}/host")
    put_gpu_driver(node.world.folder / "host")
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("nvidiactl", "nvidia-modprobe"), ("nvidia-uvm", "nvidia-modprobe -c0 -u"), ("nvidia{}", "nvidia-modprobe -c{}")],
)
def test_without_a_device_node_a_claim_waits_and_says_which_and_what_to_do(
    node: NvmlNode, name: str, remedy: str
) -> None:
    minor = RECORDED.gpus[1].minor
    control = node.world.folder / "host/dev" / name.format(minor)
    numbers = control.read_text()
    control.unlink()
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [1])
    refusal = node.world.prepare(claim)[claim.metadata.uid].error
    assert refusal.startswith(f"{control} is missing")
    assert remedy.format(minor) in refusal
    assert not list((node.world.folder / "cdi").glob("*claim*"))
    control.write_text(numbers)
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
