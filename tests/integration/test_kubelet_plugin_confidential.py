"""The whole plugin on a node whose GPUs compute confidentially, from NVML to kubelet's answer (support.nvml_world)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dracaena.kubelet_plugin.node.health_monitor import POLL_S
from dracaena.kubelet_plugin.node.live_machine import REREAD_S
from support.api_ground import ApiGround
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeConfidential
from support.nvml_world import NAMES, RECORDED, NvmlNode, nvml_node, nvml_world, taints

CONFIDENTIAL = replace(RECORDED, gpus=tuple(replace(gpu, cc_capable=True, cc_mode="on") for gpu in RECORDED.gpus))


@pytest.fixture
def node(server: ApiGround) -> Iterator[NvmlNode]:
    with nvml_world(server) as world, nvml_node(world) as made:
        made.nvml = FakeNvml(CONFIDENTIAL)
        yield made


def state(node: NvmlNode) -> FakeConfidential:
    assert node.nvml is not None
    assert node.nvml.confidential is not None
    return node.nvml.confidential


def modes(node: NvmlNode) -> set[tuple[bool | None, str | None]]:
    return {
        (device.attributes["ccCapable"].bool_value, device.attributes["ccMode"].string)
        for page in node.world.slices()
        for device in page.spec.devices
    }


def test_gpus_are_given_once_they_were_attested_and_their_taint_goes(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    assert modes(node) == {(True, "on")}
    node.until(lambda: taints(node)[NAMES[0]] == [("confidential", "not-ready", "NoSchedule")], "the taint", POLL_S)
    claim = node.world.allocated_claim("claim", [], devices=[NAMES[0]])
    uid = claim.metadata.uid
    assert "nvidia-smi conf-compute -srs 1" in node.world.prepare(claim)[uid].error
    generations = {page.spec.pool.generation for page in node.world.slices()}
    state(node).ready = 1
    assert node.world.prepare(claim)[uid].error == "", "the driver is asked at that moment"
    node.until(lambda: taints(node)[NAMES[0]] == [], "the taint goes", POLL_S)
    assert {page.spec.pool.generation for page in node.world.slices()} == generations, "one slice was changed in place"


def test_a_mode_that_was_switched_off_is_published_and_ends_the_taint(node: NvmlNode) -> None:
    node.program.start()
    node.ready()
    node.until(lambda: taints(node)[NAMES[0]] != [], "the taint", POLL_S)
    state(node).feature = 0
    node.until(lambda: modes(node) == {(True, "off")}, "the other mode", REREAD_S)
    node.until(lambda: taints(node)[NAMES[0]] == [], "no taint", POLL_S)
    claim = node.world.allocated_claim("claim", [], devices=[NAMES[0]])
    assert node.world.prepare(claim)[claim.metadata.uid].error == ""
