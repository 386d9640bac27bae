"""What pods of the chart's cluster have, as a user finds out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from e2e.api import Api
from e2e.gpus import CONTROL_MINORS, GPU_COUNT
from e2e.install.chart_cluster import ChartCluster
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
