"""What the programs put right in the installed cluster when somebody else got it wrong."""

from __future__ import annotations

from typing import Any

from e2e.install.chart_cluster import NODE_NAME, ChartCluster
from e2e.install.seen import allocated, wait_pods
from e2e.installation import DRIVER
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim
from e2e.waiting import eventually

ALL_SLICES = "/apis/resource.k8s.io/v1/resourceslices"

MENDED_S = 60.0


def test_plugin_puts_its_slices_right(chart: ChartCluster) -> None:
    (published,) = chart.slices()
    path = f"{ALL_SLICES}/{published['metadata']['name']}"
    stale: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "stale"},
        "spec": {
            "nodeName": NODE_NAME,
            "driver": DRIVER,
            "pool": {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1},
        },
    }
    chart.api.create(ALL_SLICES, stale)
    eventually(lambda: chart.api.find(f"{ALL_SLICES}/stale") is None, "a slice too many goes", within_s=MENDED_S)
    chart.api.patch(path, {"spec": {"devices": published["spec"]["devices"][:3]}})

    def whole() -> bool:
        slices = chart.slices()
        return len(slices) == 1 and len(slices[0]["spec"].get("devices", ())) == len(published["spec"]["devices"])

    eventually(whole, "devices that somebody removed come back", within_s=MENDED_S)
    chart.api.delete(f"{ALL_SLICES}/{chart.slices()[0]['metadata']['name']}")
    eventually(whole, "a slice that somebody deleted comes back", within_s=MENDED_S)


def test_claim_that_nobody_else_frees_is_freed(chart: ChartCluster) -> None:
    """kube-controller-manager frees a claim when its last reservation goes. Here somebody removes that before."""
    path = create_claim(chart.api, "orphan", claim_spec(1))
    pod = Pod("orphans-pod", claims={"gpu": "orphan"})
    chart.api.create(PODS, pod.document())
    wait_pods(chart, "default", "Running")
    eventually(lambda: chart.api.get(path)["status"].get("devices"), "the plugin names the devices", within_s=MENDED_S)
    chart.control_plane.controller_manager.stop()
    try:
        chart.kubectl("delete", "pod", pod.name, "--grace-period=1", "--timeout=60s")
        chart.api.patch(f"{path}/status", {"status": {"reservedFor": None}})
        eventually(lambda: not allocated(chart.api), "the controller frees the claim", within_s=MENDED_S)
    finally:
        chart.control_plane.controller_manager.start()
    chart.kubectl("delete", "--namespace", "default", "resourceclaim", "orphan", "--timeout=60s")
    assert chart.api.find(f"{CLAIMS}/orphan") is None
    eventually(lambda: not chart.podlist(), "the node forgets its pod", within_s=MENDED_S)


def test_claim_that_is_reserved_for_a_pod_elsewhere_gives_that_pod_nothing_here(chart: ChartCluster) -> None:
    """The plugin watches the pods of its node. Who else uses the claim is asked for in the API, and left out."""
    path = create_claim(chart.api, "common", claim_spec(1))
    guest, owner = (Pod(name, claims={"gpu": "common"}) for name in ("guest", "owner"))
    waiting = guest.document()
    waiting["spec"]["schedulingGates"] = [{"name": "example.com/not-yet"}]
    uid = chart.api.create(PODS, waiting)["metadata"]["uid"]
    chart.control_plane.scheduler.kill()
    try:
        chart.api.create(PODS, owner.document())
        claim = eventually(lambda: allocated_claim(chart, path), "it has its GPU", within_s=MENDED_S)
        users = [*claim["status"]["reservedFor"], {"resource": "pods", "name": guest.name, "uid": uid}]
        chart.api.patch(f"{path}/status", {"status": {"reservedFor": users}})
    finally:
        chart.control_plane.scheduler.start()
    eventually(lambda: chart.api.get(owner.path)["status"]["phase"] == "Running", "it runs", within_s=MENDED_S)
    eventually(chart.podlist, "the node says who has the GPU", within_s=MENDED_S)
    eventually(lambda: was_asked_for(chart, guest), "the plugin has asked for the other one", within_s=MENDED_S)
    assert [entry["name"] for entry in chart.podlist()] == [owner.name]
    annotations = chart.api.get(guest.path)["metadata"].get("annotations", {})
    assert not [key for key in annotations if key.startswith(DRIVER)]
    chart.kubectl("delete", "pods", guest.name, owner.name, "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaim", "common", "--timeout=60s")
    eventually(lambda: not chart.podlist(), "the node forgets them", within_s=MENDED_S)


def was_asked_for(chart: ChartCluster, pod: Pod) -> bool:
    """Whether one of ours listed pods with this name in its selector, which is all that the node authorizer needs. The
    API server writes its log when it has answered."""
    read = (event["objectRef"] for event in chart.audited() if event["verb"] == "list" and "objectRef" in event)
    return ("pods", pod.name) in {(target["resource"], target.get("name")) for target in read}


def allocated_claim(chart: ChartCluster, path: str) -> Any:
    found = chart.api.get(path)
    return found if found["status"].get("reservedFor") else None
