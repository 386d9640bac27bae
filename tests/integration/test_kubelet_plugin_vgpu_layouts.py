"""The whole plugin with layouts of vGPUs on a fake /sys: a label makes vGPUs on idle GPUs, and claims get them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError
from dracaena.api.objects import KubeObject, Node
from dracaena.api.vgpu import vgpu_device_name
from dracaena.kubelet_plugin.adapters.sysfs.vgpu_gpus import SysfsVgpuGpus
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from dracaena.kubelet_plugin.ports import OpeningProcess
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.fake_pci import FakePciBus
from support.fake_vgpu import T4_TYPES, FakeVgpus
from support.gpu_driver_root import PROC_DEVICES, put
from support.gpu_lists import entry
from support.late_watch import WATCHED, start_with_late_watch
from support.node_layouts import NodeWithConditions
from support.nvml_world import NvmlNode, node_events, nvml_world, taints
from support.plugin_world import DRIVER, NODE, World, http

T4, UUID = "0000:e1:00.0", "aa618089-8b16-4d01-a136-25a0f3c73123"
FILE = """
version: v1
vgpu-configs:
  two-2q:
    - device-filter: ["0x233010DE"]
      devices: all
      vgpu-devices: {"T4-2Q": 2}
  one-1b:
    - devices: all
      vgpu-devices: {"T4-1B": 1}
"""
MIXED = """
  mixed:
    - devices: all
      vgpu-devices: {"T4-1B": 1, "T4-2Q": 1}
