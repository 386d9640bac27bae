"""The whole plugin on a node with GPUs for virtual machines: what is published and given, beside the driver's GPUs and
without any driver (support.nvml_world)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.confidential import MODE_STATE_LABEL
from dracaena.api.errors import BadInputError
from dracaena.api.names import taint_key
from dracaena.api.objects import Node
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import gpu_address
from support.fake_pci import NETWORK_CLASS, FakePciBus
from support.fake_pci_drivers import FakePciDrivers
from support.gpu_driver_root import PROC_DEVICES, put, put_nodes
from support.gpu_lists import entry, gpu_list
from support.late_watch import late_watch, start_without_pods
from support.machines import first_gpus
from support.nvml_world import NAMES, RECORDED, NvmlNode, nvml_node, nvml_world
from support.plugin_world import DRIVER, NODE, World, http

GPU, NAME = "0000:e1:00.0", "vfio-0000-e1-00-0"

BY_ADMIN = read_gpus([entry("passthrough", bind="existing")])


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        put(made.folder, "proc/devices", PROC_DEVICES.replace("Block", "239 vfio\n 10 misc\n\nBlock").encode())
        yield made


@pytest.fixture
def bus(world: World) -> FakePciBus:
    made = FakePciBus(world.folder / "sys")
    made.add(GPU, 7, driver="vfio-pci", bridges=("pci0000:e0", "0000:e0:01.0"))
    return made


@pytest.fixture
def node(world: World, bus: FakePciBus) -> Iterator[NvmlNode]:
    assert bus.driver_of(GPU) == "vfio-pci"
    put(world.folder, "host/dev/vfio/vfio", b"10:196")
    put(world.folder, "host/dev/vfio/7", b"239:0")
    with nvml_node(world, gpus=BY_ADMIN) as made:
        yield made


def given(node: NvmlNode, claim: ResourceClaim) -> dict[str, Any]:
    """What the containers of a claim with one device get of that."""
    (device,) = node.spec(claim)["devices"]
    edits: dict[str, Any] = device["containerEdits"]
    return edits


def test_a_gpu_of_vfio_is_published_and_given_beside_those_of_the_driver(node: NvmlNode, bus: FakePciBus) -> None:
    node.program.start()
    node.ready()
    assert node.devices() == [*NAMES, NAME]
    device = next(device for page in node.world.slices() for device in page.spec.devices if device.name == NAME)
    assert device.attributes["type"].string == "vfio"
    assert device.attributes["ordinal"].int_value == len(RECORDED.gpus)
    assert [taint.key for taint in device.taints] == [taint_key(DRIVER)], "kube-scheduler leaves it to the controller"
    claim = node.world.allocated_claim("claim", [], devices=[NAME])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    edits = given(node, claim)
    assert [each["path"] for each in edits["deviceNodes"]] == ["/dev/vfio/vfio", "/dev/vfio/7"]
    assert edits["env"] == [f"PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3={GPU}"]
    assert "mounts" not in node.spec(claim)["containerEdits"], "the guest brings its own driver"
    bus.write("bus/pci/drivers/vfio-pci/unbind", GPU)
    node.until(lambda: node.devices() == NAMES, "the GPU is withdrawn", REREAD_S)
    assert node.world.unprepare(claim) == {claim.metadata.uid: ""}


def test_a_mode_that_a_label_names_is_published_when_the_node_is_first_seen_and_when_it_changes(
    world: World, node: NvmlNode
) -> None:
    def label(mode: str) -> None:
        world.client.merge_patch(Node, NODE, {"metadata": {"labels": {MODE_STATE_LABEL: mode}}})

    def modes() -> list[str | None]:
        devices = (device for page in world.slices() for device in page.spec.devices if device.name == NAME)
        return [device.attributes["ccMode"].string for device in devices if "ccMode" in device.attributes]

    label("on")
    with late_watch(Node) as begin:
        node.program.start()
        world.register()
        node.until(lambda: node.devices() == [*NAMES, NAME], "published without the Node")
        assert modes() == []
        since_s = node.clock.monotonic()
        begin()
        node.until(lambda: modes() == ["on"], "the mode is published", 1.0)
        label("off")
        node.until(lambda: modes() == ["off"], "the other mode is published", 1.0)
        assert node.clock.monotonic() - since_s < REREAD_S / 2, "no pause between readings has passed"


def test_a_node_on_which_vfio_has_all_gpus_needs_no_driver(node: NvmlNode, bus: FakePciBus) -> None:
    for gpu in (bus.root / "bus/pci/drivers/nvidia").iterdir():
        (bus.root / "bus/pci/devices" / gpu.name).unlink()
    node.nvml = None
    node.program.start()
    node.ready()
    assert node.devices() == [NAME]
    assert http(node.program, "/readyz") == (200, "ok\n")
    claim = node.world.allocated_claim("claim", [], devices=[NAME])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
    assert given(node, claim)["env"] == [f"PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3={GPU}"]


def test_a_gpu_that_shares_its_group_is_a_trouble_of_the_node(node: NvmlNode, bus: FakePciBus) -> None:
    bus.add("0000:e2:00.0", 7, driver="igb", ids=(0x8086, 0x1521), pci_class=NETWORK_CLASS)
    node.program.start()
    node.ready()
    assert node.devices() == NAMES
    words = http(node.program, "/readyz")[1]
    assert "0000:e2:00.0 (0x8086:0x1521, driver igb), which is not part of this GPU" in words
    assert node.program.ready() is None


def test_the_nodes_of_vfio_are_the_hosts_where_a_driver_container_has_those_of_the_driver(
    world: World, bus: FakePciBus
) -> None:
    assert bus.driver_of(GPU) == "vfio-pci"
    put(world.folder, "host/dev/vfio/vfio", b"10:196")
    put(world.folder, "host/dev/vfio/7", b"239:0")
    container = world.folder / "container"
    put_nodes(container, (gpu.minor for gpu in RECORDED.gpus if gpu.minor is not None))
    with nvml_node(world, gpus=BY_ADMIN, dev_root=str(container)) as node:
        node.program.start()
        node.ready()
        claim = world.allocated_claim("claim", [0], devices=[NAME])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        whole, machine = (device["containerEdits"]["deviceNodes"] for device in node.spec(claim)["devices"])
        assert whole[0]["hostPath"] == f"{container}{whole[0]['path']}"
        assert machine == [{"path": "/dev/vfio/vfio"}, {"path": "/dev/vfio/7"}]
        assert world.unprepare(claim) == {claim.metadata.uid: ""}


LAST = len(RECORDED.gpus) - 1
"""Ordinal of the GPU that goes to a virtual machine on demand."""
ADDRESS = str(gpu_address(RECORDED, LAST))


@pytest.fixture
def kernel(world: World) -> Iterator[FakePciDrivers]:
    """The kernel's answers to what the plugin writes. Each GPU is in a group of its own, with the NVIDIA driver."""
    bus = FakePciBus(world.folder / "sys")
    for ordinal in range(len(RECORDED.gpus)):
        bus.adopt(str(gpu_address(RECORDED, ordinal)), 9 if ordinal == LAST else 20 + ordinal)
    bus.load("vfio_pci")
    drivers = FakePciDrivers(bus)
    with (
        patch("dracaena.kubelet_plugin.wiring.gpu_means.PciDriverFiles", lambda *_, **__: drivers),
        patch("dracaena.kubelet_plugin.wiring.gpu_means.PciHolders", lambda: drivers),
    ):
        yield drivers


