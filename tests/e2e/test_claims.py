"""Kinds of claims and pods: shared, named, generated, half allocated by others, for admins, gated, on named nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.decisions import decision_in
from e2e.installation import DRIVER
from e2e.made_up import CONTROLLER_PORT, FOUR, TWO, MadeUpCluster, devices_of, node_of
from e2e.pods import (
    CLAIMS,
    NAMESPACE,
    Pod,
    claim_spec,
    create_claim,
    create_pod,
    create_template,
    pod_claims,
    wait_event,
)
from e2e.waiting import eventually, never
from support.readiness import metric

QUIET_S = 1.5
"""The controller decides within 0.1 s, kube-scheduler too."""

FREED_S = 20.0


def users(claim: Any) -> set[str]:
    return {user["name"] for user in claim["status"].get("reservedFor", ())}


def held(cluster: MadeUpCluster) -> list[tuple[str, str]]:
    return [device for claim in cluster.api.items(CLAIMS) for device in devices_of(claim)]


def test_pods_that_share_a_claim_run_on_its_node_also_the_one_that_comes_later(made_up: MadeUpCluster) -> None:
    """The first two come at once, the third brings a claim of its own, and the claim stays until the last one went."""
    made_up.add_node("a", FOUR)
    made_up.add_node("b", FOUR)
    path = create_claim(made_up.api, "shared", claim_spec(2))
    create_template(made_up.api, "own", claim_spec(1))
    pods = [Pod(f"user-{number}", claims={"shared": "shared"}) for number in range(2)]
    for pod in pods:
        create_pod(made_up.api, pod)
    assert len({made_up.wait_bound(pod) for pod in pods}) == 1
    before = devices_of(made_up.api.get(path))
    pods.append(Pod("user-2", claims={"shared": "shared"}, templates={"own": "own"}))
    create_pod(made_up.api, pods[2])
    node = made_up.wait_bound(pods[2])
    assert {node} == {pool for pool, _ in held(made_up)}
    made_up.check()
    assert (devices_of(made_up.api.get(path)), users(made_up.api.get(path))) == (before, {"user-0", "user-1", "user-2"})
    for pod in pods[:2]:
        made_up.api.delete(pod.path, grace_s=0)
    eventually(lambda: users(made_up.api.get(path)) == {"user-2"}, "two reservations go", within_s=FREED_S)
    assert devices_of(made_up.api.get(path)) == before
    made_up.api.delete(pods[2].path, grace_s=0)
    eventually(lambda: not devices_of(made_up.api.get(path)), "the claim is freed", within_s=FREED_S)


def test_a_pod_whose_shared_claim_leaves_no_room_beside_it_waits_and_nothing_moves(made_up: MadeUpCluster) -> None:
    """Its own claim would fit on the other node only."""
    made_up.add_node("a", TWO)
    create_claim(made_up.api, "full", claim_spec(2))
    first = Pod("first", claims={"full": "full"})
    create_pod(made_up.api, first)
    made_up.wait_bound(first)
    made_up.add_node("b", TWO)
    create_template(made_up.api, "one", claim_spec(1))
    second = Pod("second", claims={"full": "full"}, templates={"one": "one"})
    create_pod(made_up.api, second)
    wait_event(made_up.api, second, "WaitingForGPUs", "0/2 nodes fit")
    assert {pool for pool, _ in held(made_up)} == {"a"}
    made_up.check()


def test_a_claim_that_somebody_else_allocated_decides_the_node_of_the_others(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO)  # fuller than b after the pod: our own choice
    made_up.add_node("b", FOUR)
    create_claim(made_up.api, "theirs", claim_spec(1))
    made_up.allocate_by_hand("theirs", "b", made_up.devices("b")[3])
    create_template(made_up.api, "ours", claim_spec(2))
    pod = Pod("beside", claims={"theirs": "theirs"}, templates={"ours": "ours"})
    create_pod(made_up.api, pod)
    assert made_up.wait_bound(pod) == "b"
    claims = pod_claims(made_up.api, pod)
    assert devices_of(claims["theirs"]) == (("b", made_up.devices("b")[3]),)
    assert decision_in(claims["theirs"]) is None
    assert decision_in(claims["ours"]) is not None
    assert len(devices_of(claims["ours"])) == 2
    made_up.check()


def test_named_and_generated_claims_of_one_pod_are_decided_together(made_up: MadeUpCluster) -> None:
    """Only b has room for both; each alone would rather go to a."""
    made_up.add_node("a", TWO)
    made_up.add_node("b", FOUR)
    create_claim(made_up.api, "named", claim_spec(2))
    create_template(made_up.api, "generated", claim_spec(1))
    pod = Pod("both", claims={"named": "named"}, templates={"generated": "generated"})
    create_pod(made_up.api, pod)
    assert made_up.wait_bound(pod) == "b"
    made_up.check()


def test_a_gated_pod_gets_devices_when_its_gate_is_gone(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", TWO)
    create_template(made_up.api, "gated", claim_spec(1))
    pod = Pod("gated", templates={"gpus": "gated"}, more={"schedulingGates": [{"name": "example.com/quota"}]})
    create_pod(made_up.api, pod)
    eventually(lambda: pod_claims(made_up.api, pod), "its claim is made", within_s=FREED_S)
    never(lambda: made_up.proxy.writes, "something is written for a gated pod", for_s=QUIET_S)
    made_up.api.patch(pod.path, {"spec": {"schedulingGates": None}})
    assert made_up.wait_bound(pod) == "a"
    made_up.check()


def test_a_pod_that_names_its_node_gets_devices_there(made_up: MadeUpCluster) -> None:
    """kube-scheduler never sees it. Where there is no room it waits, and hears why."""
    made_up.add_node("a", TWO)
    made_up.add_node("b", FOUR)
    create_template(made_up.api, "two", claim_spec(2))
    here, late = (Pod(name, templates={"gpus": "two"}, more={"nodeName": "a"}) for name in ("here", "late"))
    create_pod(made_up.api, here)
    (claim,) = made_up.wait_allocated(here).values()
    assert (node_of(claim), users(claim)) == ("a", {"here"})
    create_pod(made_up.api, late)
    wait_event(made_up.api, late, "WaitingForGPUs", "0/2 nodes fit")
    made_up.api.delete(here.path, grace_s=0)
    (claim,) = made_up.wait_allocated(late).values()
    assert node_of(claim) == "a"
    made_up.check()


@pytest.fixture
def admin_access(made_up: MadeUpCluster) -> Iterator[None]:
    """Let claims of the namespace ask for admin access."""
    path, label = f"/api/v1/namespaces/{NAMESPACE}", "resource.kubernetes.io/admin-access"
    made_up.api.patch(path, {"metadata": {"labels": {label: "true"}}})
    yield
    made_up.api.patch(path, {"metadata": {"labels": {label: None}}})


@pytest.mark.usefixtures("admin_access")
def test_a_claim_with_admin_access_takes_nothing_from_others(made_up: MadeUpCluster) -> None:
    """It gets devices that are in use, and those that are free stay free."""
    made_up.add_node("a", TWO)
    create_template(made_up.api, "both", claim_spec(2))
    create_claim(made_up.api, "look", claim_spec(2, adminAccess=True))
    monitor = Pod("monitor", claims={"gpus": "look"})
    create_pod(made_up.api, monitor)
    assert made_up.wait_bound(monitor) == "a"
    user, second = (Pod(name, templates={"gpus": "both"}) for name in ("user", "second"))
    create_pod(made_up.api, user)
    assert made_up.wait_bound(user) == "a"
    results = made_up.api.get(f"{CLAIMS}/look")["status"]["allocation"]["devices"]["results"]
    assert {result["device"] for result in results if result["adminAccess"]} == set(made_up.devices("a"))
    create_claim(made_up.api, "again", claim_spec(2, adminAccess=True))
    create_pod(made_up.api, Pod("monitor-2", claims={"gpus": "again"}))
    assert made_up.wait_bound(Pod("monitor-2")) == "a"
    create_pod(made_up.api, second)
    wait_event(made_up.api, second, "WaitingForGPUs", "0/1 nodes fit")
    made_up.check()


def test_an_extended_resource_is_left_to_the_scheduler(made_up: MadeUpCluster) -> None:
    """It makes and allocates the claim itself, from devices without our taint only."""
    resource = "example.com/gpu"
    made_up.add_node("ours", FOUR)
    device_class = "/apis/resource.k8s.io/v1/deviceclasses"
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    spec = {"extendedResourceName": resource, "selectors": [selector]}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    made_up.api.create(device_class, {**kind, "metadata": {"name": "extended"}, "spec": spec})
    try:
        pod = Pod("extended", more={"containers": [extended_container(resource)]})
        create_pod(made_up.api, pod)
        refused = lambda: "PodScheduled" in str(made_up.api.get(pod.path)["status"].get("conditions"))  # noqa: E731
        eventually(refused, "kube-scheduler refuses it", within_s=FREED_S)
        never(lambda: made_up.proxy.writes, "we wrote something about it", for_s=QUIET_S)
        made_up.add_node("theirs", TWO, tainted_devices=False)
        assert made_up.wait_bound(pod) == "theirs"
        (claim,) = made_up.api.items(CLAIMS)
        assert {pool for pool, _ in devices_of(claim)} == {"theirs"}
        assert made_up.proxy.writes == []
        # What it holds is not ours to give: an ordinary pod goes to our node, and has all four devices there.
        create_template(made_up.api, "four", claim_spec(4))
        other = Pod("ordinary", templates={"gpus": "four"})
        create_pod(made_up.api, other)
        assert made_up.wait_bound(other) == "ours"
        made_up.check()
    finally:
        made_up.api.delete(f"{device_class}/extended")


def extended_container(resource: str) -> dict[str, Any]:
    amounts = {resource: "2"}
    return {"name": "main", "image": "example/app:1.0", "resources": {"requests": amounts, "limits": amounts}}


def test_a_claim_that_is_deleted_while_its_pod_waits_is_missed_and_found_again(made_up: MadeUpCluster) -> None:
    """The pod gets nothing for the old one, and what it asks for now as soon as somebody makes the claim again."""
    create_claim(made_up.api, "lost", claim_spec(1))
    pod = Pod("waits", claims={"gpus": "lost"})
    create_pod(made_up.api, pod)
    wait_event(made_up.api, pod, "WaitingForGPUs", "0/0 nodes fit")
    made_up.api.delete(f"{CLAIMS}/lost")
    # The controller may see the node sooner than this deletion: each kind has a watch of its own.
    missed = 'dracaena_controller_waiting_pods{reason="claim-missing"}'
    eventually(lambda: metric(CONTROLLER_PORT, missed) == 1.0, "the claim is missed", within_s=FREED_S)
    made_up.add_node("a", TWO)
    never(lambda: made_up.proxy.writes, "something is written for a claim that is gone", for_s=QUIET_S)
    create_claim(made_up.api, "lost", claim_spec(2))
    assert made_up.wait_bound(pod) == "a"
    made_up.check()


def test_a_claim_that_is_deleted_before_its_pod_is_bound_gives_its_devices_back(made_up: MadeUpCluster) -> None:
    """kube-scheduler binds no pod to a claim that is going; the devices are free when the pod went."""
    made_up.add_node("a", TWO)
    create_claim(made_up.api, "going", claim_spec(2))
    pod = Pod("never", claims={"gpus": "going"})
    with made_up.without_scheduler():
        create_pod(made_up.api, pod)
        made_up.wait_allocated(pod)
        made_up.api.delete(f"{CLAIMS}/going")
    never(lambda: made_up.api.get(pod.path)["spec"].get("nodeName"), "the pod is bound", for_s=QUIET_S)
    made_up.api.delete(pod.path, grace_s=0)
    eventually(lambda: made_up.api.find(f"{CLAIMS}/going") is None, "the claim goes", within_s=FREED_S)
    create_template(made_up.api, "two", claim_spec(2))
    next_one = Pod("next", templates={"gpus": "two"})
    create_pod(made_up.api, next_one)
    assert made_up.wait_bound(next_one) == "a"
    wait_event(made_up.api, next_one, "GPUsAllocated", "")
    made_up.check()
