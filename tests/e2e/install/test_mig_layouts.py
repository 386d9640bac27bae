"""Static MIG layouts with the chart's rights: a label divides a recorded H100, and its Node says how far it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from e2e.api import Answer
from e2e.gpus import GPU_COUNT
from e2e.images import PROBE_IMAGE
from e2e.install.chart_cluster import NODE_NAME, PUBLISHED_S, ChartCluster
from e2e.install.impersonation import As, plugin, plugin_as_node
from e2e.install.seen import wait_pods
from e2e.installation import DRIVER
from e2e.waiting import eventually, never
from support.gpu_lists import entry

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
OTHER_NODE = "node-of-others"
CONDITION = "MigLayoutApplied"
LABEL = f"{DRIVER}/mig-layout"
MACHINE = "h100-x1"
LAYOUTS = """
version: v1
mig-configs:
  whole: [{devices: all, mig-enabled: false}]
  sevenths: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]
  halves: [{devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 2}}]
"""

CHANGE_S = 120.0
"""From a label until the GPU is divided: half a minute passes in any case, and looks are 10 s apart."""

QUIET_S = 15.0
"""A look, and half a look more."""

TRIES = 10
"""kubelet writes conditions of its own now and then; one write falls between two of ours at least once in so many."""


@pytest.fixture(scope="module")
def divided(bare: ChartCluster) -> Iterator[ChartCluster]:
    """Give the chart with layouts on the node, which plays a recorded H100, and no layout chosen."""
    chart = bare
    chart.ensure_installed()
    chart.gpus.make_capability_nodes(read_machine(MACHINE))
    settings = {"machine": MACHINE, "gpus": [entry("layout", file="/etc/dracaena-mig/layouts.yaml", condition=True)]}
    chart.upgrade(kubeletPlugin={"settings": settings, "migLayouts": LAYOUTS})
    try:
        eventually(lambda: len(devices(chart)) == 1, "the H100 is published", within_s=PUBLISHED_S)
        yield chart
        chart.kubectl("label", "node", NODE_NAME, f"{LABEL}-")
        # Said before the right for it goes: test_used_rights wants no refusal.
        wait_told(chart, "Unknown NoLayout no layout is chosen")
    finally:
        chart.remove_pods()
        chart.upgrade()
        eventually(lambda: len(devices(chart)) == GPU_COUNT, "the GPUs of before are back", within_s=PUBLISHED_S)
        # A file is what the driver's memory is to a real GPU: no plugin takes it away.
        shutil.rmtree(chart.plugin_data / "recorded-mig")


def devices(chart: ChartCluster) -> list[Any]:
    return [device for one in chart.slices() for device in one["spec"].get("devices", ())]


def withheld(chart: ChartCluster) -> int:
    return sum(any(taint["key"] == LABEL for taint in device.get("taints", ())) for device in devices(chart))


def told(chart: ChartCluster) -> str:
    conditions = chart.api.get(f"{NODES}/{NODE_NAME}")["status"]["conditions"]
    found = [f"{one['status']} {one['reason']} {one['message']}" for one in conditions if one["type"] == CONDITION]
    return "".join(found)


def choose(chart: ChartCluster, layout: str) -> None:
    chart.kubectl("label", "--overwrite", "node", NODE_NAME, f"{LABEL}={layout}")


def wait_told(chart: ChartCluster, words: str) -> None:
    eventually(lambda: words in told(chart), f"the Node says {words!r}", within_s=CHANGE_S)


def pod_on_a_part(chart: ChartCluster) -> None:
    """Create a pod with one of the node's MIG devices, and wait until it runs."""
    exactly = {"deviceClassName": f"mig.{DRIVER}"}
    spec = {"devices": {"requests": [{"name": "part", "exactly": exactly}]}}
    chart.api.create(TEMPLATES, {"metadata": {"name": "one-part"}, "spec": {"spec": spec}})
    container = {
        "name": "main",
        "image": PROBE_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["show-and-wait"],
        "resources": {"claims": [{"name": "part"}]},
    }
    pod = {
        "containers": [container],
        "resourceClaims": [{"name": "part", "resourceClaimTemplateName": "one-part"}],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
    }
    chart.api.create(PODS, {"metadata": {"name": "user"}, "spec": pod})
    wait_pods(chart, "default", "Running")


