"""Health of the GPUs through the whole plugin on NVML: taints, streams, events (support.nvml_world)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import pynvml
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import gpu_device_name
from dracaena.api.objects import Node
from dracaena.cli.main import main
from dracaena.demo.apiserver import Faults, InjectedFault
from dracaena.kubelet_plugin.adapters.kubelet.health_streams import RESEND_S
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.node.health_monitor import DEADLINE_S, EVENTS_S, POLL_S
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from dracaena.kubelet_plugin.program import Program
from dracaena.proto.health.v1 import api_pb2 as health_v1
from dracaena.proto.health.v1 import api_pb2_grpc as health_v1_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as health_v1alpha1
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from support import nvml_world as nvml_world_module
from support.api_ground import ApiGround
from support.clock import FakeClock
from support.fake_nvml import SYMBOLS, FakeNvml
from support.fake_nvml_values import FakeHealth, gpu_address
from support.gpu_driver_root import put
from support.kube import wait_for
from support.nvml_world import (
    MIG,
    NAMES,
    RECORDED,
    NvmlNode,
    node_events,
    nvml_node,
    nvml_world,
    taints,
    times,
    without_last_gpu,
)
from support.plugin_world import DRIVER, NODE, World, http


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        yield made


@pytest.fixture
def node(world: World) -> Iterator[NvmlNode]:
    with nvml_node(world) as made:
        yield made


def test_an_xid_taints_its_gpu_beside_our_taint_until_the_driver_asks_for_nothing_any_more(node: NvmlNode) -> None:
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
    counted = 'dracaena_plugin_device_health{health="unhealthy"} 1.0'
    node.until(lambda: counted in http(node.program, "/metrics")[1], "counted")  # after it was published
    node.until(lambda: node_events(node) == ["GpuUnhealthy"], "an event")
    node.nvml.health[2].recovery_action = 0
    node.until(lambda: taints(node)[NAMES[2]] == [], "cleared", POLL_S)
    assert times(node).items() <= tainted.items()  # what stays was not added anew
    node.until(lambda: node_events(node) == ["GpuHealthy", "GpuUnhealthy"], "an event")


def test_an_admin_says_which_xids_count_and_whether_pods_are_evicted(world: World) -> None:
    node = NvmlNode(world, ignored_xids="48,62", fatal_xids="13", evict_from_lost=True)
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
        clock.advance(EVENTS_S)
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
    node = NvmlNode(world, watch_health=False)
    node.program.start()
    try:
        node.ready()
        assert node.nvml is not None
        assert "nvmlEventSetCreate" not in node.nvml.calls
        assert world.versions() == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert set(map(tuple, taints(node).values())) == {()}
    finally:
        node.program.stop()


def test_a_gpu_that_is_lost_stays_published_but_not_as_healthy(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    node.nvml.refuse("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=1)
    lost = [("gpu-lost", "", "NoSchedule")]
    node.until(lambda: taints(node)[NAMES[1]] == lost, "tainted", POLL_S)
    assert node.devices() == NAMES
    node.nvml.allow()
    node.until(lambda: taints(node)[NAMES[1]] == [], "cleared", POLL_S)


def test_a_gpu_that_leaves_the_machine_leaves_the_slice_and_comes_back_with_it(node: NvmlNode) -> None:
    last = gpu_address(RECORDED, len(NAMES) - 1)
    bound = node.world.folder / "sys/bus/pci/drivers/nvidia" / str(last)
    target = bound.readlink()
    node.program.start()
    node.ready()
    whole, less = node.nvml, without_last_gpu(RECORDED)
    node.nvml = FakeNvml(less)
    bound.unlink()
    node.until(lambda: node.devices() == NAMES[:-1], "one less", REREAD_S)
    node.nvml = whole
    bound.symlink_to(target)
    node.until(lambda: node.devices() == NAMES, "all", REREAD_S)


def test_a_driver_that_hangs_for_long_holds_new_pods_back_and_no_claim_that_is_there(node: NvmlNode) -> None:
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


def test_an_xid_of_a_gpu_instance_taints_its_mig_devices_only(node: NvmlNode) -> None:
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
    node: NvmlNode, messages: Any, services: Any
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


def test_a_restart_neither_drops_a_taint_that_still_holds_nor_writes_it_anew(world: World) -> None:
    first = NvmlNode(world)
    assert first.nvml is not None
    first.nvml.health[2].remap_pending = True
    first.program.start()
    try:
        first.ready()
        first.until(lambda: taints(first)[NAMES[2]] == [("row-remap", "pending", "NoSchedule")], "tainted", EVENTS_S)
    finally:
        first.program.stop()
    before = [(s.metadata.name, s.metadata.resource_version) for s in world.slices()]
    second = NvmlNode(world)
    assert second.nvml is not None
    second.nvml.health[2].remap_pending = True
    second.program.start()
    try:
        second.ready()
        assert [(s.metadata.name, s.metadata.resource_version) for s in world.slices()] == before
        second.nvml.health[2].remap_pending = False
        second.until(lambda: taints(second)[NAMES[2]] == [], "cleared", POLL_S)
    finally:
        second.program.stop()


def test_a_taint_of_an_earlier_run_goes_at_the_first_look_when_nothing_is_wrong_any_more(world: World) -> None:
    first = NvmlNode(world)
    assert first.nvml is not None
    first.nvml.health[2].remap_pending = True
    first.program.start()
    try:
        first.ready()
        first.until(lambda: taints(first)[NAMES[2]], "tainted", EVENTS_S)
    finally:
        first.program.stop()
    second = NvmlNode(world)
    second.program.start()
    try:
        second.ready()
        assert taints(second)[NAMES[2]] == []
    finally:
        second.program.stop()


@pytest.mark.embedded_only(reason="makes the server fail")
def test_a_taint_that_the_server_did_not_take_is_published_at_the_next_try(node: NvmlNode, faults: Faults) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    faults.add(InjectedFault(method="P(UT|ATCH)", path=".*/resourceslices/.*", status=503, times=3))
    node.nvml.health[1].remap_failed = True
    node.until(lambda: taints(node)[NAMES[1]] == [("row-remap", "failed", "NoSchedule")], "tainted", EVENTS_S)
    assert "dracaena_plugin_publish_errors_total 3.0" in http(node.program, "/metrics")[1]
    written = 'dracaena_plugin_slice_writes_total{operation="update"}'
    node.until(lambda: written in http(node.program, "/metrics")[1], "counted when the answer is there")


def test_a_driver_that_was_reloaded_is_found_again_and_watched_again(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    gone, node.nvml = node.nvml, None
    assert gone is not None
    for symbol in SYMBOLS:
        gone.refuse(symbol, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    node.until(lambda: "reading_stale 1.0" in http(node.program, "/metrics")[1], "stale", POLL_S)
    node.until(
        lambda: {("silent", "", "NoSchedule")} == {t for found in taints(node).values() for t in found}, "", POLL_S
    )
    node.nvml = FakeNvml(RECORDED)
    node.until(lambda: taints(node)[NAMES[1]] == [], "well again", POLL_S)
    node.until(lambda: "reading_stale 0.0" in http(node.program, "/metrics")[1], "read again", POLL_S)
    node.nvml.health[1].recovery_action = 1
    node.nvml.report_xid(1, 79)
    node.until(lambda: ("xid", "79", "NoSchedule") in taints(node)[NAMES[1]], "events are heard again", EVENTS_S)


def label(world: World, value: str | None) -> None:
    patch = {"metadata": {"labels": {f"{DRIVER}/release-driver": value}}}
    world.client.merge_patch(Node, NODE, patch)


@pytest.mark.parametrize("way", ["command", "label"])
def test_the_driver_is_let_go_of_when_asked_and_the_plugin_goes_on_serving(node: NvmlNode, way: str) -> None:
    node.program.start()
    node.ready()
    assert node.nvml is not None
    before, after = (node.world.allocated_claim(name, [gpu]) for gpu, name in enumerate(("before", "after")))
    assert node.world.prepare(before)[before.metadata.uid].error == ""
    kubelet_root = f"--kubelet-root={node.world.kubelet}"
    if way == "label":
        label(node.world, "true")
    else:
        under_way = node.nvml.wedged["nvmlDeviceGetRemappedRows"] = threading.Event()
        node.until(lambda: node.nvml and node.nvml.hanging, "a call, which keeps the driver open", POLL_S)
        code = main(["driver", "release", "--timeout=0", "--reason=a new driver", kubelet_root])
        under_way.set()
        assert code == 1
    released = [("driver-released", "", "NoSchedule")]
    node.until(lambda: all(found == released for found in taints(node).values()), "tainted", EVENTS_S)
    assert node.nvml.opened == 0
    if way == "command":
        assert main(["driver", "release", "--timeout=0", "--reason=a new driver", kubelet_root]) == 0
    assert "is released, as requested by" in node.world.prepare(after)[after.metadata.uid].error
    assert node.world.unprepare(before) == {before.metadata.uid: ""}
    calls = len(node.nvml.calls)
    for _ in range(20):
        node.until(lambda: True, "time passes", 10 * REREAD_S)
    assert (node.nvml.opened, len(node.nvml.calls)) == (0, calls)
    if way == "label":
        label(node.world, None)
    else:
        assert main(["driver", "resume", kubelet_root]) == 0
    node.until(lambda: not any(taints(node).values()), "well again", EVENTS_S)
    node.until(lambda: node.world.prepare(after)[after.metadata.uid].error == "", "prepared")
    assert node.nvml.opened == 1


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-1v"])
def test_nvlinks_that_go_down_are_told_and_their_gpu_stays_in_use(
    server: ApiGround, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(nvml_world_module, "RECORDED", read_machine(machine))
    with nvml_world(server) as world, nvml_node(world) as node:
        node.program.start()
        node.ready()
        assert node.nvml is not None
        gpu = node.nvml.machine.gpus[0]
        links = node.nvml.links[0]
        node.nvml.links[0] = [replace(link, state=pynvml.NVML_FEATURE_DISABLED) for link in links]
        name = gpu_device_name(gpu.uuid)
        node.until(lambda: ("nvlink", "down", "None") in taints(node)[name], "tainted", POLL_S)
        node.until(lambda: "NvLinksDown" in node_events(node), "an Event", EVENTS_S)
        assert f"GPU {gpu.uuid}: {len(links)} of its NVLinks are down" in http(node.program, "/readyz")[1]
        counted = 'dracaena_plugin_troubles{reason="NvLinksDown"} '
        assert f"{counted}0.0" not in http(node.program, "/metrics")[1]
        assert counted in http(node.program, "/metrics")[1]
        node.nvml.links[0] = links
        node.until(lambda: "NvLinksDown" not in http(node.program, "/readyz")[1], "links that are back", POLL_S)
        assert [taint for each in taints(node).values() for taint in each if taint[2] != "None"] == []


def test_one_question_that_keeps_failing_hides_no_due_reset(node: NvmlNode) -> None:
    assert node.nvml is not None
    node.nvml.refuse("nvmlDeviceGetRetiredPagesPendingStatus", pynvml.NVML_ERROR_UNKNOWN)
    node.program.start()
    node.ready()
    node.nvml.health[2].recovery_action = 1
    due = ("recovery-action", "gpu-reset", "NoSchedule")
    node.until(lambda: due in taints(node)[NAMES[2]], "what the driver asks for", POLL_S)
    node.until(lambda: taints(node)[NAMES[1]] == [("unmonitored", "partly", "None")], "what is not known", POLL_S)
