"""The whole plugin with MIG layouts on a fake driver: a label divides idle GPUs, and claims get the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dracaena.api.mig import mig_device_name
from dracaena.api.names import gpu_device_name
from dracaena.api.objects import KubeObject
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from support.api_ground import ApiGround
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.gpu_lists import entry
from support.kube import wait_for
from support.late_watch import WATCHED, start_with_late_watch
from support.node_layouts import choose, layout_condition
from support.nvml_mig_world import HOPPER as MACHINE
from support.nvml_mig_world import put_capabilities
from support.nvml_world import NvmlNode, node_events, nvml_node, nvml_world, taints
from support.plugin_world import World

GPU = MACHINE.gpus[0]
FILE = """
version: v1
mig-configs:
  all-disabled:
    - {devices: all, mig-enabled: false}
  first-1g:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  first-mixed:
    - devices: [0]
      device-filter: ["0x233010DE"]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
  too-much:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 8}
"""
WITHHELD = ("mig-layout", "pending", "NoSchedule")


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        put_capabilities(made)
        (made.folder / "layouts.yaml").write_text(FILE, encoding="utf-8")
        yield made


@pytest.fixture
def hardware() -> FakeMigHardware:
    made = FakeMigHardware(MACHINE)
    made.gpus[0].device_id = 0x233010DE
    return made


@pytest.fixture
def node(world: World, hardware: FakeMigHardware) -> Iterator[NvmlNode]:
    with nvml_node(world) as plain:
        plain.stop()
    node = starting(world, hardware)
    try:
        yield node
    finally:
        node.stop()


def starting(world: World, hardware: FakeMigHardware, **changes: Any) -> NvmlNode:
    file = str(world.folder / "layouts.yaml")
    node = NvmlNode(world, gpus=read_gpus([entry("layout", file=file, condition=True, **changes)]))
    node.nvml = FakeMigNvml(hardware)
    return node


def until_told(node: NvmlNode, words: str) -> None:
    """Let time pass until the condition has these words: a layout waits for half a minute."""
    node.until(lambda: words in layout_condition(node.world), words, 10.0, timeout_s=60)


def part(profile: str, start: int) -> str:
    return mig_device_name(GPU.uuid, profile, start)


def parts(node: NvmlNode) -> list[str]:
    return [name for name in node.devices() if name.startswith("mig-")]


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.RESOURCE)
def test_a_watch_that_begins_last_delays_no_publication(node: NvmlNode, kind: type[KubeObject]) -> None:
    start_with_late_watch(node, kind)


def test_a_label_divides_an_idle_gpu_and_claims_get_its_parts(node: NvmlNode, hardware: FakeMigHardware) -> None:
    choose(node.world, "first-1g")
    node.program.start()
    node.ready()
    until_told(node, "True Applied MIG layout first-1g: all GPUs have it")
    assert hardware.layout(0) == [("1g.10gb", start, 1) for start in range(7)]
    node.until(lambda: taints(node).get(part("1g.10gb", 3)) == [], "parts are published and free", 10.0)
    assert parts(node) == [part("1g.10gb", start) for start in range(7)]
    assert gpu_device_name(GPU.uuid) not in node.devices()
    claim = node.world.allocated_claim("claim", [], devices=[part("1g.10gb", 3)])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    node.until(lambda: {"MigLayoutApplied", "MigLayoutPending"} <= set(node_events(node)), "Events")
    assert hardware.layout(1) == []


def test_a_gpu_counts_as_withheld_as_soon_as_the_api_server_shows_it(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    choose(node.world, "first-1g")
    whole = gpu_device_name(GPU.uuid)
    node.until(lambda: WITHHELD in taints(node)[whole], "the taint is published", 10.0)
    words = "the devices of GPU 0 are withheld; waiting for pods"
    wait_for(lambda: words in layout_condition(node.world), f"{words}, while no time goes by")


def test_a_gpu_in_use_is_withheld_and_changed_when_its_last_claim_goes(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    choose(node.world, "first-1g")
    node.program.start()
    node.ready()
    until_told(node, "True Applied")
    claim = node.world.allocated_claim("claim", [], devices=[part("1g.10gb", 3)])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    before = hardware.layout(0)
    choose(node.world, "first-mixed")
    until_told(node, "False Pending MIG layout first-mixed: claim default/claim")
    assert taints(node)[part("1g.10gb", 0)] == [WITHHELD]
    assert taints(node)[gpu_device_name(MACHINE.gpus[1].uuid)] == []
    assert hardware.layout(0) == before
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
    until_told(node, "True Applied MIG layout first-mixed")
    assert hardware.layout(0) == [("1g.10gb", 2, 1), ("1g.10gb", 3, 1), ("2g.20gb", 0, 1), ("3g.40gb", 4, 1)]
    node.until(lambda: taints(node).get(part("3g.40gb", 4)) == [], "the 3g is published", 10.0)
    choose(node.world, "all-disabled")
    until_told(node, "True Applied MIG layout all-disabled")
    assert (hardware.layout(0), hardware.gpus[0].mode) == ([], False)
    node.until(lambda: taints(node).get(gpu_device_name(GPU.uuid)) == [], "the GPU is whole again", 10.0)


def test_a_claim_that_is_allocated_and_not_prepared_yet_is_waited_for(
    node: NvmlNode, hardware: FakeMigHardware
) -> None:
    choose(node.world, "first-1g")
    claim = node.world.allocated_claim("claim", [], devices=[gpu_device_name(GPU.uuid)])
    node.world.pod("pod", "claim")
    node.program.start()
    node.ready()
    until_told(node, "False Pending MIG layout first-1g: claim default/claim")
    assert hardware.layout(0) == []
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert not hardware.gpus[0].mode


@pytest.mark.parametrize(
    ("layout", "file", "words"),
    [
        ("too-much", FILE, "GPU 0 has no room for 8 x 1g.10gb (1g.10gb at most 7)"),
        ("all-9g", FILE, "there is no layout 'all-9g'; the file has all-disabled, first-1g"),
        ("first-1g", FILE.replace("v1", "v2"), "version: 'v2', expected 'v1'"),
        ("first-1g", FILE.replace('"1g.10gb": 7', '"1g.5gb": 7'), "GPU 0 has no profile 1g.5gb, it has 1g.10gb"),
        ("first-1g", "a: &a [*a]", "alias *a"),
    ],
)
def test_what_cannot_be_had_is_said_and_changes_nothing(
    node: NvmlNode, hardware: FakeMigHardware, layout: str, file: str, words: str
) -> None:
    (node.world.folder / "layouts.yaml").write_text(file, encoding="utf-8")
    choose(node.world, layout)
    node.program.start()
    node.ready()
    until_told(node, "False Failed")
    assert words in layout_condition(node.world)
    node.until(lambda: "MigLayoutFailed" in node_events(node), "an Event", 10.0)
    assert not hardware.gpus[0].mode
    assert taints(node)[gpu_device_name(GPU.uuid)] == []


def test_a_plugin_that_ends_in_the_middle_goes_on_and_offers_nothing_half_done(
    world: World, hardware: FakeMigHardware, node: NvmlNode
) -> None:
    choose(world, "first-1g")
    assert isinstance(node.nvml, FakeMigNvml)
    nvml, left = node.nvml, [3]  # mode, GPU instance, compute instance

    def get_no_further(_symbol: str) -> None:
        left[0] -= 1
        nvml.privileged = left[0] > 0

    nvml.after_change = get_no_further
    node.program.start()
    node.ready()
    until_told(node, "False Failed MIG layout first-1g: GPU 0: mig-instance of ")
    assert "cannot be made: nvmlDeviceCreateGpuInstanceWithPlacement says NO_PERMISSION" in layout_condition(world)
    node.stop()
    assert len(hardware.layout(0)) == 1
    # Once the driver has been read again, the whole GPU is not published at all.
    own = gpu_device_name(GPU.uuid).removeprefix("gpu-")
    assert [name for name, each in taints(node).items() if own in name and WITHHELD not in each] == []
    second = starting(world, hardware)
    second.program.start()
    try:
        second.ready()
        until_told(second, "True Applied")
        assert hardware.layout(0) == [("1g.10gb", start, 1) for start in range(7)]
    finally:
        second.stop()
