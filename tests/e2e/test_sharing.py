"""Shared GPUs on the real control plane and kubelet, where kube-scheduler allocates: what is published, what it counts,
and what the plugin prepares of that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.gpu_pods import delete_gpu_pod, seen_inside
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.pods import Pod, claim_spec, create_claim, create_pod, pod_claims, wait_event, wait_pending
from e2e.waiting import eventually
from support.gpu_lists import flag

SHARE_CLASS = f"share.{DRIVER}"
BEST_EFFORT = {
    "opaque": {
        "driver": DRIVER,
        "parameters": {
            "apiVersion": f"{DRIVER}/v1alpha1",
            "kind": "GpuConfig",
            "sharing": {"enforcement": "BestEffort"},
        },
    }
}
PUBLISH_S = 60.0
TOLD_S = 20.0


def shared_devices(cluster: Cluster) -> list[Any]:
    return [device for device in cluster.installation.devices() if device.get("allowMultipleAllocations")]


@contextmanager
def one_shared_gpu(installed: Cluster) -> Iterator[Cluster]:
    """Give the cluster with GPU 0 shared, left to kube-scheduler."""
    installation = installed.installation
    with installation.plugin.restarted_with("--allocator=kube-scheduler", flag("shared", "0")):
        installation.wait_ready()
        eventually(
            lambda: len(shared_devices(installed)) == 1 and not any(d.get("taints") for d in installation.devices()),
            "one GPU is published as a shared one",
            within_s=PUBLISH_S,
        )
        yield installed
    installation.wait_ready()
    eventually(
        lambda: not shared_devices(installed) and len(installation.devices()) == GPU_COUNT,
        "no GPU is shared any more",
        within_s=PUBLISH_S,
    )


@pytest.fixture(scope="module")
def sharing(installed: Cluster) -> Iterator[Cluster]:
    with one_shared_gpu(installed) as cluster:
        yield cluster


def ask(cluster: Cluster, name: str, *config: Any, **amounts: str) -> Pod:
    """Make a claim for a share, and its pod."""
    request = {"deviceClassName": SHARE_CLASS, **({"capacity": {"requests": amounts}} if amounts else {})}
    devices = {"requests": [{"name": "gpu", "exactly": request}], "config": list(config)}
    create_claim(cluster.api, name, {"devices": devices})
    pod = Pod(name, claims={"gpu": name})
    create_pod(cluster.api, pod)
    return pod


def end(cluster: Cluster, *pods: Pod) -> None:
    for pod in pods:
        delete_gpu_pod(cluster, pod)
    for pod in pods:
        cluster.api.delete(f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{pod.name}")


def consumed(cluster: Cluster, pod: Pod) -> dict[str, str]:
    (claim,) = pod_claims(cluster.api, pod).values()
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    amounts: dict[str, str] = result["consumedCapacity"]
    return amounts


def test_the_server_keeps_a_shared_gpu_as_it_was_sent(sharing: Cluster) -> None:
    (device,) = shared_devices(sharing)
    assert device["attributes"]["index"] == {"int": 0}
    assert device["capacity"] == {
        "memory": {
            "value": "16Gi",
            "requestPolicy": {"default": "16Gi", "validRange": {"min": "1Mi", "max": "16Gi", "step": "1Mi"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    }


def test_two_pods_share_a_gpu_and_the_third_waits_until_one_goes(sharing: Cluster) -> None:
    """One after the other: while kube-scheduler writes an allocation it may count the share twice (1.37.1, in
    GatherAllocatedState), and a pod that it tries just then waits for five minutes although it fits."""
    first = ask(sharing, "first", BEST_EFFORT, memory="6Gi", cores="30")
    assert seen_inside(sharing.api, first).numbers == {0}
    second = ask(sharing, "second", BEST_EFFORT, memory="5000M")
    assert seen_inside(sharing.api, second).numbers == {0}
    assert consumed(sharing, first) == {"memory": "6Gi", "cores": "30"}
    assert consumed(sharing, second) == {"memory": "4769Mi", "cores": "0"}, "rounded up to whole MiB"

    entries = {entry["name"]: entry for entry in sharing.installation.podlist()}
    told = {name: [(s["memory"], s["cores"]) for s in entry["shares"]] for name, entry in entries.items()}
    assert told == {"first": [("6Gi", 30)], "second": [("4769Mi", 0)]}
    (claim,) = pod_claims(sharing.api, first).values()
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim['metadata']['name']}"
    (status,) = eventually(
        lambda: sharing.api.get(path)["status"].get("devices"), "status.devices is written", within_s=TOLD_S
    )
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert status["shareID"] == result["shareID"]
    assert (status["data"]["memory"], status["data"]["cores"]) == ("6Gi", 30)
    annotation = f"{DRIVER}/devices"
    annotations = eventually(
        lambda: (
            found if annotation in (found := sharing.api.get(first.path)["metadata"].get("annotations", {})) else None
        ),
        "the pod is annotated",
        within_s=TOLD_S,
    )
    (grant,) = json.loads(annotations[annotation])["main"]
    assert [(share["share_id"], share["memory"]) for share in grant["shares"]] == [(result["shareID"], "6Gi")]

    third = ask(sharing, "third", BEST_EFFORT, memory="6Gi")
    wait_pending(sharing.api, third, "cannot allocate all claims")
    delete_gpu_pod(sharing, first)
    assert seen_inside(sharing.api, third).numbers == {0}
    end(sharing, second, third)
    sharing.api.delete(path)


def test_a_claim_without_capacity_gets_a_shared_gpu_whole_and_needs_no_enforcing(sharing: Cluster) -> None:
    whole = ask(sharing, "whole")
    assert seen_inside(sharing.api, whole).numbers == {0}
    assert consumed(sharing, whole) == {"memory": "16Gi", "cores": "0"}
    little = ask(sharing, "little", BEST_EFFORT, memory="1Mi")
    wait_pending(sharing.api, little, "cannot allocate all claims")
    end(sharing, whole, little)


def test_a_share_that_nothing_enforces_is_refused_by_name_on_its_pod(sharing: Cluster) -> None:
    required = ask(sharing, "required", memory="6Gi")
    text = wait_event(sharing.api, required, "FailedPrepareDynamicResources", "nothing on this node enforces")
    assert "6Gi of memory" in text
    assert "`sharing.enforcement: BestEffort`" in text
    end(sharing, required)


def test_whole_gpus_beside_shared_ones_are_as_ever(sharing: Cluster) -> None:
    path = create_claim(sharing.api, "seven", claim_spec(GPU_COUNT - 1))
    pod = Pod("seven", claims={"gpus": "seven"})
    create_pod(sharing.api, pod)
    assert len(seen_inside(sharing.api, pod).numbers) == GPU_COUNT - 1
    delete_gpu_pod(sharing, pod)
    sharing.api.delete(path)
