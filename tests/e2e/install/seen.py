"""What pods of the chart's cluster have, as a user finds out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.api import Api
from e2e.gpus import CONTROL_MINORS, GPU_COUNT
from e2e.install.chart_cluster import AUDITED, ChartCluster
from e2e.installation import DRIVER
from e2e.waiting import eventually

ALL_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"

RUN_S = 90.0
"""From a pod's creation until its containers run: 3 s on a free machine."""


def gpus_in(chart: ChartCluster, namespace: str, pod: str, container: str) -> frozenset[int]:
    """Return the numbers of the GPUs that the kernel lets a running container use."""
    said = chart.kubectl("--namespace", namespace, "exec", pod, "--container", container, "--", "/probe", "show")
    return gpus_shown(said)


def gpus_shown(printed: str) -> frozenset[int]:
    """Return the numbers of the GPUs that the probe printed; the nodes in the container must be just these."""
    shown = json.loads(printed)
    names = {f"/dev/nvidia{number}": number for number in range(GPU_COUNT)}
    nodes = frozenset(names[node["path"]] for node in shown["devices"] if node["path"] in names)
    usable = frozenset(shown["usable"]) - set(CONTROL_MINORS.values())
    assert nodes == usable, f"device nodes {sorted(nodes)}, usable {sorted(usable)}"
    return usable


def wait_pods(chart: ChartCluster, namespace: str, *phases: str, count: int = 0) -> list[Any]:
    """Wait until all pods of a namespace, at least `count`, are in one of these phases, and return them."""
    path = f"/api/v1/namespaces/{namespace}/pods"

    def look() -> list[Any]:
        pods = chart.api.items(path)
        good = len(pods) >= max(count, 1) and all(pod["status"].get("phase") in phases for pod in pods)
        return pods if good else []

    try:
        return eventually(look, f"the pods of {namespace} are {' or '.join(phases)}", within_s=RUN_S)
    except AssertionError as error:
        told = chart.kubectl("--namespace", namespace, "describe", "pods", check=False)
        raise AssertionError(f"{error}\n{told}") from error


NOT_SEEN = "cannot allocate all claims"
"""What kube-scheduler says of a pod whose claims are allocated where its watch of pods is ahead of its watch of claims;
it tries the pod again when the claims come (docs/design/admission.md)."""


def tried_in_vain(chart: ChartCluster, namespace: str, pod: str) -> list[str]:
    """Return what shows that a pod which has come through the controller's gate was tried too early or for nothing."""
    events = chart.api.items(f"/api/v1/namespaces/{namespace}/events")
    failed = (one for one in events if (one["involvedObject"]["name"], one["reason"]) == (pod, "FailedScheduling"))
    found = [one["message"] for one in failed if NOT_SEEN not in one["message"]]
    status = chart.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
    allocated = {one["resourceClaimName"]: "" for one in status["resourceClaimStatuses"]}
    let_go = ""
    for event in chart.audited():  # in their order, each when it was answered
        target = event.get("objectRef", {})
        if event["user"]["username"] != AUDITED[0] or event["verb"] != "patch" or target.get("namespace") != namespace:
            continue
        what, name, at = target["resource"], target["name"], event["requestReceivedTimestamp"]
        if (what, name, target.get("subresource")) == ("pods", pod, None):
            let_go = let_go or at
        elif what == "resourceclaims" and name in allocated and "allocation" in _written(event):
            allocated[name] = allocated[name] or at
    in_order = all("" < at < let_go for at in allocated.values())
    return found if in_order else [*found, f"claims allocated {allocated}, pod taken off the gate {let_go}"]


def _written(event: Any) -> Any:
    return event.get("requestObject", {}).get("status", {})


def devices_of(claim: Any) -> frozenset[str]:
    """Return our devices that a claim holds for itself."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return frozenset(r["device"] for r in results if r["driver"] == DRIVER and not r.get("adminAccess"))


def given_twice(api: Api) -> frozenset[str]:
    """Return the devices that more than one claim holds."""
    held = [devices_of(claim) for claim in api.items(ALL_CLAIMS)]
    return frozenset(device for devices in held for device in devices if sum(device in other for other in held) > 1)


def allocated(api: Api) -> Sequence[str]:
    """Return the keys of the claims that hold our devices, shared ones too."""
    return [
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        for claim in api.items(ALL_CLAIMS)
        if any(
            result["driver"] == DRIVER
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        )
    ]
