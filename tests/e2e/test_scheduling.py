"""How the controller and kube-scheduler share the work: facts about the real one that our design stands on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.gpu_pods import claimed, delete_gpu_pod, gpu_numbers, seen_inside, wait_free
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.kubernetes import SET_ONCE
from e2e.pods import (
    CLAIMS,
    RUN_S,
    TEMPLATES,
    Pod,
    claim_spec,
    create_claim,
    create_pod,
    create_template,
    delete_pod,
    pod_claims,
    wait_event,
    wait_pending,
    wait_phase,
    why,
)
from e2e.waiting import eventually, never

FINALIZER = "resource.kubernetes.io/delete-protection"

BIND_S = 10.0
"""From the allocation to the bind: 0.5 s was measured on a free machine."""

REFUSAL_S = 30.0
"""For kube-scheduler's Event about a refused write: it tries at once."""

QUIET_S = 4.0
"""Long enough for kube-scheduler to have tried: it does so within 0.1 s."""


@pytest.fixture(scope="module", autouse=True)
def templates(installed: Cluster) -> Iterator[None]:
    paths = [create_template(installed.api, f"sched-{count}", claim_spec(count)) for count in (1, 2, GPU_COUNT)]
    yield
    for path in paths:
        installed.api.delete(path)


@contextmanager
def without_controller(cluster: Cluster) -> Iterator[None]:
    """Keep our controller off for a while."""
    cluster.installation.controller.stop()
    try:
        yield
    finally:
        cluster.installation.controller.start()
        cluster.installation.wait_ready()


def test_scheduler_leaves_tainted_devices_alone(installed: Cluster) -> None:
    pod = Pod("tainted", templates={"gpus": "sched-1"})
    with without_controller(installed):
        create_pod(installed.api, pod)
        wait_pending(installed.api, pod, "cannot allocate all claims")
        never(lambda: claimed(installed, pod), "kube-scheduler allocated a tainted device", for_s=QUIET_S)
    assert len(seen_inside(installed.api, pod).numbers) == 1
    delete_gpu_pod(installed, pod)


def test_allocation_is_complete_and_the_pod_is_bound_at_once(installed: Cluster) -> None:
    pod = Pod("bound", templates={"gpus": "sched-2"})
    create_pod(installed.api, pod)
    found = wait_phase(installed.api, pod, "Running")
    claim = pod_claims(installed.api, pod)["gpus"]
    allocation = claim["status"]["allocation"]
    assert FINALIZER in claim["metadata"]["finalizers"]
    assert [entry["uid"] for entry in claim["status"]["reservedFor"]] == [found["metadata"]["uid"]]
    assert all("tolerations" not in result for result in allocation["devices"]["results"])
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}]}
    scheduled = next(c for c in found["status"]["conditions"] if c["type"] == "PodScheduled")
    waited_s = (_time(scheduled["lastTransitionTime"]) - _time(allocation["allocationTimestamp"])).total_seconds()
    assert -1 <= waited_s <= BIND_S
    delete_gpu_pod(installed, pod)


def test_allocation_without_timestamp_cannot_be_reserved_by_the_scheduler(installed: Cluster) -> None:
    """Why ours always carries one. Written by hand and unreserved, so that the scheduler has to reserve."""
    pod = Pod("untimed", claims={"gpu": "untimed"})
    with without_controller(installed):
        allocate_by_hand(installed, "untimed", timestamp=None)
        create_pod(installed.api, pod)
        eventually(lambda: SET_ONCE in why(installed.api, pod), "the refusal", within_s=REFUSAL_S)
        never(lambda: installed.api.get(pod.path)["spec"].get("nodeName"), "the pod was bound", for_s=QUIET_S)


def test_allocation_with_timestamp_is_reserved_by_the_scheduler(installed: Cluster) -> None:
    pod = Pod("timed", claims={"gpu": "timed"})
    with without_controller(installed):
        allocate_by_hand(installed, "timed", timestamp=now_text())
        create_pod(installed.api, pod)
        assert len(seen_inside(installed.api, pod).numbers) == 1
    delete_gpu_pod(installed, pod)
    installed.api.delete(f"{CLAIMS}/timed")


