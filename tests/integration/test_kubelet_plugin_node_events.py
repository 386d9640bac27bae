"""What an admin sees of a driver in trouble: Events on the node, the metric, /readyz (support.nvml_world)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pynvml
import pytest

from dracaena.kube.events import Event
from dracaena.kubelet_plugin.node.health_monitor import EVENTS_S, POLL_S
from dracaena.kubelet_plugin.node.live_machine import READ_DEADLINE_S, REREAD_S, RETRY_S
from support.api_ground import ApiGround
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeFabric, gpu_address
from support.gpu_driver_root import VERSION, put, put_gpu_driver
from support.nvml_world import RECORDED, NvmlNode, nvml_node, nvml_world, taints, without_last_gpu
from support.plugin_world import NODE, World, http


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        yield made


@pytest.fixture
def node(world: World) -> Iterator[NvmlNode]:
    with nvml_node(world) as made:
        yield made


def events(node: NvmlNode) -> list[Event]:
    return [event for event in node.world.client.list(Event).items if event.involved_object.name == NODE]


def told(node: NvmlNode) -> list[tuple[str, int]]:
    return sorted((event.reason, event.count) for event in events(node))


def text(node: NvmlNode, reason: str) -> str:
    return next(event.message for event in events(node) if event.reason == reason)


def driver(node: NvmlNode) -> FakeNvml:
    assert node.nvml is not None
    return node.nvml


def no_library(node: NvmlNode) -> Callable[[], None]:
    found, node.nvml = node.nvml, None

    def mend() -> None:
        node.nvml = found

    return mend


def refused(symbol: str, code: int) -> Callable[[NvmlNode], Callable[[], None]]:
    def spoil(node: NvmlNode) -> Callable[[], None]:
        driver(node).refuse(symbol, code)
        return driver(node).allow

    return spoil


def contradictory(node: NvmlNode) -> Callable[[], None]:
    found = driver(node)
    found.machine = replace(RECORDED, gpus=tuple(replace(gpu, uuid=RECORDED.gpus[0].uuid) for gpu in RECORDED.gpus))

    def mend() -> None:
        found.machine = RECORDED

    return mend


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        (no_library, "DriverLibraryMissing", "find / -xdev"),
        (refused("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED), "DriverNotLoaded", "DRIVER_NOT_LOADED"),
        (refused("nvmlInitWithFlags", pynvml.NVML_ERROR_UNKNOWN), "DriverInitFailed", "nvmlInit says UNKNOWN"),
        (
            refused("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
            "DriverVersionMismatch",
            "cat /proc/driver/nvidia/version",
        ),
        (refused("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN), "DriverReadingFailed", "how many GPUs"),
        (contradictory, "DriverReadingContradictory", "nvidia-smi -L"),
    ],
)
def test_a_node_whose_gpus_cannot_be_read_says_why_once_and_how_to_mend_it(
    node: NvmlNode, spoil: Callable[[NvmlNode], Callable[[], None]], reason: str, words: str
) -> None:
    mend = spoil(node)
    node.program.start()
    node.world.register()
    node.until(lambda: told(node), "an event", RETRY_S)
    for _ in range(5):
        node.until(lambda: True, "time passes", 10 * RETRY_S)
    assert told(node) == [(reason, 1)]
    assert words in text(node, reason)
    assert f'dracaena_plugin_troubles{{reason="{reason}"}} 1.0' in http(node.program, "/metrics")[1]
    mend()
    node.until(lambda: http(node.program, "/readyz") == (200, "ok\n"), "ready", RETRY_S)
    assert f'dracaena_plugin_troubles{{reason="{reason}"}} 0.0' in http(node.program, "/metrics")[1]


def test_after_a_restart_with_a_lost_gpu_the_node_says_which_one(node: NvmlNode) -> None:
    driver(node).lost.add(3)
    node.program.start()
    node.world.register()
    node.until(lambda: len(node.devices()) == len(RECORDED.gpus) - 1, "published", RETRY_S)
    node.until(lambda: told(node) == [("GpuMissing", 1)], "an event")
    address = gpu_address(RECORDED, 3)
    assert f"the GPU at {address} is on the PCI bus" in text(node, "GpuMissing")
    assert f"nvidia-smi -q -i {address}" in text(node, "GpuMissing")
    node.until(lambda: http(node.program, "/readyz")[0] == 200, "ready")
    assert http(node.program, "/readyz")[1].startswith("ok, and an admin should look: GpuMissing: the GPU at")
    driver(node).lost.clear()
    node.until(lambda: len(node.devices()) == len(RECORDED.gpus), "all", REREAD_S)
    node.until(lambda: http(node.program, "/readyz") == (200, "ok\n"), "no word of it any more")


def test_a_gpu_that_the_driver_does_not_even_count_is_missing_too(node: NvmlNode) -> None:
    driver(node).machine = without_last_gpu(RECORDED)
    node.program.start()
    node.world.register()
    node.until(lambda: told(node) == [("GpuMissing", 1)], "an event", RETRY_S)
    assert str(gpu_address(RECORDED, len(RECORDED.gpus) - 1)) in text(node, "GpuMissing")


def test_a_fabric_that_was_not_started_is_one_event_and_gone_when_it_is(node: NvmlNode) -> None:
    for gpu in range(len(RECORDED.gpus)):
        driver(node).fabric[gpu] = FakeFabric(pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED)
    node.program.start()
    node.ready()
    node.until(lambda: told(node) == [("FabricNotReady", 1)], "an event", POLL_S)
    assert "error 802; on the node: `systemctl status nvidia-fabricmanager`" in text(node, "FabricNotReady")
    driver(node).fabric.clear()
    node.until(lambda: http(node.program, "/readyz") == (200, "ok\n"), "well", POLL_S)
    assert told(node) == [("FabricNotReady", 1)]


def test_a_driver_that_was_replaced_is_told_with_both_versions(node: NvmlNode) -> None:
    driver(node).machine = replace(RECORDED, driver_version="580.65.06")
    node.program.start()
    node.ready()
    driver(node).machine = replace(RECORDED, driver_version="590.10")
    node.until(lambda: told(node) == [("DriverReplaced", 1)], "an event", REREAD_S)
    assert "driver 580.65.06 was replaced by 590.10" in text(node, "DriverReplaced")


def test_a_driver_that_hangs_is_named_with_the_call(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    release = driver(node).wedged["nvmlDeviceGetMemoryInfo"] = threading.Event()
    try:
        call = "nvmlDeviceGetMemoryInfo of GPU 0"
        node.until(lambda: node.source.doing() == call, "the next reading has come to the call", REREAD_S)
        node.until(lambda: "DriverSilent" in dict(told(node)), "an event", READ_DEADLINE_S, hanging=True)
        assert f"{call} has not returned" in text(node, "DriverSilent")
    finally:
        release.set()


def test_a_package_that_was_updated_without_its_module_is_told_and_given_to_nobody(node: NvmlNode) -> None:
    put(node.world.folder, "sys/module/nvidia/version", f"{VERSION}\n".encode())
    node.program.start()
    node.ready()
    claim = node.world.allocated_claim("claim", [1])
    put_gpu_driver(node.world.folder / "host", version="590.10")
    for old in (node.world.folder / "host/usr/lib64").glob(f"*.so.{VERSION}"):
        old.unlink()
    node.until(lambda: told(node) == [("DriverVersionMismatch", 1)], "an event", EVENTS_S)
    mismatch = [("driver-mismatch", "", "NoSchedule")]
    node.until(lambda: all(found == mismatch for found in taints(node).values()), "tainted")
    error = node.world.prepare(claim)[claim.metadata.uid].error
    assert f"are of version 590.10, the kernel module that is loaded is {VERSION}" in error
    put(node.world.folder, "sys/module/nvidia/version", b"590.10\n")
    node.until(lambda: not any(taints(node).values()), "well", EVENTS_S)
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert told(node) == [("DriverVersionMismatch", 1)]
