"""Nodes and servers on which our devices do not carry the taint that keeps kube-scheduler off."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.decisions import decision_in
from e2e.gpu_pods import claimed, delete_gpu_pod, seen_inside
from e2e.gpus import GPU_COUNT
from e2e.installation import CONTROLLER_PORT, PLUGIN_PORT, serves
from e2e.kubernetes import WITHOUT_TAINTS
from e2e.pods import Pod, claim_spec, create_pod, create_template, pod_claims
from e2e.waiting import eventually

PUBLISH_S = 60.0
"""The plugin waits for more changes before it writes; well within a minute."""


@pytest.fixture(scope="module", autouse=True)
def template(installed: Cluster) -> Iterator[None]:
    path = create_template(installed.api, "untainted", claim_spec(2))
    yield
    installed.api.delete(path)


def wait_taints(cluster: Cluster, count: int) -> None:
    """Wait until all devices are published and this many of them have a taint."""

    def look() -> bool:
        devices = cluster.installation.devices()
        return len(devices) == GPU_COUNT and sum("taints" in device for device in devices) == count

    eventually(look, f"{GPU_COUNT} devices are published, {count} of them tainted", within_s=PUBLISH_S)


def test_node_that_opts_out_is_left_to_the_scheduler(installed: Cluster) -> None:
    """The controller never allocates an untainted device: what the pod gets is kube-scheduler's own choice."""
    pod = Pod("opted-out", templates={"gpus": "untainted"})
    with installed.installation.plugin.restarted_with("--allocator=kube-scheduler"):
        installed.installation.wait_ready()
        wait_taints(installed, 0)
        # Or it would allocate for a pod that it sees before it sees that the devices are no longer its own.
        has_none = partial(serves, CONTROLLER_PORT, "/metrics", 'dracaena_controller_gpus{state="free"} 0.0')
        eventually(has_none, "the controller has no GPU to give", within_s=PUBLISH_S)
        create_pod(installed.api, pod)
        seen = seen_inside(installed.api, pod)
        assert len(seen.numbers) == 2
        assert seen.numbers == claimed(installed, pod)
        assert decision_in(pod_claims(installed.api, pod)["gpus"]) is None
        delete_gpu_pod(installed, pod)
    installed.installation.wait_ready()
    wait_taints(installed, GPU_COUNT)


def test_server_that_drops_the_taint_gets_no_device(installed: Cluster) -> None:
    """The gate is off: the server drops the field without a word, and kube-scheduler would take the devices."""
    server = installed.control_plane.apiserver
    with server.restarted_with(WITHOUT_TAINTS):
        installed.control_plane.wait_ready()
        for one in installed.installation.slices():
            installed.api.delete(f"/apis/resource.k8s.io/v1/resourceslices/{one['metadata']['name']}")
        plugin = installed.installation.plugin
        wait_refused(installed)
        plugin.stop()
        plugin.start()
        wait_refused(installed)
        plugin.stop()  # or one that still met this server would publish nothing for ten minutes
    installed.restart_clients()
    wait_taints(installed, GPU_COUNT)


def wait_refused(cluster: Cluster) -> None:
    """Wait until the plugin that runs has met the server that drops the taint, and has said so: as soon as the answer
    lacks it. The pool is incomplete then, and emptied next."""
    refused = partial(serves, PLUGIN_PORT, "/metrics", "dracaena_plugin_taint_refused 1.0")
    eventually(refused, "the plugin sees that the taint is dropped", within_s=PUBLISH_S)
    eventually(lambda: told(cluster), "the node is told why it publishes no device", within_s=PUBLISH_S)
    eventually(lambda: not cluster.installation.devices(), "no device is published", within_s=PUBLISH_S)


def told(cluster: Cluster) -> bool:
    """Return whether there is an Event on the node that names the gate."""
    events = [
        event
        for event in cluster.api.items("/api/v1/events")
        if event["involvedObject"]["name"] == NODE_NAME and event["reason"] == "DevicesNotPublished"
    ]
    return any("DRADeviceTaints" in event["message"] for event in events)