def allocate_by_hand(cluster: Cluster, name: str, *, timestamp: str | None) -> None:
    """Write an allocation in the order that any third party has to keep: finalizer, then status."""
    device = cluster.installation.devices()[0]["name"]
    path = create_claim(cluster.api, name, claim_spec())
    claim = cluster.api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
    allocation = {
        "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": NODE_NAME, "device": device}]},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}]}]
        },
        **({"allocationTimestamp": timestamp} if timestamp else {}),
    }
    body = {"metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]}, "status": {"allocation": allocation}}
    cluster.api.patch(f"{path}/status", body)


def test_pod_of_which_only_some_claims_are_allocated_keeps_them_and_runs_once_there_is_room(installed: Cluster) -> None:
    """The scheduler clears nothing; the controller adds what is missing."""
    path = create_template(installed.api, "rest", claim_spec(GPU_COUNT - 1))
    holder = Pod("holder", templates={"gpus": "rest"})
    pod = Pod("only-some", claims={"have": "have"}, templates={"want": "sched-1"})
    with without_controller(installed):
        allocate_by_hand(installed, "have", timestamp=now_text())
    allocation = installed.api.get(f"{CLAIMS}/have")["status"]["allocation"]
    create_pod(installed.api, holder)
    seen_inside(installed.api, holder)
    create_pod(installed.api, pod)
    wait_pending(installed.api, pod, "cannot allocate all claims")

    def changed() -> bool:
        return bool(installed.api.get(f"{CLAIMS}/have")["status"].get("allocation") != allocation)

    never(changed, "the allocated claim was cleared", for_s=QUIET_S)
    delete_gpu_pod(installed, holder)
    seen = seen_inside(installed.api, pod)
    assert (len(seen.numbers), seen.numbers) == (2, claimed(installed, pod))
    assert not changed()
    delete_gpu_pod(installed, pod)
    for unused in (path, f"{CLAIMS}/have"):
        installed.api.delete(unused)


def test_plugin_refuses_a_device_that_another_claim_holds(installed: Cluster) -> None:
    """The API lets two claims have one device; the plugin is the last guard. The second runs when the first went."""
    first, second = (Pod(f"holder-{name}", claims={"gpu": name}) for name in ("a", "b"))
    with without_controller(installed):
        for pod, name in ((first, "a"), (second, "b")):
            allocate_by_hand(installed, name, timestamp=now_text())
            create_pod(installed.api, pod)
            if pod is first:
                numbers = seen_inside(installed.api, pod).numbers
        wait_event(installed.api, second, "FailedPrepareDynamicResources", "default/a")
        assert wait_phase(installed.api, second, "Pending")
        delete_gpu_pod(installed, first)
        assert seen_inside(installed.api, second).numbers == numbers
    delete_gpu_pod(installed, second)


@pytest.mark.parametrize("controller_runs", [True, False])
def test_claim_that_tolerates_the_taint_is_allocated_once(installed: Cluster, *, controller_runs: bool) -> None:
    """Either of the two may take it; what the plugin does is the same."""
    toleration = {"key": f"{DRIVER}/controller-allocated", "operator": "Exists"}
    create_template(installed.api, "tolerant", claim_spec(2, tolerations=[toleration]))
    pod = Pod("tolerant", templates={"gpus": "tolerant"})
    with nullcontext() if controller_runs else without_controller(installed):
        create_pod(installed.api, pod)
        seen = seen_inside(installed.api, pod)
    assert len(seen.numbers) == 2
    assert seen.numbers == claimed(installed, pod)
    delete_gpu_pod(installed, pod)
    installed.api.delete(f"{TEMPLATES}/tolerant")


def test_pod_that_no_node_matches_gets_no_devices(installed: Cluster) -> None:
    pod = Pod("nowhere", templates={"gpus": "sched-1"}, node_selector={"zone": "elsewhere"})
    create_pod(installed.api, pod)
    wait_pending(installed.api, pod, "affinity/selector")
    never(lambda: claimed(installed, pod), "devices are allocated for a pod that cannot run", for_s=QUIET_S)
    wait_event(installed.api, pod, "WaitingForGPUs", "")
    delete_gpu_pod(installed, pod)


def test_pod_whose_node_closed_after_the_allocation_runs_when_it_opens_again(installed: Cluster) -> None:
    """The node is closed before the scheduler's look, so that it refuses the only node that the allocation allows."""
    pod = Pod("stuck", templates={"gpus": "sched-2"})
    node = f"/api/v1/nodes/{NODE_NAME}"
    installed.control_plane.scheduler.stop()
    create_pod(installed.api, pod)
    eventually(lambda: claimed(installed, pod), "devices are allocated", within_s=RUN_S)
    installed.api.patch(node, {"spec": {"unschedulable": True}})
    installed.control_plane.scheduler.start()
    wait_pending(installed.api, pod, "were unschedulable")
    installed.api.patch(node, {"spec": {"unschedulable": None}})
    seen = seen_inside(installed.api, pod)
    assert len(seen.numbers) == 2
    assert seen.numbers == claimed(installed, pod)
    delete_gpu_pod(installed, pod)


def test_named_claim_is_freed_within_seconds_after_its_pod_went(installed: Cluster) -> None:
    path = create_claim(installed.api, "kept", claim_spec())
    pod = Pod("short", claims={"gpu": "kept"})
    create_pod(installed.api, pod)
    seen_inside(installed.api, pod)
    delete_pod(installed.api, pod, grace_s=1)
    wait_free(installed, installed.api.get(path))
    eventually(lambda: not installed.api.get(path)["metadata"].get("finalizers"), "the finalizer goes", within_s=10)
    assert "reservedFor" not in installed.api.get(path).get("status", {})
    installed.api.delete(path)


def test_all_claims_of_a_pod_are_allocated_at_once(installed: Cluster) -> None:
    pod = Pod("several", templates={"one": "sched-1", "two": "sched-2"})
    create_pod(installed.api, pod)
    seen = seen_inside(installed.api, pod)
    numbers = gpu_numbers(installed)
    by_claim = {name: numbers.of_claim(claim) for name, claim in pod_claims(installed.api, pod).items()}
    assert {name: len(given) for name, given in by_claim.items()} == {"one": 1, "two": 2}
    assert seen.numbers == by_claim["one"] | by_claim["two"]
    assert len(seen.numbers) == 3
    delete_gpu_pod(installed, pod)


def test_pod_whose_claims_do_not_fit_together_gets_none(installed: Cluster) -> None:
    pod = Pod("too-much", templates={"all": f"sched-{GPU_COUNT}", "one": "sched-1"})
    create_pod(installed.api, pod)
    wait_event(installed.api, pod, "WaitingForGPUs", "")
    never(lambda: claimed(installed, pod), "a part of the claims is allocated", for_s=QUIET_S)
    delete_gpu_pod(installed, pod)


def test_waiting_pod_never_preempts_for_our_devices(installed: Cluster) -> None:
    """And it gets them as soon as they are free."""
    installed.api.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        },
    )
    low = Pod("low", templates={"gpus": f"sched-{GPU_COUNT}"})
    high = Pod("high", templates={"gpus": "sched-1"}, priority_class="urgent")
    create_pod(installed.api, low)
    seen_inside(installed.api, low)
    create_pod(installed.api, high)
    wait_pending(installed.api, high, "Preemption is not helpful")
    assert wait_phase(installed.api, low, "Running")["metadata"].get("deletionTimestamp") is None
    delete_gpu_pod(installed, low)
    assert len(seen_inside(installed.api, high).numbers) == 1
    delete_gpu_pod(installed, high)
    installed.api.delete("/apis/scheduling.k8s.io/v1/priorityclasses/urgent")


def test_claim_that_is_deleted_while_in_use_stays_until_its_pod_went(installed: Cluster) -> None:
    path = create_claim(installed.api, "deleted", claim_spec())
    pod = Pod("user", claims={"gpu": "deleted"})
    create_pod(installed.api, pod)
    numbers = seen_inside(installed.api, pod).numbers
    installed.api.delete(path)
    never(lambda: installed.api.find(path) is None, "a claim in use went", for_s=2)
    assert claimed(installed, pod) == numbers
    delete_pod(installed.api, pod, grace_s=1)
    eventually(lambda: installed.api.find(path) is None, "the claim goes with its last pod", within_s=30)


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
