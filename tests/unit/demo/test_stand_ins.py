"""The stand-ins for kube-controller-manager and kube-scheduler against the embedded API server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.names import DEFAULT_DRIVER_NAME, DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.kube_controller_manager import KubeControllerManager
from dracaena.demo.kube_scheduler import KubeScheduler
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from dracaena.process.clock import SystemClock
from support.kube import client_for, wait_for
from support.workload import (
    NAMESPACE,
    allocate,
    claims,
    create_claim,
    create_pod,
    create_template,
    get_claim,
    get_pod,
    pod_names,
)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer(port=0) as server:
        yield client_for(server.url, tmp_path)


@pytest.fixture
def controller_manager(client: KubeClient) -> Iterator[KubeControllerManager]:
    part = KubeControllerManager(client, SystemClock())
    part.start()
    yield part
    part.stop()
    assert part.failure is None


@pytest.fixture
def scheduler(client: KubeClient) -> Iterator[KubeScheduler]:
    part = KubeScheduler(client, SystemClock())
    part.start()
    yield part
    part.stop()
    assert part.failure is None


def create_node(client: KubeClient, name: str) -> Node:
    """Create a node with room for some pods, without the not-ready taint that every new node gets."""
    client.create(Node, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}})
    return client.merge_patch(Node, name, {"spec": {"taints": None}})


def condition(client: KubeClient, name: str) -> tuple[str, str, str]:
    conditions = {one.type: one for one in get_pod(client, name).status.conditions}
    one = conditions.get("PodScheduled")
    return (one.status, one.reason, one.message) if one else ("", "", "")


# kube-controller-manager


@pytest.mark.usefixtures("controller_manager")
def test_a_claim_is_made_from_the_template_and_named_in_the_pod(client: KubeClient) -> None:
    create_template(client, "t", count=3)
    pod = create_pod(client, "p1", template="t")
    wait_for(lambda: get_pod(client, "p1").status.resource_claim_statuses, "the claim's name in the pod")
    (status,) = get_pod(client, "p1").status.resource_claim_statuses
    (claim,) = claims(client)
    assert (status.name, status.resource_claim_name) == ("gpus", claim.metadata.name)
    assert claim.metadata.name.startswith("p1-gpus-")
    assert claim.metadata.owner_references[0].uid == pod.metadata.uid
    assert claim.spec["devices"]["requests"][0]["exactly"]["count"] == 3


@pytest.mark.usefixtures("controller_manager")
def test_a_missing_template_is_said_and_made_up_for_when_it_comes(client: KubeClient) -> None:
    create_pod(client, "p1", template="t")
    wait_for(lambda: client.list(Event).items, "an event")
    (event,) = client.list(Event).items
    assert event.reason == "FailedResourceClaimCreation"
    assert '"t" not found' in event.message
    create_template(client, "t")
    wait_for(lambda: claims(client), "the claim")


@pytest.mark.usefixtures("controller_manager")
def test_a_named_claim_is_freed_when_its_only_pod_goes(client: KubeClient) -> None:
    create_claim(client, "c1")
    allocate(client, "c1", "n1", pods=(create_pod(client, "p1", claim="c1"),))
    client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    wait_for(lambda: get_claim(client, "c1").status.allocation is None, "the allocation to be cleared")
    wait_for(
        lambda: DELETE_PROTECTION_FINALIZER not in get_claim(client, "c1").metadata.finalizers, "the finalizer to go"
    )
    assert get_claim(client, "c1").status.reserved_for == []


@pytest.mark.usefixtures("controller_manager")
def test_a_claim_with_another_pod_keeps_its_allocation(client: KubeClient) -> None:
    create_claim(client, "c1")
    first, second = create_pod(client, "p1", claim="c1"), create_pod(client, "p2", claim="c1")
    allocate(client, "c1", "n1", pods=(first, second))
    client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    wait_for(lambda: len(get_claim(client, "c1").status.reserved_for) == 1, "one reservation to go")
    assert get_claim(client, "c1").status.reserved_for[0].name == "p2"
    assert get_claim(client, "c1").status.allocation is not None


@pytest.mark.usefixtures("controller_manager")
def test_a_pod_of_the_same_name_does_not_inherit_a_reservation(client: KubeClient) -> None:
    create_claim(client, "c1")
    allocate(client, "c1", "n1", pods=(create_pod(client, "p1", claim="c1"),))
    client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    create_pod(client, "p1", claim="c1")
    wait_for(lambda: get_claim(client, "c1").status.allocation is None, "the allocation to be cleared")


@pytest.mark.usefixtures("controller_manager")
def test_a_generated_claim_goes_with_its_pod_although_it_was_allocated(client: KubeClient) -> None:
    create_template(client, "t")
    pod = create_pod(client, "p1", template="t")
    wait_for(lambda: claims(client), "the claim")
    allocate(client, claims(client)[0].metadata.name, "n1", pods=(pod,))
    client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    wait_for(lambda: claims(client) == (), "the claim to be gone")


@pytest.mark.usefixtures("controller_manager")
def test_a_generated_claim_goes_when_its_pod_ends(client: KubeClient) -> None:
    create_template(client, "t")
    pod = create_pod(client, "p1", template="t")
    wait_for(lambda: get_pod(client, "p1").status.resource_claim_statuses, "the claim")
    allocate(client, claims(client)[0].metadata.name, "n1", pods=(pod,))
    client.merge_patch(Pod, "p1", {"status": {"phase": "Succeeded"}}, namespace=NAMESPACE, subresource="status")
    wait_for(lambda: claims(client) == (), "the claim to be gone")
    assert pod_names(client) == ["p1"]


@pytest.mark.usefixtures("controller_manager")
def test_a_claim_that_was_never_reserved_stays_allocated_until_it_is_deleted(client: KubeClient) -> None:
    create_claim(client, "c1")
    create_claim(client, "c2")
    allocate(client, "c1", "n1")
    allocate(client, "c2", "n1", pods=(create_pod(client, "p1", claim="c2"),))
    client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
    wait_for(lambda: get_claim(client, "c2").status.allocation is None, "the reserved claim to be freed")
    assert get_claim(client, "c1").status.allocation is not None
    client.delete(ResourceClaim, "c1", namespace=NAMESPACE)
    wait_for(lambda: [claim.metadata.name for claim in claims(client)] == ["c2"], "the deleted claim to be gone")


@pytest.mark.usefixtures("controller_manager")
def test_a_pod_bound_past_the_scheduler_gets_its_reservation(client: KubeClient) -> None:
    create_claim(client, "c1")
    allocate(client, "c1", "n1")
    pod = create_pod(client, "p1", claim="c1", node="n1")
    wait_for(lambda: get_claim(client, "c1").status.reserved_for, "the reservation")
    assert get_claim(client, "c1").status.reserved_for[0].uid == pod.metadata.uid


@pytest.mark.usefixtures("controller_manager")
def test_slices_go_with_their_node(client: KubeClient) -> None:
    node = create_node(client, "n1")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node.metadata.uid, "controller": True}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DEFAULT_DRIVER_NAME, "nodeName": "n1", "pool": pool, "devices": []}
    client.create(ResourceSlice, {"metadata": {"name": "s1", "ownerReferences": [owner]}, "spec": spec})
    client.delete(Node, "n1")
    wait_for(lambda: client.list(ResourceSlice).items == (), "the slice to be gone")


@pytest.mark.usefixtures("controller_manager")
def test_a_node_that_says_ready_loses_the_not_ready_taint_and_no_other(client: KubeClient) -> None:
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    client.create(Node, {"metadata": {"name": "n1"}, "spec": {"taints": [taint]}})
    client.create(Node, {"metadata": {"name": "n2"}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    client.merge_patch(Node, "n1", {"status": {"conditions": [ready]}}, subresource="status")
    wait_for(lambda: [one.key for one in client.get(Node, "n1").spec.taints] == ["team"], "the taint to go")
    assert [one.key for one in client.get(Node, "n2").spec.taints] == ["node.kubernetes.io/not-ready"]


# kube-scheduler


@pytest.mark.usefixtures("scheduler")
def test_a_pod_is_bound_to_the_node_of_its_claim_and_reserved(client: KubeClient) -> None:
    for name in ("n1", "n2"):
        create_node(client, name)
    create_claim(client, "c1")
    pod = create_pod(client, "p1", claim="c1")
    refused = ("False", "Unschedulable", "0/2 nodes are available: 2 cannot allocate all claims.")
    # A first try may come before the watch shows that the second node has lost the taint of new nodes.
    wait_for(lambda: condition(client, "p1") == refused, "the pod to be refused by both nodes")
    allocate(client, "c1", "n2")
    wait_for(lambda: get_pod(client, "p1").spec.node_name == "n2", "the pod to be bound")
    assert [consumer.uid for consumer in get_claim(client, "c1").status.reserved_for] == [pod.metadata.uid]
    assert condition(client, "p1")[0] == "True"


@pytest.mark.usefixtures("scheduler")
def test_an_allocation_without_a_timestamp_cannot_be_reserved(client: KubeClient) -> None:
    create_node(client, "n1")
    create_claim(client, "c1")
    create_pod(client, "p1", claim="c1")
    allocate(client, "c1", "n1", timestamp=None)
    wait_for(lambda: condition(client, "p1")[1] == "SchedulerError", "the failure")
    assert "field is immutable" in condition(client, "p1")[2]
    assert get_pod(client, "p1").spec.node_name == ""


@pytest.mark.usefixtures("scheduler")
def test_a_reserved_allocation_needs_no_timestamp(client: KubeClient) -> None:
    create_node(client, "n1")
    create_claim(client, "c1")
    pod = create_pod(client, "p1", claim="c1")
    allocate(client, "c1", "n1", pods=(pod,), timestamp=None)
    wait_for(lambda: get_pod(client, "p1").spec.node_name == "n1", "the pod to be bound")


@pytest.mark.usefixtures("scheduler")
def test_gated_pods_and_those_of_other_schedulers_are_left_alone(client: KubeClient) -> None:
    create_node(client, "n1")
    create_claim(client, "c1")
    gated = create_pod(client, "gated", claim="c1", schedulingGates=[{"name": "wait"}])
    other = create_pod(client, "other", claim="c1", schedulerName="mine")
    mine = create_pod(client, "p1", claim="c1")
    allocate(client, "c1", "n1", pods=(gated, other, mine))
    wait_for(lambda: get_pod(client, "p1").spec.node_name == "n1", "the plain pod to be bound")
    assert get_pod(client, "gated").spec.node_name == ""
    assert get_pod(client, "other").spec.node_name == ""


@pytest.mark.usefixtures("scheduler")
def test_a_pod_waits_outside_the_queue_until_its_claim_exists(client: KubeClient) -> None:
    create_node(client, "n1")
    create_pod(client, "p1", claim="c1")
    create_claim(client, "c2")
    create_pod(client, "p2", claim="c2")
    wait_for(lambda: condition(client, "p2")[0] == "False", "the other pod to be refused")
    assert condition(client, "p1") == ("", "", "")