def test_a_label_divides_the_gpu_waits_for_who_holds_a_part_and_changes_it_when_it_is_free(
    divided: ChartCluster,
) -> None:
    choose(divided, "sevenths")
    wait_told(divided, "True Applied MIG layout sevenths: all GPUs have it")
    eventually(lambda: (len(devices(divided)), withheld(divided)) == (7, 0), "seven parts", within_s=PUBLISHED_S)
    pod_on_a_part(divided)
    choose(divided, "whole")
    wait_told(divided, "False Pending MIG layout whole: claim default/user-part-")
    assert withheld(divided) == 7
    never(lambda: len(devices(divided)) != 7, "the GPU is changed under its pod", for_s=QUIET_S)
    (pod,) = wait_pods(divided, "default", "Running")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    divided.api.delete(f"{PODS}/user")
    wait_told(divided, "True Applied MIG layout whole: all GPUs have it")
    eventually(lambda: (len(devices(divided)), withheld(divided)) == (1, 0), "a whole GPU", within_s=PUBLISHED_S)
    divided.api.delete(f"{TEMPLATES}/one-part")


def test_a_layout_that_there_is_not_changes_nothing(divided: ChartCluster) -> None:
    before = [device["name"] for device in devices(divided)]
    choose(divided, "sixths")
    wait_told(divided, "False Failed MIG layout sixths: there is no layout 'sixths'; the file has halves, sevenths, wh")
    assert ([device["name"] for device in devices(divided)], withheld(divided)) == (before, 0)


def test_the_plugin_may_write_that_condition_of_its_own_node_and_nothing_else_of_any(divided: ChartCluster) -> None:
    api, who = divided.api, plugin(divided.control_plane, NODE_NAME)
    choose(divided, "whole")
    wait_told(divided, "True Applied MIG layout whole")
    api.create(NODES, {"metadata": {"name": OTHER_NODE}})
    try:
        assert any(write_condition(divided, who, NODE_NAME, CONDITION).is_good for _ in range(TRIES))
        for node, kind in ((NODE_NAME, "Ready"), (NODE_NAME, "Mine"), (OTHER_NODE, CONDITION)):
            answer = write_condition(divided, who, node, kind)
            assert answer.status == 422, f"{kind} of {node}: {answer.status} {answer.message}"
            assert "a plugin may only write the " in answer.message
        for patch in (
            {"metadata": {"labels": {"mine": "1"}}},
            {"metadata": {"annotations": {"mine": "1"}}},
            {"metadata": {"finalizers": ["example.com/stay"]}},
            {"status": {"conditions": None}},
            {"status": {"capacity": {"example.com/mine": "1"}}},
            {"status": {"addresses": [{"type": "InternalIP", "address": "10.98.0.99"}]}},
            {"status": {"images": None}},
        ):
            answer = who.send("PATCH", f"{NODES}/{NODE_NAME}/status", patch)
            assert answer.status == 422, f"{patch}: {answer.status} {answer.message}"
        nobody, as_node = plugin(divided.control_plane), plugin_as_node(divided, NODE_NAME)
        assert write_condition(divided, nobody, NODE_NAME, CONDITION).status == 422
        assert write_condition(divided, as_node, NODE_NAME, CONDITION).status == 403
        assert who.send("PATCH", f"{NODES}/{NODE_NAME}", {"metadata": {"labels": {"mine": "1"}}}).status == 403
        assert who.send("GET", f"{NODES}/{OTHER_NODE}").status == 403
        assert "mine" not in api.get(f"{NODES}/{NODE_NAME}")["metadata"]["labels"]
    finally:
        api.delete(f"{NODES}/{OTHER_NODE}")


def write_condition(chart: ChartCluster, who: As, node: str, kind: str) -> Answer:
    """Write one condition, and leave the others as they are."""
    known = chart.api.get(f"{NODES}/{node}")["status"].get("conditions", [])
    new = {"type": kind, "status": "False", "reason": "Tried", "message": "by a test"}
    conditions = [*(one for one in known if one["type"] != kind), new]
    return who.send("PATCH", f"{NODES}/{node}/status", {"status": {"conditions": conditions}})
