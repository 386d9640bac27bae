"""The whole plugin on a node with vGPUs: what is published and given, beside the driver's GPUs and without any driver
(support.nvml_world)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError
from dracaena.api.names import taint_key
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.fake_nvml_values import gpu_address
from support.fake_pci import FakePciBus
from support.fake_vgpu import H200_TYPES, T4_TYPES, FakeVgpus
from support.gpu_driver_root import PROC_DEVICES, put
from support.gpu_lists import gpu_list
from support.nvml_world import NAMES, RECORDED, NvmlNode, nvml_node, nvml_world
from support.plugin_world import DRIVER, World, http

T4, UUID = "0000:e1:00.0", "aa618089-8b16-4d01-a136-25a0f3c73123"
NAME = f"vgpu-{UUID}"


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        put(made.folder, "proc/devices", PROC_DEVICES.replace("Block", "239 vfio\n 10 misc\n\nBlock").encode())
        put(made.folder, "host/dev/vfio/vfio", b"10:196")
        yield made


@pytest.fixture
def vgpus(world: World) -> FakeVgpus:
    made = FakeVgpus(FakePciBus(world.folder / "sys"))
    made.add_gpu(T4, T4_TYPES)
    made.create(T4, 231, UUID)
    return made


@pytest.fixture
def node(world: World, vgpus: FakeVgpus) -> Iterator[NvmlNode]:
    assert vgpus.mdev(UUID).exists()
    put(world.folder, "host/dev/vfio/101", b"239:0")
    with nvml_node(world, gpus=gpu_list(vgpu="all")) as made:
        yield made


def given(node: NvmlNode, claim: ResourceClaim) -> dict[str, Any]:
    """What the containers of a claim with one device get of that."""
    (device,) = node.spec(claim)["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_a_vgpu_is_published_and_given_beside_the_gpus_of_the_driver(node: NvmlNode, vgpus: FakeVgpus) -> None:
    node.program.start()
    node.ready()
    assert node.devices() == [*NAMES, NAME]
    device = next(device for page in node.world.slices() for device in page.spec.devices if device.name == NAME)
    assert (device.attributes["type"].string, device.attributes["vgpuType"].string) == ("vgpu", "T4-2Q")
    assert device.capacity["memory"].value == "2Gi"
    assert [taint.key for taint in device.taints] == [taint_key(DRIVER)], "kube-scheduler leaves it to the controller"
    claim = node.world.allocated_claim("claim", [], devices=[NAME])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    edits = given(node, claim)
    assert [each["path"] for each in edits["deviceNodes"]] == ["/dev/vfio/vfio", "/dev/vfio/101"]
    assert edits["env"] == [f"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-2Q={UUID}"]
    assert "mounts" not in node.spec(claim)["containerEdits"], "the guest brings its own driver"
    vgpus.write(f"bus/mdev/devices/{UUID}/remove", "1")
    node.until(lambda: node.devices() == NAMES, "the vGPU is withdrawn", REREAD_S)
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}


def test_a_gpu_that_the_vgpu_manager_takes_is_withdrawn_without_a_trouble(node: NvmlNode, vgpus: FakeVgpus) -> None:
    node.program.start()
    node.ready()
    functions = vgpus.take_gpu(str(gpu_address(RECORDED, 0)), H200_TYPES, 2)
    vgpus.set_type(functions[0], 1414)
    name = "vgpu-" + functions[0].replace(":", "-").replace(".", "-")
    node.until(lambda: node.devices() == [*NAMES[1:], *sorted([NAME, name])], "the GPU goes, its vGPU comes", REREAD_S)
    assert "DeviceSkipped" not in http(node.program, "/readyz")[1]
    claim = node.world.allocated_claim("claim", [0])
    assert "the vGPU manager has GPU" in node.world.prepare(claim)[claim.metadata.uid].error


def test_a_node_all_of_whose_gpus_are_divided_needs_no_nvml(node: NvmlNode, vgpus: FakeVgpus) -> None:
    for gpu in (vgpus.root / "bus/pci/drivers/nvidia").iterdir():
        if gpu.name != T4:
            (vgpus.root / "bus/pci/devices" / gpu.name).unlink()
    node.nvml = None
    node.program.start()
    node.ready()
    assert node.devices() == [NAME]
    assert http(node.program, "/readyz") == (200, "ok\n")


def test_a_vgpu_that_cannot_be_given_is_a_trouble_of_the_node(node: NvmlNode, vgpus: FakeVgpus) -> None:
    (vgpus.mdev(UUID) / "driver").unlink()
    node.program.start()
    node.ready()
    assert node.devices() == NAMES
    assert f"vGPU {UUID} is not published: it has no driver" in http(node.program, "/readyz")[1]
    assert node.program.ready() is None


def test_a_recorded_machine_has_no_vgpus_and_says_so_at_the_start(world: World) -> None:
    words = "`machine` cannot be combined with `as: vgpu`: .*; leave out one of them"
    with pytest.raises(BadInputError, match=words):
        Program(world.settings(gpus=gpu_list(vgpu="all"), machine="h100-x1"), registry=CollectorRegistry())
