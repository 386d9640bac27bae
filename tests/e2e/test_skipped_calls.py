"""Devices whose driver runs nothing on the node (skipNodeOperations, 1.37): a real kubelet starts their pods all the
same, where the result of the allocation says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.gpu_pods import delete_gpu_pod, seen_inside
from e2e.pods import CLAIMS, DEVICE_CLASS, Pod, create_claim, create_pod, delete_pod, pod_claims, pod_events, wait_phase
from e2e.waiting import eventually

GATES: Final = "--feature-gates=DRAOptionalNodeOperations=true"
ABSENT: Final = "absent.example.com"
"""A driver that runs nowhere, and says that kubelet need not call it."""
SILENT: Final = "silent.example.com"
"""The same, but it does not say so."""
SKIPPED: Final = ["NodePrepareResources", "NodeUnprepareResources"]
RESOURCES: Final = "/apis/resource.k8s.io/v1"
DECLARED_S: Final = 60.0
REFUSED_S: Final = 60.0


@pytest.fixture(scope="module")
def gated(installed: Cluster) -> Iterator[Cluster]:
    """Give the cluster with the gate on everywhere, and a device of each of the two drivers on its node."""
    plane = installed.control_plane
    paths: list[str] = []
    with ExitStack() as switched:
        switched.callback(installed.restart_clients)
        for program in (plane.apiserver, plane.scheduler):
            switched.enter_context(program.restarted_with(GATES))
            plane.wait_ready()
        with installed.installation.published_anew():  # before that kubelet would delete the slices made here, too
            switched.enter_context(installed.node.kubelet.restarted_with(GATES))
        switched.enter_context(
            installed.installation.controller.restarted_with(f"--allowed-drivers={ABSENT}", "--longest-bind-s=1")
        )
        wait_well(installed)
        eventually(lambda: is_declared(installed), "kubelet declares the feature", within_s=DECLARED_S)
        for driver in (ABSENT, SILENT):
            paths += publish(installed, driver, SKIPPED if driver == ABSENT else [])
        yield installed
        for path in paths:
            installed.api.delete(path)


def wait_well(cluster: Cluster) -> None:
    cluster.control_plane.wait_ready()
    cluster.wait_node_ready()
    cluster.installation.wait_ready()


def is_declared(cluster: Cluster) -> bool:
    status = cluster.api.get(f"/api/v1/nodes/{NODE_NAME}")["status"]
    return "DRAOptionalNodeOperations" in status.get("declaredFeatures", ())


def publish(cluster: Cluster, driver: str, skipped: list[str]) -> list[str]:
    """Publish one device of a driver, and a class for it; return their paths."""
    pool = {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1}
    spec: dict[str, Any] = {"driver": driver, "pool": pool, "nodeName": NODE_NAME, "devices": [{"name": "one"}]}
    if skipped:
        spec["skipNodeOperations"] = skipped
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    for path, kind, its_spec in (
        ("resourceslices", "ResourceSlice", spec),
        ("deviceclasses", "DeviceClass", {"selectors": [selector]}),
    ):
        document = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": driver}, "spec": its_spec}
        cluster.api.create(f"{RESOURCES}/{path}", document)
    return [f"{RESOURCES}/{path}/{driver}" for path in ("resourceslices", "deviceclasses")]


def ask(cluster: Cluster, name: str, *classes: str) -> Pod:
    """Make a claim for one device of each class, and its pod."""
    requests = [{"name": f"r{at}", "exactly": {"deviceClassName": one}} for at, one in enumerate(classes)]
    create_claim(cluster.api, name, {"devices": {"requests": requests}})
    pod = Pod(name, claims={"devices": name})
    create_pod(cluster.api, pod)
    return pod


def skipped(cluster: Cluster, pod: Pod) -> dict[str, list[str]]:
    """Return what the results of a pod's claim say of each driver."""
    (claim,) = pod_claims(cluster.api, pod).values()
    results = claim["status"]["allocation"]["devices"]["results"]
    return {result["driver"]: result.get("skipNodeOperations", []) for result in results}


def test_a_pod_starts_without_calls_to_a_driver_that_runs_nothing_whoever_allocated(gated: Cluster) -> None:
    theirs = ask(gated, "theirs", ABSENT)
    wait_phase(gated.api, theirs, "Running")
    assert skipped(gated, theirs) == {ABSENT: SKIPPED}
    delete_pod(gated.api, theirs)
    gated.api.delete(f"{CLAIMS}/theirs")
    ours = ask(gated, "ours", DEVICE_CLASS, ABSENT)
    assert len(seen_inside(gated.api, ours).numbers) == 1
    assert skipped(gated, ours) == {DEVICE_CLASS: [], ABSENT: SKIPPED}
    delete_gpu_pod(gated, ours)


def test_without_that_word_kubelet_waits_for_the_driver(gated: Cluster) -> None:
    """So a result that drops it leaves the pod hanging."""
    pod = ask(gated, "silent", SILENT)
    refused = lambda: [m for m in pod_events(gated.api, pod, "FailedPrepareDynamicResources") if SILENT in m]  # noqa: E731
    eventually(refused, "kubelet looks for the driver", within_s=REFUSED_S)
    assert gated.api.get(pod.path)["status"]["phase"] == "Pending"
    delete_pod(gated.api, pod)
