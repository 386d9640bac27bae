"""The whole plugin dividing GPUs on demand, on a fake driver: what is published, made, given away and undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dracaena.api.mig import mig_device_name
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import Device, ResourceClaim
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.changes.kinds.mig_instances import SETTLED_S
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from support.api_ground import ApiGround
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.forked_programs import ForkedProgram
from support.gpu_lists import flag, gpu_list
from support.kube import wait_for
from support.late_watch import start_without_pods
from support.mig_node import access_minors
from support.nvml_mig_world import HOPPER, put_capabilities
from support.nvml_world import NvmlNode, node_events, nvml_node, nvml_world, taints
from support.plugin_world import DRIVER, NO_WAIT_S, World, http, start_process
from support.sockets import short_folder

MACHINE = HOPPER
GPU = MACHINE.gpus[0]
PLACES = 25


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        put_capabilities(made)
        yield made


@pytest.fixture
def hardware() -> FakeMigHardware:
    return FakeMigHardware(MACHINE)


@pytest.fixture
def node(world: World, hardware: FakeMigHardware) -> Iterator[NvmlNode]:
    with nvml_node(world) as plain:
        plain.stop()
    node = dividing(world, hardware)
    try:
        yield node
    finally:
        node.stop()


def dividing(world: World, hardware: FakeMigHardware, mig: str = "all") -> NvmlNode:
    node = NvmlNode(world, gpus=gpu_list(mig=mig))
    node.nvml = FakeMigNvml(hardware)
    return node


def place(profile: str, start: int) -> str:
    return mig_device_name(GPU.uuid, profile, start)


def devices(node: NvmlNode) -> dict[str, Device]:
    return {device.name: device for s in node.world.slices() for device in s.spec.devices}


def counters(node: NvmlNode) -> dict[str, dict[str, str]]:
    sets = [each for s in node.world.slices() for each in s.spec.shared_counters]
    return {each.name: {name: counter.value for name, counter in each.counters.items()} for each in sets}


def test_each_gpu_is_published_whole_and_by_its_places_with_counters_on_slices_of_their_own(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    count = len(MACHINE.gpus)
    found = devices(node)
    assert len(found) == count * (1 + PLACES)
    assert set(counters(node)) == {gpu_device_name(gpu.uuid) for gpu in MACHINE.gpus}
    slices = node.world.slices()
    assert all(not (s.spec.devices and s.spec.shared_counters) for s in slices)
    assert {s.spec.pool.resource_slice_count for s in slices} == {len(slices)}
    assert all(device.consumes_counters for device in found.values())
    assert found[place("3g.40gb", 4)].attributes["type"].string == "mig"


def test_a_pod_gets_the_slice_that_is_made_for_it_and_the_gpu_turns_whole_again(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    node.program.start()
    node.ready()
    before = [(s.metadata.name, s.metadata.resource_version) for s in node.world.slices()]
    claim = node.world.allocated_claim("claim", [], devices=[place("2g.20gb", 2)])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert hardware.layout(0) == [("2g.20gb", 2, 1)]
    (device,) = node.spec(claim)["devices"]
    paths = [entry["path"] for entry in device["containerEdits"]["deviceNodes"]]
    found = access_minors(GPU.minor or 0, 1, 0)
    assert found is not None
    assert paths == [f"/dev/nvidia{GPU.minor}", *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in found)]
    reread(node)
    assert [(s.metadata.name, s.metadata.resource_version) for s in node.world.slices()] == before
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    whole = node.world.allocated_claim("whole", [], devices=[gpu_device_name(GPU.uuid)])
    assert "still held" in node.world.prepare(whole, timeout_s=NO_WAIT_S)[whole.metadata.uid].error
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
    assert hardware.layout(0) == []
    assert node.world.prepare(whole)[whole.metadata.uid].error == ""
    assert not hardware.gpus[0].mode


def reread(node: NvmlNode) -> None:
    """Let the driver be read once more."""
    assert node.nvml is not None
    before = node.nvml.calls.count("nvmlDeviceGetCount_v2")
    nvml = node.nvml
    node.until(lambda: nvml.calls.count("nvmlDeviceGetCount_v2") > before + 1, "another reading", REREAD_S)


def test_what_others_made_is_not_offered_and_is_left_alone(node: NvmlNode, hardware: FakeMigHardware) -> None:
    hardware.put(0, "1g.10gb", 4)
    node.program.start()
    node.ready()
    left = counters(node)[gpu_device_name(GPU.uuid)]
    assert (left["memory-slice-4"], left["memory-slice-3"], left["compute-slices"]) == ("0", "1", "6")
    node.until(lambda: "MigTaken" in node_events(node), "an Event")
    claim = node.world.allocated_claim("claim", [], devices=[place("3g.40gb", 4)])
    error = node.world.prepare(claim)[claim.metadata.uid].error
    assert "memory slices 4 to 7" in error
    assert "are taken by GPU instance 1" in error
    assert hardware.layout(0) == [("1g.10gb", 4, 1)]


def test_an_instance_that_no_mig_device_shows_is_not_offered_either(node: NvmlNode, hardware: FakeMigHardware) -> None:
    hardware.put(0, "3g.40gb", 4, compute=False)
    node.program.start()
    node.ready()
    left = counters(node)[gpu_device_name(GPU.uuid)]
    slices = [left[f"memory-slice-{number}"] for number in range(8)]
    assert (slices, left["compute-slices"]) == ([*"11110000"], "4")
    node.until(lambda: "MigTaken" in node_events(node), "an Event")
    assert "MIG instances that no claim made" in http(node.program, "/readyz")[1]
    hardware.gpus[0].instances.clear()
    reread(node)
    node.until(lambda: counters(node)[gpu_device_name(GPU.uuid)]["memory-slice-4"] == "1", "the slices back")


def test_a_device_that_somebody_destroyed_under_its_claim_is_told_until_the_claim_goes(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    node.program.start()
    node.ready()
    pod = node.world.pod("pod", "claim")
    claim = node.world.allocated_claim("claim", [], pod, devices=[place("1g.10gb", 4)])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    reread(node)
    assert taints(node)[place("1g.10gb", 4)] == []
    hardware.gpus[0].instances.clear()
    hardware.put(0, "1g.10gb", 4)  # at the same place: another device, which the claim's containers do not have
    node.until(lambda: taints(node)[place("1g.10gb", 4)], "a taint on the place", REREAD_S)
    assert taints(node)[place("1g.10gb", 4)] == [("mig-device", "gone", "NoSchedule")]
    assert taints(node)[place("1g.10gb", 3)] == []
    told = node.until(lambda: [e for e in node.world.events() if e.reason == "MigDeviceGone"], "Events", REREAD_S)
    assert "Its containers have lost that GPU, and none can start again. Delete the pods of the" in told[0].message
    assert {each.reason for each in node.world.events()}.isdisjoint({"ClaimSetAside", "GpuMoved"}), "one story"
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
    assert hardware.layout(0) == [("1g.10gb", 4, 1)], "it is not ours"
    node.until(lambda: not taints(node)[place("1g.10gb", 4)], "the taint to go", REREAD_S)


def test_what_others_made_where_a_claim_ended_a_moment_ago_is_told_once_that_is_settled(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [], devices=[place("1g.10gb", 4)])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
    since_s = node.clock.monotonic()
    hardware.put(0, "1g.10gb", 4)
    gpu = gpu_device_name(GPU.uuid)
    assert counters(node)[gpu]["memory-slice-4"] == "1"
    node.until(lambda: counters(node)[gpu]["memory-slice-4"] == "0", "the slice that was taken", REREAD_S)
    assert node.clock.monotonic() - since_s > SETTLED_S, "until then it may be ours"
    node.until(lambda: "MigTaken" in node_events(node), "an Event")


def test_what_others_made_where_a_claim_was_refused_is_told_with_the_next_reading(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    node.program.start()
    node.ready()
    hardware.put(0, "1g.10gb", 4)
    claim = node.world.allocated_claim("claim", [], devices=[place("1g.10gb", 4)])
    assert "memory slice 4 of GPU" in node.world.prepare(claim)[claim.metadata.uid].error
    gpu = gpu_device_name(GPU.uuid)
    node.until(lambda: counters(node)[gpu]["memory-slice-4"] == "0", "the slice that was taken", REREAD_S)
    node.until(lambda: "MigTaken" in node_events(node), "an Event")


def test_a_plugin_that_is_started_again_knows_its_own_devices(world: World, hardware: FakeMigHardware) -> None:
    first = dividing(world, hardware)
    first.program.start()
    claim = world.allocated_claim("claim", [], devices=[place("1g.10gb", 6)])
    try:
        first.ready()
        answer = world.prepare(claim)[claim.metadata.uid]
        assert answer.error == ""
    finally:
        first.stop()
    second = dividing(world, hardware)
    second.program.start()
    try:
        second.ready()
        assert counters(second)[gpu_device_name(GPU.uuid)]["memory-slice-6"] == "1", "it is a claim's, no stranger's"
        assert world.prepare(claim)[claim.metadata.uid] == answer
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
    finally:
        second.stop()
    assert hardware.layout(0) == []


def test_a_device_whose_claim_left_nothing_but_its_note_goes_when_kubelet_ends_the_claim(
    world: World, hardware: FakeMigHardware
) -> None:
    with nvml_node(world) as plain:
        plain.stop()
    name = place("2g.20gb", 2)
    node = dividing(world, hardware)
    try:
        start_without_pods(node)
        claim = world.allocated_claim("claim", [], devices=[name])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
    finally:
        node.stop()
    for file in (
        *world.kubelet.rglob(f"{claim.metadata.uid}.json"),
        *world.folder.joinpath("cdi").glob(f"*{claim.metadata.uid}.json"),
    ):
        file.unlink()
    world.client.delete(ResourceClaim, "claim", namespace="default")
    node = dividing(world, hardware)
    try:
        node.program.start()
        world.register()
        node.until(lambda: "MigTaken" in (http(node.program, "/readyz")[1]), "the sweep")
        assert hardware.layout(0) == [("2g.20gb", 2, 1)], "its containers may run"
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
        assert hardware.layout(0) == []
        again = world.allocated_claim("again", [], devices=[name])
        node.until(lambda: node.program.ready() is None, "ready")
        assert world.prepare(again)[again.metadata.uid].error == ""
    finally:
        node.stop()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"rubbish")], ids=["lost", "broken"])
def test_a_running_pods_device_is_its_claims_again_after_its_checkpoint_was_lost(
    world: World, hardware: FakeMigHardware, damage: Callable[[Path], object]
) -> None:
    first = dividing(world, hardware)
    first.program.start()
    pod = world.pod("pod", "claim")
    claim = world.allocated_claim("claim", [], pod, devices=[place("2g.20gb", 2)])
    try:
        first.ready()
        answer = world.prepare(claim)[claim.metadata.uid]
        assert answer.error == ""
    finally:
        first.program.stop()
    (checkpoint,) = world.kubelet.rglob(f"{claim.metadata.uid}.json")
    before, spec = checkpoint.read_bytes(), world.spec_text(claim)
    damage(checkpoint)
    second = dividing(world, hardware)
    second.program.start()
    try:
        second.ready()
        second.until(lambda: checkpoint.exists() and checkpoint.read_bytes() == before, "the checkpoint as it was")
        assert (hardware.layout(0), hardware.made) == ([("2g.20gb", 2, 1)], 1)
        assert world.spec_text(claim) == spec
        assert world.prepare(claim)[claim.metadata.uid] == answer
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
    finally:
        second.program.stop()
    assert hardware.layout(0) == []


def test_claims_end_after_the_setting_was_taken_back(world: World, hardware: FakeMigHardware) -> None:
    """On a node that was not drained: what they had is undone, and only new claims are not served that way."""
    first = dividing(world, hardware)
    first.program.start()
    part = world.allocated_claim("part", [], devices=[place("1g.10gb", 6)])
    whole = world.allocated_claim("whole", [], devices=[gpu_device_name(MACHINE.gpus[1].uuid)])
    try:
        first.ready()
        for claim in (part, whole):
            assert world.prepare(claim)[claim.metadata.uid].error == ""
    finally:
        first.stop()
    second = dividing(world, hardware, mig="")
    second.program.start()
    try:
        second.ready()
        other = world.allocated_claim("other", [], devices=[place("1g.10gb", 0)])
        assert "has no device" in world.prepare(other)[other.metadata.uid].error
        for claim in (part, whole):
            assert world.unprepare(claim) == {claim.metadata.uid: ""}
    finally:
        second.stop()
    assert hardware.layout(0) == []
    assert not hardware.gpus[0].mode


def test_a_place_is_as_sick_as_its_gpu(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    node.until(lambda: node.nvml is not None and node.nvml.registered, "events are listened to")
    node.nvml.report_xid(0, 79)
    node.until(lambda: taints(node).get(gpu_device_name(GPU.uuid)), "a taint on the GPU")
    sick = taints(node)[gpu_device_name(GPU.uuid)]
    node.until(lambda: taints(node)[place("1g.10gb", 0)] == sick, "the same on the place")
    assert taints(node)[mig_device_name(MACHINE.gpus[1].uuid, "1g.10gb", 0)] == []


def start_recorded(world: World) -> ForkedProgram:
    """Start the plugin and wait for its socket: gRPC alone tries again after longer and longer pauses."""
    socket = world.kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
    socket.unlink(missing_ok=True)
    process = start_process(world, more=[flag("mig")], machine="h100-x1")
    wait_for(socket.exists, "the socket of the plugin", timeout_s=60)
    return process


def test_a_recorded_machine_is_divided_and_a_kill_loses_nothing(server: ApiGround) -> None:
    """As in the demo: real processes, no driver at all."""
    gpu = read_machine("h100-x1").gpus[0].uuid
    with short_folder() as folder:
        world = World(server, folder)
        part = world.allocated_claim("part", [], devices=[mig_device_name(gpu, "3g.40gb", 4)])
        whole = world.allocated_claim("whole", [], devices=[gpu_device_name(gpu)])
        process = start_recorded(world)
        try:
            world.register()
            answer = world.prepare(part)[part.metadata.uid]
        finally:
            process.kill()
            process.communicate()
        assert answer.error == ""
        assert "/dev/nvidia-caps/nvidia-cap12" in world.spec_text(part)
        process = start_recorded(world)
        try:
            world.register()
            assert world.prepare(part)[part.metadata.uid] == answer
            assert "still held" in world.prepare(whole, timeout_s=10.0)[whole.metadata.uid].error
            assert world.unprepare(part) == {part.metadata.uid: ""}
            assert world.prepare(whole)[whole.metadata.uid].error == ""
        finally:
            process.kill()
            process.communicate()
