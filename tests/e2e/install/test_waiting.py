"""Pods that wait in the installed cluster: what they are told, and GPUs that they have and cannot use."""

from __future__ import annotations

import json
import time
from typing import Any

from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, ChartCluster
from e2e.install.seen import devices_of, wait_pods
from e2e.installation import DRIVER
from e2e.pods import CLAIMS, EVENTS, PODS, Pod, claim_spec, create_claim, wait_event
from e2e.waiting import eventually

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/controller.{DRIVER}"

TAKE_OVER_S = 90.0
"""A leader that ends gives its Lease back; the next one begins 10 s later, and tells a pod that has waited a little."""

SETTLED_S = 5.5
"""So long after the allocation a refusal of kube-scheduler counts: one that comes sooner may be about before."""

TAKEN_BACK_S = 120.0
"""A refusal has to stand for 10 s; the longest bind, of 20 s here, lies between the two writes that follow. Before
all that kube-scheduler starts, and a look may come 15 s late."""


def told(chart: ChartCluster, pod: Pod, reason: str, words: str) -> list[Any]:
    found = chart.api.items(EVENTS)
    of_pod = [one for one in found if (one["involvedObject"].get("name"), one["reason"]) == (pod.name, reason)]
    return [one for one in of_pod if words in one["message"]]


def leader(chart: ChartCluster) -> str:
    """Return the name of the pod that leads, nothing while none does: a replica's name and a part of its own."""
    return str(chart.api.get(LEASE)["spec"].get("holderIdentity") or "").partition("_")[0]


def leader_there(chart: ChartCluster) -> str:
    """Return the same, nothing while that pod has gone and its Lease has not run out."""
    name = leader(chart)
    return name if name and chart.api.find(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}") else ""


def remove(chart: ChartCluster, name: str) -> None:
    chart.kubectl("delete", "pod", name, "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaim", name, "--timeout=60s")


def test_what_the_next_leader_tells_a_pod_again_is_counted_on_the_same_event(chart: ChartCluster) -> None:
    create_claim(chart.api, "too-large", claim_spec(20))
    pod = Pod("too-large", claims={"gpus": "too-large"})
    chart.api.create(PODS, pod.document())
    words = " has 20 GPUs"  # if the watch of claims is late, the pod is told first that its claim does not exist
    message = wait_event(chart.api, pod, "WaitingForGPUs", words)
    first = eventually(lambda: leader_there(chart), "somebody leads", within_s=TAKE_OVER_S)
    chart.kubectl("--namespace", NAMESPACE, "delete", "pod", first, "--timeout=60s")
    eventually(lambda: leader(chart) not in ("", first), "the other one leads", within_s=TAKE_OVER_S)
    again = eventually(
        lambda: [one for one in told(chart, pod, "WaitingForGPUs", words) if one["count"] > 1],
        "the pod is told again",
        within_s=TAKE_OVER_S,
    )
    assert [one["message"] for one in again] == [message]
    assert len(told(chart, pod, "WaitingForGPUs", words)) == 1
    remove(chart, "too-large")


def test_gpus_of_a_pod_whose_node_was_closed_are_free_until_it_opens_again(chart: ChartCluster) -> None:
    """An admin cordons the node between the allocation and the bind: kube-scheduler refuses the pod there."""
    path = create_claim(chart.api, "shut-out", claim_spec(2))
    pod = Pod("shut-out", claims={"gpus": "shut-out"})
    chart.control_plane.scheduler.kill()
    try:
        chart.api.create(PODS, pod.document())
        eventually(lambda: devices_of(chart.api.get(path)), "it has its GPUs", within_s=TAKEN_BACK_S)
        chart.kubectl("cordon", NODE_NAME)
        time.sleep(SETTLED_S)
    finally:
        chart.control_plane.scheduler.start()
    try:
        eventually(lambda: not devices_of(chart.api.get(path)), "they are taken back", within_s=TAKEN_BACK_S)
        wait_event(chart.api, pod, "GPUsTakenBack", f"GPUs on node {NODE_NAME} are taken back")
    finally:
        chart.kubectl("uncordon", NODE_NAME)
    wait_pods(chart, "default", "Running")
    assert len(devices_of(chart.api.get(f"{CLAIMS}/shut-out"))) == 2
    remove(chart, "shut-out")


def test_a_claim_that_the_server_lets_nobody_patch_is_named_to_its_user(chart: ChartCluster) -> None:
    """kube-apiserver compares opaque parameters as bytes, and here they have blanks after `,` and `:`.

    It is the one refusal that comes each time, so the controller is sure to use its rights to patch and to read a
    single claim. The claim is of an admin's own class, so the chart does not create it with the finalizer, which would
    leave nothing to patch but the status.
    """
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    chart.api.create(CLASSES, {**device_class, "metadata": {"name": "own-gpus"}, "spec": {"selectors": selectors}})
    parameters = {"apiVersion": "example.com/v1", "kind": "Parameters"}
    spec = claim_spec(1)
    spec["devices"]["requests"][0]["exactly"]["deviceClassName"] = "own-gpus"
    spec["devices"]["config"] = [{"opaque": {"driver": "other.example.com", "parameters": parameters}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    with_blanks = json.dumps({**kind, "metadata": {"name": "unpatchable"}, "spec": spec}).encode()
    assert chart.api.send("POST", CLAIMS, with_blanks).status == 201
    pod = Pod("unpatchable", claims={"gpus": "unpatchable"})
    chart.api.create(PODS, pod.document())
    wait_event(chart.api, pod, "WaitingForGPUs", "claim default/unpatchable is refused by the API server")
    remove(chart, "unpatchable")
    chart.api.delete(f"{CLASSES}/own-gpus")
