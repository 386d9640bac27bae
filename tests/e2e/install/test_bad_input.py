"""What an admin gets wrong: it is said clearly, and nothing is half installed."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, RELEASE, ChartCluster, merged
from e2e.install.helm import CHART
from e2e.installation import DRIVER
from e2e.kubernetes import WITHOUT_TAINTS
from e2e.waiting import eventually

SECOND = "second"
WATCHED_AGAIN = "--timeout=120s"
"""kubelet ends the pod once it sees that it should: a watch that broke comes back after up to a minute (client-go)."""
EMPTIED_S = 30.0
"""Four requests after the Event, meanwhile nobody allocates from the pool; a busy machine needs a while for them."""
WRONG = {
    "controler": ({"controler": {"replicas": 1}}, "controler"),
    "replicas": ({"controller": {"replicas": "two"}}, "/controller/replicas"),
    "setting": ({"kubeletPlugin": {"settings": {"alocator": "kube-scheduler"}}}, "alocator"),
    "choice": ({"kubeletPlugin": {"settings": {"allocator": "nobody"}}}, "/kubeletPlugin/settings/allocator"),
    "driver": ({"driverName": "GPU.Example.com"}, "/driverName"),
    "path": ({"kubeletPlugin": {"hostPaths": {"kubelet": "var/lib/kubelet"}}}, "/kubeletPlugin/hostPaths/kubelet"),
}


def objects_of(chart: ChartCluster, name: str) -> str:
    return chart.kubectl(
        "get", "all,clusterroles,deviceclasses,validatingadmissionpolicies", "--all-namespaces",
        f"--selector=app.kubernetes.io/instance={name}", "--output=name",
    ).strip().replace("No resources found", "")  # fmt: skip


@pytest.mark.parametrize(("values", "key"), WRONG.values(), ids=WRONG)
def test_wrong_value_is_refused_and_named(bare: ChartCluster, values: dict[str, Any], key: str) -> None:
    said = bare.helm.run("install", "wrong", CHART, "--namespace", "wrong", "--create-namespace", values=values)
    assert said.code != 0
    assert key in said.text
    assert objects_of(bare, "wrong") == ""


def test_second_release_for_the_same_driver_is_refused(chart: ChartCluster) -> None:
    said = chart.helm.run("install", SECOND, CHART, "--namespace", SECOND, "--create-namespace", values=chart.values())
    assert said.code != 0
    assert f'driver {DRIVER} is installed already, by release "{RELEASE}" in namespace "{NAMESPACE}"' in said.text
    assert objects_of(chart, SECOND) == ""


def test_second_release_with_a_driver_and_nodes_of_its_own_is_taken(chart: ChartCluster) -> None:
    own = {"driverName": "second.example.com", "kubeletPlugin": {"nodeSelector": {"pool": SECOND}}}
    values = merged(chart.values(), own)
    chart.helm.do("install", SECOND, CHART, "--namespace", SECOND, "--create-namespace", "--wait", values=values)
    assert "deviceclass.resource.k8s.io/second.example.com" in objects_of(chart, SECOND)
    chart.helm.do("uninstall", SECOND, "--namespace", SECOND, "--wait")
    eventually(lambda: objects_of(chart, SECOND) == "", "nothing of it is left", within_s=60)


def test_node_without_a_driver_waits_and_says_why(chart: ChartCluster) -> None:
    """The old plugin serves on: the new one is never ready."""
    values = chart.values()
    del values["kubeletPlugin"]["settings"]
    values["kubeletPlugin"]["hostPaths"]["driverRoot"] = str(chart.gpus.driver_root / "empty")
    chart.helm.do("upgrade", RELEASE, CHART, "--namespace", NAMESPACE, values=values)
    try:
        why = eventually(
            lambda: [line for line in chart.logs("kubelet-plugin").splitlines() if "libnvidia-ml" in line],
            "the new plugin says what it waits for",
            within_s=90,
        )
        assert chart.slices()
        daemon_set = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{RELEASE}-kubelet-plugin"
        assert chart.api.get(daemon_set)["status"]["numberReady"] == 1, why
    finally:
        chart.helm.do("rollback", RELEASE, "--namespace", NAMESPACE, "--wait")


def test_server_without_device_taints_is_told_of(chart: ChartCluster) -> None:
    server = chart.control_plane.apiserver
    with server.restarted_with(WITHOUT_TAINTS):
        chart.control_plane.wait_ready()
        chart.kubectl("delete", "resourceslices", "--all")

        def told(times: int) -> bool:
            events = chart.api.items("/api/v1/namespaces/default/events")
            ours = [event for event in events if event["reason"] == "DevicesNotPublished"]
            return any(e["involvedObject"].get("name") == NODE_NAME and e["count"] >= times for e in ours)

        eventually(lambda: told(1), "the node has an Event", within_s=120)
        # The next instance says it again; the Event counts, instead of being one more.
        plugin = "--selector=app.kubernetes.io/component=kubelet-plugin"
        chart.kubectl("--namespace", NAMESPACE, "delete", "pods", plugin, WATCHED_AGAIN)
        eventually(lambda: told(2), "the Event counts up", within_s=120)
        # It is told as soon as the server's answer lacks the taint. The pool is incomplete then, and emptied next.
        eventually(
            lambda: not [device for one in chart.slices() for device in one["spec"].get("devices", ())],
            "the pool is empty",
            within_s=EMPTIED_S,
        )
    chart.control_plane.restart_clients()
    # The plugin would ask again after ten minutes.
    chart.kubectl("--namespace", NAMESPACE, "rollout", "restart", f"daemonset/{RELEASE}-kubelet-plugin")
    chart.wait_published()