def test_a_gpu_is_taken_from_the_driver_for_a_claim_and_given_back(world: World, kernel: FakePciDrivers) -> None:
    put(world.folder, "host/dev/vfio/vfio", b"10:196")
    put(world.folder, "host/dev/vfio/9", b"239:0")
    vfio = passthrough_device_name(ADDRESS)
    with nvml_node(world, gpus=gpu_list(passthrough=ADDRESS)) as node:
        opened: list[int] = []

        def unbinding(path: str) -> None:
            assert node.nvml is not None
            opened.append(node.nvml.opened)
            if path.endswith("/nvidia/unbind"):
                node.nvml = FakeNvml(first_gpus(RECORDED, LAST))
            elif path.endswith("/nvidia/bind"):
                node.nvml = FakeNvml(RECORDED)

        kernel.before_write = unbinding
        node.program.start()
        node.ready()
        assert node.devices() == [*NAMES, vfio]
        counted = {d.name for s in world.slices() for d in s.spec.devices if d.consumes_counters}
        assert counted == {NAMES[LAST], vfio}
        claim = world.allocated_claim("claim", [], devices=[vfio])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert opened[:2] == [0, 0], "NVML is closed while the GPU leaves its driver"
        assert kernel.bus.driver_of(ADDRESS) == "vfio-pci"
        assert [each["path"] for each in given(node, claim)["deviceNodes"]] == ["/dev/vfio/vfio", "/dev/vfio/9"]
        node.until(lambda: node.devices() == [*NAMES[:LAST], vfio], "the whole GPU is withdrawn")
        whole = world.allocated_claim("whole", [LAST])
        assert world.prepare(whole)[whole.metadata.uid].error != ""
        node.until(lambda: http(node.program, "/readyz") == (200, "ok\n"), "nothing is told as lost")
        assert world.unprepare(claim) == {claim.metadata.uid: ""}
        assert kernel.bus.driver_of(ADDRESS) == "nvidia"
        node.until(lambda: node.devices() == [*NAMES, vfio], "both are published again")
        assert world.prepare(whole)[whole.metadata.uid].error == ""


