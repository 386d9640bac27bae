"""The whole plugin with cc-mode-tool: a label switches the GPUs of an idle node, by the code of a stand-in for NVIDIA's
program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.confidential import cc_mode_label
from dracaena.api.errors import BadInputError
from dracaena.api.objects import KubeObject, Node
from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool
from dracaena.kubelet_plugin.discovery.gpu_list import read_gpus
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.cc_hardware import CcHardware, FakeCcModes
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeConfidential, gpu_address
from support.fake_pci import FakePciBus
from support.fake_pci_drivers import FakePciDrivers
from support.gpu_lists import entry
from support.kube import wait_for
from support.late_watch import WATCHED, start_with_late_watch
from support.nvml_world import NAMES, RECORDED, NvmlNode, node_events, nvml_node, nvml_world, taints
from support.plugin_world import DRIVER, NODE, World, http

MACHINE = replace(RECORDED, gpus=tuple(replace(gpu, cc_capable=True, cc_mode="off") for gpu in RECORDED.gpus))
ADDRESSES = [str(gpu_address(MACHINE, ordinal)) for ordinal in range(len(MACHINE.gpus))]
WITHHELD = ("cc-mode", "changing", "NoSchedule")


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with nvml_world(server) as made:
        yield made


@pytest.fixture
def hardware(world: World) -> CcHardware:
    return CcHardware(world.folder / "tools", *ADDRESSES)


@pytest.fixture
def node(world: World, hardware: CcHardware) -> Iterator[NvmlNode]:
    bus = FakePciBus(world.folder / "sys")
    for ordinal, address in enumerate(ADDRESSES):
        bus.adopt(address, 20 + ordinal)
    drivers = FakePciDrivers(bus)

    def program(path: str, locks: Path) -> FakeCcModes:
        """Its code without a process for each of its runs, of which there are three a GPU: a busy machine takes a
        second for one (tests/unit/kubelet_plugin/adapters/programs/test_cc_mode_tool.py compares the two)."""
        assert (path, locks.name) == (str(hardware.program), "writes")
        assert CcModeTool(path, locks).missing() is None
        return FakeCcModes(hardware)

    with (
        patch("dracaena.kubelet_plugin.wiring.cc_mode_parts.CcModeTool", program),
        patch("dracaena.kubelet_plugin.wiring.cc_mode_parts.PciDriverFiles", lambda *_, **__: drivers),
        patch("dracaena.kubelet_plugin.wiring.cc_mode_parts.PciHolders", lambda: drivers),
        patch("dracaena.kubelet_plugin.wiring.cc_mode_parts.runs_confidential_guests", lambda: True),
        nvml_node(world, cc_mode_tool=str(hardware.program)) as made,
    ):
        made.nvml = FakeNvml(MACHINE)

        def bound(path: str) -> None:
            """A driver that starts tells the mode that the GPUs are in by then, and that nobody has attested them."""
            if path.endswith("/nvidia/bind"):
                modes = set(hardware.modes().values())
                made.nvml = FakeNvml(MACHINE)
                assert isinstance(made.nvml.confidential, FakeConfidential)
                made.nvml.confidential.feature = int(modes == {"on"})

        drivers.before_write = bound
        yield made


def label(world: World, mode: str | None) -> None:
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {cc_mode_label(DRIVER): mode}}})


def modes(node: NvmlNode) -> set[str | None]:
    return {device.attributes["ccMode"].string for page in node.world.slices() for device in page.spec.devices}


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.RESOURCE)
def test_a_watch_that_begins_last_delays_no_publication(node: NvmlNode, kind: type[KubeObject]) -> None:
    start_with_late_watch(node, kind)


def test_a_label_switches_the_gpus_of_an_idle_node_and_claims_get_them_afterwards(
    world: World, node: NvmlNode, hardware: CcHardware
) -> None:
    node.program.start()
    node.ready()
    held = world.allocated_claim("held", [], devices=[NAMES[0]])
    assert world.prepare(held)[held.metadata.uid].error == ""
    label(world, "on")
    node.until(lambda: all(WITHHELD in each for each in taints(node).values()), "all devices are withheld", 10.0)
    assert hardware.modes() == dict.fromkeys(ADDRESSES, "off")
    other = world.allocated_claim("other", [], devices=[NAMES[1]])
    assert world.prepare(other)[other.metadata.uid].error == "", "it may have been given its GPU before"
    for claim in (held, other):
        world.unprepare(claim)
        world.client.delete(type(claim), claim.metadata.name, namespace=claim.metadata.namespace)
    node.until(lambda: modes(node) == {"on"}, "all GPUs are in mode on", 10.0)
    assert hardware.modes() == dict.fromkeys(ADDRESSES, "on")
    node.until(lambda: not any(WITHHELD in each for each in taints(node).values()), "they are published", 10.0)
    node.until(lambda: "ConfidentialModeApplied" in node_events(node), "it is told", 10.0)
    claim = world.allocated_claim("claim", [], devices=[NAMES[0]])
    assert "nvidia-smi conf-compute -srs 1" in world.prepare(claim)[claim.metadata.uid].error, "nobody attested it"


def test_the_devices_count_as_withheld_as_soon_as_the_api_server_shows_it(world: World, node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    label(world, "on")
    node.until(lambda: all(WITHHELD in each for each in taints(node).values()), "all devices are withheld", 10.0)
    words = "the devices of this node are withheld; waiting for pods"
    wait_for(lambda: words in http(node.program, "/readyz")[1], f"{words}, while no time goes by")


def test_a_gpu_that_fails_leaves_the_node_as_it_was_and_says_what_to_do(
    world: World, node: NvmlNode, hardware: CcHardware
) -> None:
    hardware.faults({ADDRESSES[-1]: "lies"})
    label(world, "on")
    node.program.start()
    node.world.register()
    node.until(lambda: "ConfidentialModeFailed" in node_events(node), "it is told", 10.0)
    assert hardware.modes() == dict.fromkeys(ADDRESSES, "off")
    node.until(lambda: taints(node) and not any(WITHHELD in each for each in taints(node).values()), "free", 10.0)
    claim = world.allocated_claim("claim", [], devices=[NAMES[0]])
    assert world.prepare(claim)[claim.metadata.uid].error == ""


def test_without_the_processes_of_the_host_nothing_is_withheld_or_switched(
    world: World, node: NvmlNode, hardware: CcHardware
) -> None:
    with patch("dracaena.kubelet_plugin.wiring.cc_mode_parts.sees_listener", lambda _socket: False):
        label(world, "on")
        node.program.start()
        node.world.register()
        node.until(lambda: "ConfidentialModeFailed" in node_events(node), "it is told", 10.0)
        assert not any(WITHHELD in each for each in taints(node).values())
        assert hardware.modes() == dict.fromkeys(ADDRESSES, "off")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"machine": "h100-x1"}, "`machine` cannot be combined with `cc-mode-tool`"),
        ({"machine": "", "gpus": read_gpus([entry("layout", file="/x")])}, "combined with `as: layout`: both change"),
        ({"machine": "", "gpus": read_gpus([entry("vgpu", file="/x")])}, "combined with `as: vgpu, file: …`: both"),
        ({"machine": "", "fabric_partitions": True}, "`fabric-partitions` cannot be combined with `cc-mode-tool`"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused_at_the_start(
    world: World, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInputError, match=words):
        Program(world.settings(cc_mode_tool="/tools/nvidia_gpu_tools.py", **settings), registry=CollectorRegistry())
