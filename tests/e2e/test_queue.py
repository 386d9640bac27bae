"""Who gets devices first when there are too few: by priority, then by age, and nobody waits for ever."""

from __future__ import annotations

import pytest

from e2e.made_up import FOUR, PRIORITY_CLASSES, MadeUpCluster
from e2e.pods import PODS, Pod, claim_spec, create_pod, create_template, wait_event
from e2e.waiting import eventually, never

WOKEN_S = 5.0
"""Until a pod has devices that came free: 0.1 s, and a loaded machine."""

STARVATION_S = 6
"""Much shorter than anybody wants, so that the test is."""


@pytest.fixture(autouse=True)
def ground(made_up: MadeUpCluster) -> None:
    """Four devices, three of them held for the whole test, so that one at a time can come free."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    made_up.api.create(PRIORITY_CLASSES, {**kind, "metadata": {"name": "urgent"}, "value": 1000})
    made_up.add_node("a", FOUR)
    for count in (1, 3, 4):
        create_template(made_up.api, f"take-{count}", claim_spec(count))


def hold(cluster: MadeUpCluster, name: str, count: int) -> Pod:
    """Run a pod that holds devices."""
    pod = Pod(name, templates={"gpus": f"take-{count}"})
    create_pod(cluster.api, pod)
    cluster.wait_bound(pod)
    return pod


def wait_waiting(cluster: MadeUpCluster, pod: Pod) -> None:
    """Create a pod and wait until the controller has looked at it in vain."""
    create_pod(cluster.api, pod)
    wait_event(cluster.api, pod, "WaitingForGPUs", "0/1 nodes fit")


def unbound(cluster: MadeUpCluster) -> set[str]:
    return {pod["metadata"]["name"] for pod in cluster.api.items(PODS) if not pod["spec"].get("nodeName")}


def test_the_pod_of_higher_priority_gets_the_device_that_comes_free_and_then_the_older_one(
    made_up: MadeUpCluster,
) -> None:
    hold(made_up, "rest", 3)
    last = hold(made_up, "last", 1)
    waiting = [Pod("old", templates={"gpus": "take-1"}), Pod("young", templates={"gpus": "take-1"})]
    for pod in waiting:
        wait_waiting(made_up, pod)
        # Ages are told in seconds.
        eventually(lambda: aged(made_up, pod), "the next one is younger by a second", within_s=5)  # noqa: B023
    high = Pod("high", templates={"gpus": "take-1"}, priority_class="urgent")
    wait_waiting(made_up, high)
    for next_one in (high, *waiting):
        made_up.api.delete(last.path, grace_s=0)
        made_up.wait_bound(next_one)
        made_up.check()
        last = next_one
    assert unbound(made_up) == set()


def aged(cluster: MadeUpCluster, pod: Pod) -> bool:
    """Whether a pod that is created now has a later creation time."""
    answer = cluster.api.send("POST", f"{PODS}?dryRun=All", Pod("clock").document())
    created = cluster.api.get(pod.path)["metadata"]["creationTimestamp"]
    return bool(answer.document["metadata"]["creationTimestamp"] > created)


def test_a_large_pod_that_waits_long_gets_its_node_although_small_ones_keep_coming(made_up: MadeUpCluster) -> None:
    """Of four holders one goes at a time; without a bound each device would go to a small pod at once."""
    with made_up.controller_with(f"--starvation-wait-s={STARVATION_S}"):
        holders = [hold(made_up, f"holder-{number}", 1) for number in range(4)]
        large = Pod("large", templates={"gpus": "take-4"})
        wait_waiting(made_up, large)
        never(lambda: "large" not in unbound(made_up), "it runs", for_s=STARVATION_S + 2)
        small = [Pod(f"small-{number}", templates={"gpus": "take-1"}) for number in range(4)]
        for holder, pod in zip(holders, small, strict=True):
            create_pod(made_up.api, pod)
            made_up.api.delete(holder.path, grace_s=0)
        assert made_up.wait_bound(large) == "a"
        assert unbound(made_up) == {pod.name for pod in small}
        made_up.check()
        made_up.api.delete(large.path, grace_s=0)
        for pod in small:
            made_up.wait_bound(pod)


def test_a_pod_is_woken_by_what_can_help_it(made_up: MadeUpCluster) -> None:
    """A new node with its slice, without any change of the pod or its claim."""
    hold(made_up, "rest", 3)
    pod = Pod("waits", templates={"gpus": "take-3"})
    wait_waiting(made_up, pod)
    made_up.add_node("b", FOUR)
    made_up.wait_allocated(pod, within_s=WOKEN_S)
    assert made_up.wait_bound(pod) == "b"  # kube-scheduler may be in its back-off