"""
WITHHELD = ("vgpu-layout", "pending", "NoSchedule")


class Kernel(FakeVgpus):
    """Stands in for PciDriverFiles and PciHolders."""

    held: tuple[str, ...] = ()

    def is_writing(self, _gpu: str) -> bool:
        return False

    def write(self, *words: str) -> None:
        super().write(*words[-2:])

    def vgpu_holders(self, folder: str, _group: int | None) -> tuple[OpeningProcess, ...]:
        return tuple(OpeningProcess(4711, "qemu-kvm") for identity in self.held if folder.endswith(identity))


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        put(made.folder, "proc/devices", PROC_DEVICES.replace("Block", "239 vfio\n 10 misc\n\nBlock").encode())
        put(made.folder, "host/dev/vfio/vfio", b"10:196")
        for group in range(101, 110):
            put(made.folder, f"host/dev/vfio/{group}", f"239:{group}".encode())
        (made.folder / "layouts.yaml").write_text(FILE, encoding="utf-8")
        yield made


@pytest.fixture
def kernel(world: World) -> Iterator[Kernel]:
    made = Kernel(FakePciBus(world.folder / "sys"))
    made.add_gpu(T4, T4_TYPES)
    parts = "dracaena.kubelet_plugin.wiring.vgpu_layout_parts"
    with (
        patch(f"{parts}.PciDriverFiles", lambda *_: made),
        patch(f"{parts}.PciHolders", lambda: made),
        patch(f"{parts}.SysfsVgpuGpus", lambda: SysfsVgpuGpus(str(made.root))),
    ):
        yield made


@pytest.fixture
def node(world: World, kernel: Kernel) -> Iterator[NvmlNode]:
    assert kernel.there(T4) == {}
    file = str(world.folder / "layouts.yaml")
    made = NvmlNode(world, gpus=read_gpus([entry("vgpu", file=file, condition=True)]))
    try:
        yield made
    finally:
        made.stop()


def choose(node: NvmlNode, layout: str | None) -> None:
    labels = {f"{DRIVER}/vgpu-layout": layout}
    node.world.client.merge_patch(Node, NODE, {"metadata": {"labels": labels}})


def until_told(node: NvmlNode, words: str) -> None:
    """Let time pass until the condition has these words: a layout waits for half a minute."""

    def is_told() -> bool:
        found = node.world.client.get(NodeWithConditions, NODE).status.conditions
        told = [f"{each.status} {each.reason} {each.message}" for each in found if each.type == "VgpuLayoutApplied"]
        return any(words in each for each in told)

    node.until(is_told, words, 10.0, timeout_s=60)


def vgpus(node: NvmlNode) -> list[str]:
    return [name for name in node.devices() if name.startswith("vgpu-")]


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.RESOURCE)
def test_a_watch_that_begins_last_delays_no_publication(node: NvmlNode, kind: type[KubeObject]) -> None:
    start_with_late_watch(node, kind)


def test_a_label_makes_vgpus_and_another_one_waits_until_nobody_uses_them(node: NvmlNode, kernel: Kernel) -> None:
    choose(node, "two-2q")
    node.program.start()
    node.ready()
    until_told(node, "True Applied vGPU layout two-2q: all GPUs have it")
    names = sorted(vgpu_device_name(identity) for identity in kernel.there(T4))
    node.until(lambda: [taints(node).get(name) for name in names] == [[], []], "vGPUs are published and free", 10.0)
    assert vgpus(node) == names
    claim = node.world.allocated_claim("claim", [], devices=[names[0]])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    choose(node, "one-1b")
    until_told(node, f"False Pending vGPU layout one-1b: claim default/claim (UID {claim.metadata.uid}) has {T4}")
    assert all(taints(node)[name] == [WITHHELD] for name in names)
    kernel.held = tuple(kernel.there(T4))
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}
    until_told(node, "is open in qemu-kvm (PID 4711)")
    assert list(kernel.there(T4).values()) == ["T4-2Q", "T4-2Q"]
    kernel.held = ()
    until_told(node, "True Applied vGPU layout one-1b")
    assert list(kernel.there(T4).values()) == ["T4-1B"]
    node.until(lambda: {"VgpuLayoutPending", "VgpuLayoutApplied"} <= set(node_events(node)), "Events")
    assert 'dracaena_plugin_vgpu_layout{layout="one-1b",state="Applied"} 1.0' in http(node.program, "/metrics")[1]


def test_without_the_processes_of_the_host_no_vgpu_is_removed_and_the_node_says_why(
    node: NvmlNode, kernel: Kernel
) -> None:
    choose(node, "two-2q")
    with patch("dracaena.kubelet_plugin.wiring.vgpu_layout_parts.sees_listener", lambda _socket: False):
        node.program.start()
        node.ready()
        until_told(node, "True Applied vGPU layout two-2q")
        made = dict(kernel.there(T4))
        choose(node, "one-1b")
        until_told(node, "False Failed vGPU layout one-1b: this plugin does not see the processes of its node")
        assert kernel.there(T4) == made


def test_what_others_made_and_a_file_with_two_types_for_one_gpu_are_troubles_and_change_nothing(
    node: NvmlNode, kernel: Kernel
) -> None:
    kernel.create(T4, 222, UUID)
    file = node.world.folder / "layouts.yaml"
    file.write_text(FILE + MIXED, encoding="utf-8")
    choose(node, "two-2q")
    node.program.start()
    node.ready()
    until_told(node, f"False Failed vGPU layout two-2q: vGPU layouts {file}: vgpu-configs: 'mixed': entry 1")
    assert "T4-1B, T4-2Q for one GPU, expected one type" in http(node.program, "/readyz")[1]
    file.write_text(FILE, encoding="utf-8")
    until_told(node, f"has vGPUs that no layout made ({UUID})")
    assert taints(node)[f"vgpu-{UUID}"] == [], "nothing is going to be changed"
    assert kernel.there(T4) == {UUID: "T4-1B"}
    node.until(lambda: node.program.ready() is None, "it is ready all the same")


def test_a_recorded_machine_has_no_vgpu_layouts(world: World) -> None:
    settings = world.settings(gpus=read_gpus([entry("vgpu", file="/layouts.yaml")]), machine="h100-x1")
    with pytest.raises(
        BadInputError, match="`machine` cannot be combined with `as: vgpu, file: …`: a recorded machine"
    ):
        Program(settings, registry=CollectorRegistry())