def test_a_gpu_whose_claim_left_nothing_but_a_note_is_given_back_by_the_next_plugin(
    world: World, kernel: FakePciDrivers
) -> None:
    put(world.folder, "host/dev/vfio/vfio", b"10:196")
    put(world.folder, "host/dev/vfio/9", b"239:0")
    vfio = passthrough_device_name(ADDRESS)
    with nvml_node(world, gpus=gpu_list(passthrough=ADDRESS)) as node:
        start_without_pods(node)
        claim = world.allocated_claim("claim", [], devices=[vfio])
        assert world.prepare(claim)[claim.metadata.uid].error == ""
    for lost in [*world.folder.rglob(f"claims/{claim.metadata.uid}.json"), *world.folder.rglob("*-claim_*.json")]:
        lost.unlink()
    assert kernel.bus.driver_of(ADDRESS) == "vfio-pci"
    with nvml_node(world, gpus=gpu_list(passthrough=ADDRESS)) as node:
        node.program.start()
        node.until(lambda: kernel.bus.driver_of(ADDRESS) == "nvidia", "given back")
        node.until(
            lambda: 'dracaena_plugin_swept_total{kind="vfio-bind"} 1.0' in http(node.program, "/metrics")[1], "told"
        )


def test_a_gpu_that_somebody_has_open_is_refused_with_the_process_by_name(world: World, kernel: FakePciDrivers) -> None:
    kernel.bus.open_by[ADDRESS] = [4711]
    with nvml_node(world, gpus=gpu_list(passthrough=ADDRESS)) as node:
        node.program.start()
        node.ready()
        claim = world.allocated_claim("claim", [], devices=[passthrough_device_name(ADDRESS)])
        assert "is open in python (PID 4711)" in world.prepare(claim)[claim.metadata.uid].error
        assert kernel.bus.written == []
        assert world.unprepare(claim) == {claim.metadata.uid: ""}


def test_without_the_processes_of_the_host_nothing_is_bound_and_the_node_says_why(
    world: World, kernel: FakePciDrivers
) -> None:
    with (
        patch("dracaena.kubelet_plugin.wiring.gpu_means.sees_listener", lambda _socket: False),
        nvml_node(world, gpus=gpu_list(passthrough=ADDRESS)) as node,
    ):
        node.program.start()
        node.ready()
        node.until(lambda: "HostProcessesHidden" in http(node.program, "/readyz")[1], "told")
        claim = world.allocated_claim("claim", [], devices=[passthrough_device_name(ADDRESS)])
        assert "its pod needs `hostPID: true`" in world.prepare(claim)[claim.metadata.uid].error
        assert kernel.bus.written == []
        assert world.unprepare(claim) == {claim.metadata.uid: ""}


def test_a_recorded_machine_has_no_gpus_for_virtual_machines_and_says_so_at_the_start(world: World) -> None:
    words = "`machine` cannot be combined with `as: passthrough, bind: existing`: .*; leave out one of them"
    with pytest.raises(BadInputError, match=words):
        Program(world.settings(gpus=BY_ADMIN, machine="h100-x1"), registry=CollectorRegistry())
