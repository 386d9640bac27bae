"""The whole plugin against an API server, over real sockets, files and processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError, PermanentError
from dracaena.api.names import gpu_device_name
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.demo.apiserver import Faults, InjectedFault
from dracaena.kubelet_plugin.program import Program
from dracaena.kubelet_plugin.wiring.parts import PluginParts
from support.api_ground import ApiGround
from support.clock import FakeClock
from support.gpu_driver_root import put_gpu_driver
from support.kube import wait_for
from support.plugin import files_below
from support.plugin_world import (
    CALL_S,
    DRIVER,
    GPUS,
    NO_WAIT_S,
    NODE,
    START_S,
    World,
    http,
    start_command,
    start_process,
)
from support.sockets import short_folder


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


@pytest.fixture
def plugin(world: World) -> Iterator[Program]:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    world.register()
    yield program
    program.stop()


def test_the_node_publishes_its_tainted_gpus_and_is_ready_then(world: World, plugin: Program) -> None:
    wait_for(lambda: plugin.ready() is None, "ready")
    (published,) = world.slices()
    assert [device.name for device in published.spec.devices] == [gpu_device_name(uuid) for uuid in GPUS]
    assert {taint.key for device in published.spec.devices for taint in device.taints} == {
        "gpu.dracaena.dev/controller-allocated"
    }
    owner = published.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.uid) == ("Node", NODE, world.client.get(Node, NODE).metadata.uid)
    assert published.spec.pool.generation == 2  # what an instance of before may have sent has 1
    assert http(plugin, "/readyz") == (200, "ok\n")
    wait_for(lambda: "dracaena_plugin_published_devices 7.0" in http(plugin, "/metrics")[1], "the metric")


def test_nothing_is_published_before_kubelet_has_registered_the_plugin(world: World) -> None:
    claim = world.allocated_claim("claim", [0])
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert http(program, "/readyz") == (503, "not ready: kubelet has not registered this plugin yet\n")
        assert world.slices() == []
        world.register()
        wait_for(lambda: program.ready() is None, "ready")
        assert len(world.slices()) == 1
    finally:
        program.stop()


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
        world.register()
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
    world.further_pod("second", claim)
    wait_for(lambda: len(world.podlist()) == 2, "a second pod on the prepared claim is listed")
    wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("second"), "and annotated")
    world.client.delete(Pod, "second", namespace="default", grace_period_s=0)
    wait_for(lambda: len(world.podlist()) == 1, "a deleted pod leaves the list")
    assert world.unprepare(claim) == {claim.metadata.uid: ""}
    assert world.podlist() == []
    wait_for(lambda: "gpu.dracaena.dev/uuids" not in world.annotations("pod"), "annotations are gone")
    assert list((world.folder / "cdi").iterdir()) == []


@pytest.mark.embedded_only(reason="makes the server fail")
def test_annotations_are_tried_again_when_the_server_fails(world: World, plugin: Program, faults: Faults) -> None:
    faults.add(InjectedFault(method="PATCH", path=".*/pods/.*", status=503, times=2))
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
    answers = world.prepare(first, second, timeout_s=NO_WAIT_S)
    assert answers[first.metadata.uid].error == ""
    assert f"is still held by claim default/first (UID {first.metadata.uid})" in answers[second.metadata.uid].error


def test_stopping_removes_the_sockets_and_leaves_slices_and_claims(world: World) -> None:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    world.register()
    wait_for(lambda: program.ready() is None, "ready")
    claim = world.allocated_claim("claim", [0])
    assert world.prepare(claim)[claim.metadata.uid].error == ""
    program.stop()
    assert not [path for path in world.kubelet.rglob("*") if path.is_socket()]
    assert len(world.slices()) == 1
    assert (world.kubelet / "plugins" / DRIVER / "claims" / f"{claim.metadata.uid}.json").exists()


def test_the_same_instance_is_not_started_twice(world: World, plugin: Program) -> None:
    again = start_command(world)
    _, text = again.communicate(timeout=START_S)
    assert again.returncode == 2
    assert "this instance of the plugin is already running" in text
    assert str(world.kubelet / "plugins" / DRIVER / "instance.lock") in text
    assert "Traceback" not in text
    claim = world.allocated_claim("claim", [0])
    assert world.prepare(claim)[claim.metadata.uid].error == ""  # the first one still serves


def test_two_instances_of_an_upgrade_share_the_nodes_state(world: World) -> None:
    old, new = (start_command(world, pod_uid=uid) for uid in ("uid-old", "uid-new"))
    try:
        for uid in ("uid-old", "uid-new"):
            world.register(uid)
        claim, other = world.allocated_claim("claim", [0]), world.allocated_claim("other", [0])
        answer = world.prepare(claim, pod_uid="uid-old")[claim.metadata.uid]
        assert answer.error == ""
        assert world.prepare(claim, pod_uid="uid-new")[claim.metadata.uid] == answer
        refused = world.prepare(other, pod_uid="uid-new", timeout_s=NO_WAIT_S)[other.metadata.uid]
        assert "still held" in refused.error
        old.terminate()
        assert old.wait(CALL_S) == 0
        assert world.unprepare(claim, pod_uid="uid-new") == {claim.metadata.uid: ""}
        assert world.prepare(other, pod_uid="uid-new")[other.metadata.uid].error == ""
        # Both may have found no slice and made one. The one that is left takes the second away.
        wait_for(lambda: len(world.slices()) == 1, "one slice")
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
        world.register()
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


def test_a_start_removes_what_dead_instances_left_and_nothing_of_living_ones(world: World) -> None:
    dead, living = (start_process(world, pod_uid=uid) for uid in ("uid-dead", "uid-living"))
    data, registry = world.kubelet / "plugins" / DRIVER, world.kubelet / "plugins_registry"
    try:
        for uid in ("uid-dead", "uid-living"):
            world.register(uid)
        dead.kill()
        dead.wait(CALL_S)
        assert (data / "dra-uid-dead.sock").is_socket()
        for folder in ("cdi", "k/pod-resources", f"k/plugins/{DRIVER}/claims"):
            (world.folder / folder).mkdir(parents=True, exist_ok=True)
        left = [
            data / "claims" / ".5ab9.json.tmp",
            world.kubelet / "pod-resources" / ".podlist.json.tmp",
            world.folder / "cdi" / f".{DRIVER}-claim_5ab9.json.tmp",
        ]
        foreign = [world.folder / "cdi" / ".other.vendor-gpu.json.tmp", data / "other-uid-dead.lock"]
        for path in (*left, *foreign):
            path.write_text("half")
        program = Program(world.settings(pod_uid="uid-new"), registry=CollectorRegistry())
        program.start()
        try:
            # podlist.json is written meanwhile, under the same hidden name.
            wait_for(lambda: not [path for path in left if path.exists()], "the half-written files are gone")
            assert all(path.exists() for path in foreign)
            assert sorted(path.name for path in data.glob("instance*")) == [
                "instance-uid-living.lock",
                "instance-uid-new.lock",
            ]
            assert sorted(path.name for path in (*data.glob("*.sock"), *registry.iterdir())) == [
                "dra-uid-living.sock",
                "dra-uid-new.sock",
                f"{DRIVER}-uid-living-reg.sock",
                f"{DRIVER}-uid-new-reg.sock",
            ]
            claim = world.allocated_claim("claim", [0])
            assert world.prepare(claim, pod_uid="uid-living")[claim.metadata.uid].error == ""
        finally:
            program.stop()
    finally:
        for process in (dead, living):
            process.kill()
            process.communicate()


def test_a_pod_whose_claim_took_the_name_of_one_still_prepared_is_not_listed(world: World, plugin: Program) -> None:
    old_pod = world.pod("old", "claim")
    old = world.allocated_claim("claim", [0], old_pod)
    assert world.prepare(old)[old.metadata.uid].error == ""
    world.client.delete(ResourceClaim, "claim", namespace="default")
    world.client.delete(Pod, "old", namespace="default", grace_period_s=0)
    new_pod = world.pod("new", "claim")
    new = world.allocated_claim("claim", [1], new_pod)
    wait_for(lambda: world.podlist() == [], "the old pod has left the list")
    assert world.prepare(new)[new.metadata.uid].error == ""
    assert world.podlist() == [("new", (GPUS[1],))]
    wait_for(lambda: "gpu.dracaena.dev/uuids" in world.annotations("new"), "annotated")
    assert world.annotations("new")["gpu.dracaena.dev/uuids"] == GPUS[1]


def test_a_socket_path_that_is_too_long_ends_with_exit_code_2(world: World) -> None:
    process = start_process(world, kubelet_root=str(world.folder / ("k" * 90)))
    _, text = process.communicate(timeout=START_S)
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


@pytest.mark.embedded_only(reason="makes the server fail")
def test_an_api_server_that_is_away_at_start_delays_publishing_only(world: World, faults: Faults) -> None:
    faults.add(InjectedFault(path=".*/resourceslices.*", status=503, times=10_000))
    claim = world.allocated_claim("claim", [0])
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        world.register()
        assert http(program, "/readyz") == (503, "not ready: the ResourceSlices of this node are not published yet\n")
        faults.clear()
        wait_for(lambda: program.ready() is None, "published after all", timeout_s=30)
    finally:
        program.stop()


def test_a_recorded_machine_may_bring_a_driver_for_its_containers(world: World) -> None:
    put_gpu_driver(world.folder / "seen")
    program = Program(
        world.settings(driver_root="/run/nvidia/driver", driver_root_mount=str(world.folder / "seen")),
        registry=CollectorRegistry(),
    )
    program.start()
    try:
        claim = world.allocated_claim("claim", [0])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert "/run/nvidia/driver/usr/lib64/libcuda.so" in world.spec_text(claim)
    finally:
        program.stop()


def test_a_recorded_machine_without_a_driver_gives_device_nodes_only(world: World) -> None:
    program = Program(world.settings(driver_root=""), registry=CollectorRegistry())
    program.start()
    try:
        claim = world.allocated_claim("claim", [0])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert "mounts" not in world.spec_text(claim)
    finally:
        program.stop()


def test_a_spec_that_was_lost_is_there_again_after_a_start(world: World) -> None:
    claim = world.allocated_claim("claim", [0])
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    try:
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        before = files_below(world.folder / "cdi")
    finally:
        program.stop()
    for path in (world.folder / "cdi").iterdir():
        path.unlink()
    again = Program(world.settings(), registry=CollectorRegistry())
    again.start()
    try:
        wait_for(lambda: files_below(world.folder / "cdi") == before, "the spec")
    finally:
        again.stop()


@pytest.mark.embedded_only(reason="makes the server fail")
def test_a_plugin_that_cannot_watch_the_pods_of_its_node_is_not_ready_and_says_why(
    world: World, faults: Faults
) -> None:
    faults.add(InjectedFault(path="/pods[?].*watch=true", times=10_000, status=403, message="no right to watch"))
    clock = FakeClock()
    program = Program(world.settings(), clock=clock, registry=CollectorRegistry())
    program.start()
    world.register()
    try:
        wait_for(lambda: program.ready() is None, "ready")
        clock.advance(35)
        trouble = "the cache of pods has not been fresh for 35 s: "

        def is_told() -> bool:
            """The watch may be refused only now, and those of others begin."""
            told = program.ready() or ""
            return told.startswith(trouble) and "no right to watch" in told

        wait_for(is_told, trouble)
    finally:
        program.stop()


class NotedService:
    """Notes when it is started and stopped. `fails`: the calls that raise."""

    def __init__(self, name: str, noted: list[str], *fails: str) -> None:
        self._name, self._noted, self._fails = name, noted, fails

    def start(self) -> None:
        self._note("start")

    def stop(self) -> None:
        self._note("stop")

    def _note(self, call: str) -> None:
        self._noted.append(f"{call} {self._name}")
        if call in self._fails:
            raise PermanentError(f"{self._name} does not {call}")


def program_of(world: World, monkeypatch: pytest.MonkeyPatch, *services: NotedService) -> Program:
    monkeypatch.setattr(PluginParts, "services", lambda _self: services)
    return Program(world.settings(), registry=CollectorRegistry())


def test_what_was_started_is_stopped_in_reverse_order_even_if_a_part_of_it_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    program = program_of(
        world, monkeypatch, *(NotedService(name, noted, *(["stop"] if name == "b" else [])) for name in "abc")
    )
    program.start()
    assert noted == ["start a", "start b", "start c"]
    with pytest.raises(PermanentError, match="b does not stop"):
        program.stop()
    assert noted[3:] == ["stop c", "stop b", "stop a"]
    again = program_of(world, monkeypatch)
    again.start()  # the instance lock is free
    again.stop()


def test_of_a_start_that_fails_halfway_only_what_began_is_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    services = (NotedService("a", noted), NotedService("b", noted, "start"), NotedService("c", noted))
    with pytest.raises(PermanentError, match="b does not start"):
        program_of(world, monkeypatch, *services).start()
    assert noted == ["start a", "start b", "stop b", "stop a"]
    again = program_of(world, monkeypatch)
    again.start()
    again.stop()


def test_kubelets_calls_begin_last_and_end_first(world: World) -> None:
    parts = Program(world.settings(), registry=CollectorRegistry())._parts
    assert list(parts.services())[-2:] == [parts.dra_server, parts.registration]
    assert parts.claims.sweeper in parts.services()


def test_a_look_at_the_gpu_drivers_files_that_hangs_is_given_up_before_whoever_may_wait_for_it_is_stopped(
    world: World,
) -> None:
    parts = Program(world.settings(driver_root=str(world.folder)), registry=CollectorRegistry())._parts
    assert parts.node.installation is not None
    stopped = [service.stop for service in reversed(parts.services())]
    claims, publisher = parts.claims, parts.gpus.publisher
    waiting = (publisher, claims.reporter, claims.device_watch, claims.sweeper)
    assert all(stopped.index(parts.node.installation.stop) < stopped.index(each.stop) for each in waiting)


def test_where_the_dra_socket_cannot_be_bound_nothing_else_is_started(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(world.settings(), registry=CollectorRegistry())
    services, noted = program._parts.services(), list[str]()
    # The sockets stay what they are; of everything else it is noted if it starts.
    others = [NotedService("other", noted) for _ in services]
    real = {program._parts.dra_server.stop, program._parts.registration.stop}
    mixed = [service if service.stop in real else other for service, other in zip(services, others, strict=True)]
    monkeypatch.setattr(PluginParts, "services", lambda _self: mixed)
    socket = program._node.paths.dra_socket
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.write_text("mine")
    with pytest.raises(PermanentError, match="is in the way"):
        program.start()
    assert noted == []
    assert socket.read_text() == "mine"
