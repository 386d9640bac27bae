from __future__ import annotations

from dracaena.api.objects import Container, ContainerResources, Node, NodeStatus, ObjectMeta, Pod, PodSpec
from dracaena.api.objects import NodeSpec as NodeSpecWire
from dracaena.api.resource_objects import AllocationResult, ResourceClaim, ResourceClaimStatus
from dracaena.demo.kube_scheduler import Unschedulable, choose_node

ROOM = NodeStatus(allocatable={"cpu": "4", "pods": "110"})
NODES = tuple(Node(metadata=ObjectMeta(name=name), status=ROOM) for name in ("n1", "n2", "n3"))
POD = Pod(metadata=ObjectMeta(name="p", namespace="default", uid="p-uid"), spec=PodSpec())


def claim(*, node: str | None = None, deleting: bool = False, requests: int = 1) -> ResourceClaim:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = AllocationResult(node_selector={"nodeSelectorTerms": [{"matchFields": fields}]}) if node else None
    meta = ObjectMeta(name="c", namespace="default", deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None)
    spec = {"devices": {"requests": [{"name": f"r{number}"} for number in range(requests)]}} if requests else {}
    return ResourceClaim(metadata=meta, spec=spec, status=ResourceClaimStatus(allocation=allocation))


def test_a_pod_keeps_to_the_node_of_its_allocated_claims() -> None:
    assert choose_node(POD, [claim(node="n2")], NODES, {}) == "n2"
    assert choose_node(POD, [claim(node="n2"), claim(node="n2")], NODES, {"n2": [POD] * 50}) == "n2"


def test_a_pod_waits_while_one_claim_is_not_allocated() -> None:
    waits = Unschedulable("0/3 nodes are available: 3 cannot allocate all claims.")
    assert choose_node(POD, [claim()], NODES, {}) == waits


def test_reasons_are_counted_by_node() -> None:
    choice = choose_node(POD, [claim(node="n2"), claim()], NODES, {})
    assert choice == Unschedulable(
        "0/3 nodes are available: 1 cannot allocate all claims, 2 resourceclaim not available on the node."
    )


def test_claims_of_two_nodes_fit_nowhere() -> None:
    assert isinstance(choose_node(POD, [claim(node="n1"), claim(node="n2")], NODES, {}), Unschedulable)


def test_a_claim_that_is_being_deleted_is_not_used() -> None:
    assert choose_node(POD, [claim(node="n1", deleting=True)], NODES, {}) == Unschedulable(
        'resourceclaim "c" is being deleted'
    )


def test_the_node_with_fewest_pods_is_taken_then_the_first_by_name() -> None:
    assert choose_node(POD, [], NODES, {}) == "n1"
    assert choose_node(POD, [], NODES, {"n1": [POD] * 2, "n2": [POD], "n3": [POD]}) == "n2"


def test_an_allocation_on_a_cordoned_node_leads_nowhere() -> None:
    cordoned = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpecWire(unschedulable=True), status=ROOM)
    assert choose_node(POD, [claim(node="n1")], (cordoned,), {}) == Unschedulable(
        "0/1 nodes are available: 1 node(s) were unschedulable."
    )


def test_a_claim_without_requests_is_refused_by_name_until_somebody_allocates_it() -> None:
    assert choose_node(POD, [claim(node="n1"), claim(requests=0)], NODES, {}) == Unschedulable(
        'the embedded scheduler does not implement the allocation of a claim without requests (resourceclaim "c")'
    )
    assert choose_node(POD, [claim(node="n1", requests=0)], NODES, {}) == "n1"


def test_without_nodes_the_pod_waits() -> None:
    assert choose_node(POD, [], (), {}) == Unschedulable("0/0 nodes are available: no nodes.")


def with_cpu(amount: str) -> Pod:
    container = Container(name="c", resources=ContainerResources(requests={"cpu": amount}))
    return Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[container]))


def test_a_node_whose_cpu_is_taken_is_not_chosen_and_the_pod_waits_when_all_are() -> None:
    taken = {"n1": [with_cpu("3")], "n2": [with_cpu("1"), with_cpu("1")], "n3": [with_cpu("4")]}
    assert choose_node(with_cpu("2"), [], NODES, taken) == "n2"
    assert choose_node(with_cpu("3"), [], NODES, taken) == Unschedulable("0/3 nodes are available: 3 Insufficient cpu.")
