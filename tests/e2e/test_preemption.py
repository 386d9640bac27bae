"""Pods of lower priority in the way of one that needs GPUs: kube-scheduler evicts them where its claim is allocated.

Nobody runs the pods of made-up nodes, so an evicted one ends when the test removes it, as its kubelet would.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from e2e.made_up import FOUR, ONE, PRIORITY_CLASSES, SLICES, MadeUpCluster, devices_of
from e2e.pods import Pod, claim_spec, create_pod, create_template, pod_claims, wait_event
from e2e.waiting import eventually, never

EVICTED_S = 30.0
"""From the pod's creation until others are evicted for it: 0.3 s on a free machine. On a loaded one kube-scheduler may
try the pod in vain before it sees the allocation, and then waits for up to 10 s."""

QUIET_S = 3.0


@pytest.fixture(autouse=True)
def classes(made_up: MadeUpCluster) -> None:
    create_template(made_up.api, "two", claim_spec(2))
    create_template(made_up.api, "four", claim_spec(4))
    for name, policy in (("urgent", "PreemptLowerPriority"), ("patient", "Never")):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        made_up.api.create(PRIORITY_CLASSES, {**kind, "value": 1000, "preemptionPolicy": policy})


def full_node(cluster: MadeUpCluster) -> Pod:
    """Make the only node with GPUs, and a pod of low priority that has three quarters of its cpu."""
    cluster.add_node("a", FOUR)
    low = Pod("low", requests={"cpu": "12"}, node_selector={"kubernetes.io/hostname": "a"})
    create_pod(cluster.api, low)
    assert cluster.wait_bound(low) == "a"
    return low


def high(priority_class: str = "urgent") -> Pod:
    return Pod("high", templates={"gpus": "two"}, requests={"cpu": "8"}, priority_class=priority_class)


def is_being_evicted(cluster: MadeUpCluster, pod: Pod) -> bool:
    return cluster.api.get(pod.path)["metadata"].get("deletionTimestamp") is not None


def nominated(cluster: MadeUpCluster, pod: Pod) -> str:
    return str(cluster.api.get(pod.path)["status"].get("nominatedNodeName", ""))


def node_bound(cluster: MadeUpCluster, pod: Pod) -> str:
    return str(cluster.api.get(pod.path)["spec"].get("nodeName", ""))


def claim_of(cluster: MadeUpCluster, pod: Pod) -> Mapping[str, Any]:
    (claim,) = pod_claims(cluster.api, pod).values()
    return claim  # type: ignore[no-any-return]


def wait_evicted(cluster: MadeUpCluster, low: Pod, pod: Pod) -> None:
    eventually(lambda: is_being_evicted(cluster, low), "the pod of low priority is evicted", within_s=EVICTED_S)
    eventually(lambda: nominated(cluster, pod) == "a", "the node is nominated", within_s=EVICTED_S)


def test_a_pod_of_low_priority_is_evicted_for_the_cpu_of_one_that_needs_gpus(made_up: MadeUpCluster) -> None:
    low, pod = full_node(made_up), high()
    create_pod(made_up.api, pod)
    wait_evicted(made_up, low, pod)
    never(lambda: not devices_of(claim_of(made_up, pod)), "the claim loses its devices meanwhile", for_s=QUIET_S)
    made_up.api.delete(low.path, grace_s=0)
    assert made_up.wait_bound(pod) == "a"
    assert made_up.allocated_nodes() == ["a"]
    made_up.check()


@pytest.mark.parametrize("gpus", ["without GPUs", "with too few"])
def test_where_another_node_passes_all_other_filters_the_devices_are_kept_and_come_back(
    made_up: MadeUpCluster, gpus: str
) -> None:
    """kube-scheduler clears the claim and evicts the pod in one attempt, and would clear it again at each attempt."""
    low, pod = full_node(made_up), high()
    made_up.add_node("b", ONE)
    if gpus == "without GPUs":
        for one in made_up.api.items(SLICES):
            if one["spec"].get("nodeName") == "b":
                made_up.api.delete(f"{SLICES}/{one['metadata']['name']}")
    create_pod(made_up.api, pod)
    wait_evicted(made_up, low, pod)
    assert not devices_of(claim_of(made_up, pod))
    other = Pod("other", templates={"gpus": "four"}, requests={"cpu": "1"})
    create_pod(made_up.api, other)
    wait_event(made_up.api, other, "WaitingForGPUs", "nodes fit")
    wait_event(made_up.api, pod, "WaitingForGPUs", "GPUs on node a are kept for it")
    never(lambda: made_up.allocated_nodes() != ["a"], "anything is allocated before there is room", for_s=QUIET_S)
    made_up.api.delete(low.path, grace_s=0)
    assert made_up.wait_bound(pod) == "a"
    assert made_up.allocated_nodes() == ["a", "a"]
    made_up.check()


@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "late"])
def test_a_waiting_pod_that_takes_the_room_first_does_not_keep_it(made_up: MadeUpCluster, is_late: bool) -> None:
    """When the victim is gone kube-scheduler tries the pod before its claim is allocated again, and then the pod of low
    priority that fits nowhere else. That one is evicted in turn, also where a late controller sees both at once."""
    low, pod = full_node(made_up), high()
    made_up.add_node("b", ONE)
    other = Pod("other", requests={"cpu": "12"}, node_selector={"kubernetes.io/hostname": "a"})
    create_pod(made_up.api, other)
    with made_up.controller_with("--exclusion-s=1"):
        create_pod(made_up.api, pod)
        wait_evicted(made_up, low, pod)
        with made_up.controller.paused() if is_late else nullcontext():
            made_up.api.delete(low.path, grace_s=0)
            assert not is_late or made_up.wait_bound(other) == "a"

        def is_bound() -> bool:
            found = made_up.api.find(other.path)  # nobody waits for one that is evicted before it is bound
            if found is not None and found["metadata"].get("deletionTimestamp") is not None:
                made_up.api.delete(other.path, grace_s=0)
            return node_bound(made_up, pod) == "a"

        eventually(is_bound, "the pod is bound", within_s=2 * EVICTED_S, programs=made_up.programs)
    made_up.check()


def test_a_pod_that_is_not_to_preempt_waits(made_up: MadeUpCluster) -> None:
    low, pod = full_node(made_up), high("patient")
    create_pod(made_up.api, pod)
    wait_event(made_up.api, pod, "WaitingForGPUs", "too little free cpu")
    never(lambda: is_being_evicted(made_up, low) or made_up.allocated_nodes(), "anybody is evicted", for_s=QUIET_S)
    made_up.api.delete(low.path, grace_s=0)
    assert made_up.wait_bound(pod) == "a"
    made_up.check()
