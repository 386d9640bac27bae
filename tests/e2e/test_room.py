"""Whether a pod can run on a node, as kube-scheduler sees it: devices are given only where it will bind the pod.

Each test has the devices on a node that the pod cannot use, chosen so that by its devices alone it would win: it is the
only one with exactly as many as the pod asks for. A wrong choice shows in the writes: the first must be the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from e2e.made_up import FOUR, TWO, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_pod, create_template, wait_event
from e2e.waiting import eventually, never

QUIET_S = 1.5

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x"]}]}]
        }
    }
}


def filler(name: str, node: str, **requests: str) -> Pod:
    """Make a pod without claims that runs on a node and asks for a part of it."""
    return Pod(name, requests=requests, more={"nodeName": node})


def bind_beside(cluster: MadeUpCluster, pod: Pod) -> None:
    """Run a pod for two GPUs that has to go to the worse node, `b`, and nowhere else in between."""
    create_template(cluster.api, "two", claim_spec(2))
    create_pod(cluster.api, pod)
    assert cluster.wait_bound(pod) == "b"
    assert cluster.allocated_nodes() == ["b"]
    cluster.check()


@pytest.mark.parametrize(
    ("node", "spec"),
    [
        ({"labels": {"zone": "x"}}, {"nodeSelector": {"zone": "y"}}),
        ({"labels": {"zone": "x"}}, {"affinity": AFFINITY}),
        ({"taints": [{"key": "team", "value": "blue", "effect": "NoSchedule"}]}, {}),
        ({"taints": [{"key": "team", "value": "blue", "effect": "NoExecute"}]}, {}),
    ],
    ids=["selector", "affinity", "taint NoSchedule", "taint NoExecute"],
)
def test_a_node_that_the_pod_may_not_use_is_passed_over(
    made_up: MadeUpCluster, node: Mapping[str, Any], spec: Mapping[str, Any]
) -> None:
    made_up.add_node("a", TWO, **node)
    made_up.add_node("b", FOUR, labels={"zone": "y"})
    bind_beside(made_up, Pod("picky", templates={"gpus": "two"}, more=spec))


def test_a_cordoned_node_is_passed_over(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO)
    made_up.cordon("a")
    made_up.add_node("b", FOUR)
    bind_beside(made_up, Pod("picky", templates={"gpus": "two"}))


@pytest.mark.parametrize(
    ("resource", "room", "taken", "wanted"),
    [
        ("cpu", "8", "6500m", "2"),
        ("memory", "16Gi", "15Gi", "2Gi"),
        ("ephemeral-storage", "10Gi", "9Gi", "2Gi"),
        ("example.com/card", "2", "1", "2"),
    ],
)
def test_a_node_whose_room_other_pods_have_taken_is_passed_over(
    made_up: MadeUpCluster, resource: str, room: str, taken: str, wanted: str
) -> None:
    """Also for pods that run without claims of ours."""
    made_up.add_node("a", TWO, allocatable={resource: room})
    made_up.add_node("b", FOUR, allocatable={resource: room})
    create_pod(made_up.api, with_limits(filler("filler", "a", **{resource: taken})))
    bind_beside(made_up, with_limits(Pod("large", templates={"gpus": "two"}, requests={resource: wanted})))


def with_limits(pod: Pod) -> Pod:
    """Return the pod with limits where the API wants them: extended resources are never overcommitted."""
    extended = {name: amount for name, amount in pod.requests.items() if "/" in name}
    if not extended:
        return pod
    container = {**pod.document()["spec"]["containers"][0]}
    container["resources"] = {**container["resources"], "limits": extended}
    return Pod(pod.name, templates=pod.templates, more={**pod.more, "containers": [container]})


def test_a_node_that_has_as_many_pods_as_it_takes_is_passed_over(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO, allocatable={"pods": "1"})
    made_up.add_node("b", FOUR)
    create_pod(made_up.api, filler("filler", "a"))
    bind_beside(made_up, Pod("second", templates={"gpus": "two"}))


def test_pods_that_come_at_once_count_each_other(made_up: MadeUpCluster) -> None:
    """Four pods of 6 cpu on two nodes with 16: what was just decided counts before kube-scheduler has bound it."""
    made_up.add_node("a", FOUR)
    made_up.add_node("b", FOUR)
    create_template(made_up.api, "one", claim_spec(1))
    pods = [Pod(f"at-once-{number}", templates={"gpus": "one"}, requests={"cpu": "6"}) for number in range(4)]
    with made_up.without_scheduler():
        for pod in pods:
            create_pod(made_up.api, pod)
        for pod in pods:
            made_up.wait_allocated(pod)
    nodes = [made_up.wait_bound(pod) for pod in pods]
    assert sorted(nodes) == ["a", "a", "b", "b"]
    assert sorted(made_up.allocated_nodes()) == sorted(nodes)
    made_up.check()


def test_a_pod_that_waits_for_room_is_told_what_is_short_and_woken_when_there_is_room(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO, allocatable={"cpu": "4"})
    other = filler("filler", "a", cpu="3")
    create_pod(made_up.api, other)
    create_template(made_up.api, "two", claim_spec(2))
    pod = Pod("short", templates={"gpus": "two"}, requests={"cpu": "2"})
    create_pod(made_up.api, pod)
    assert "cpu" in wait_event(made_up.api, pod, "WaitingForGPUs", "0/1 nodes fit")
    never(lambda: [c for c in made_up.api.items(CLAIMS) if devices_of(c)], "devices are given", for_s=QUIET_S)
    made_up.api.delete(other.path, grace_s=0)
    assert made_up.wait_bound(pod) == "a"
    assert made_up.allocated_nodes() == ["a"]


def test_a_pod_that_ended_takes_no_room(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO, allocatable={"cpu": "4"})
    other = filler("done", "a", cpu="3")
    create_pod(made_up.api, other)
    made_up.api.patch(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    eventually(lambda: made_up.api.get(other.path)["status"]["phase"] == "Succeeded", "it ended", within_s=5)
    create_template(made_up.api, "two", claim_spec(2))
    pod = Pod("after", templates={"gpus": "two"}, requests={"cpu": "2"})
    create_pod(made_up.api, pod)
    assert made_up.wait_bound(pod) == "a"
