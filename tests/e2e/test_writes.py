"""What the controller writes for one pod, request by request, and what becomes of it when something comes between."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from e2e.installation import DRIVER
from e2e.made_up import FINALIZER, FOUR, MadeUpCluster, devices_of, node_of
from e2e.pods import CLAIMS, Pod, claim_spec, create_claim, create_pod, create_template
from e2e.waiting import eventually
from support.write_proxy import Cut, Write

WRITE_TIMEOUT_S = 10
"""What the controller tells the server: a write that takes longer does not land."""

CUT_S = 20.0
"""From a pod's creation until the write is there that a test waits for."""

FREED_S = 20.0
"""For kube-controller-manager to free a claim whose pod is gone: it does so within 2 s."""


def claim_writes(cluster: MadeUpCluster) -> list[Write]:
    return [write for write in cluster.proxy.writes if write.kind.startswith("resourceclaims")]


def is_allocation(write: Write) -> bool:
    return write.kind == "resourceclaims/status" and bool(write.body["status"].get("allocation"))


def two_claims(cluster: MadeUpCluster, name: str) -> Pod:
    """Make a pod with two claims, `NAME-x` for two GPUs and `NAME-y` for one."""
    for suffix, count in (("x", 2), ("y", 1)):
        create_claim(cluster.api, f"{name}-{suffix}", claim_spec(count))
    pod = Pod(name, claims={"x": f"{name}-x", "y": f"{name}-y"})
    create_pod(cluster.api, pod)
    return pod


def check_all_four_are_free(cluster: MadeUpCluster) -> None:
    """Check it by a pod that gets them all."""
    create_template(cluster.api, "all", claim_spec(4))
    pod = Pod("all", templates={"gpus": "all"})
    create_pod(cluster.api, pod)
    cluster.wait_bound(pod)
    cluster.check()


def test_a_decision_is_four_guarded_writes_of_which_none_comes_twice(made_up: MadeUpCluster) -> None:
    """Both finalizers, then both allocations with the decision, time and reservation."""
    made_up.add_node("a", FOUR)
    pod = two_claims(made_up, "pair")
    assert made_up.wait_bound(pod) == "a"
    writes = claim_writes(made_up)
    assert [(write.method, write.kind, write.name, write.status) for write in writes] == [
        ("PATCH", "resourceclaims", "pair-x", 200),
        ("PATCH", "resourceclaims", "pair-y", 200),
        ("PATCH", "resourceclaims/status", "pair-x", 200),
        ("PATCH", "resourceclaims/status", "pair-y", 200),
    ]
    assert all(int(write.query["timeout"].removesuffix("s")) == WRITE_TIMEOUT_S for write in writes)
    for write in writes[:2]:
        assert write.body["metadata"]["finalizers"] == [FINALIZER]
        assert "annotations" not in write.body["metadata"]
    uid = made_up.api.get(pod.path)["metadata"]["uid"]
    for mark, allocation in zip(writes[:2], writes[2:], strict=True):
        assert allocation.body["metadata"]["resourceVersion"] == mark.answer["metadata"]["resourceVersion"]
        assert allocation.body["status"]["reservedFor"] == [{"resource": "pods", "name": "pair", "uid": uid}]
        (entry,) = allocation.answer["status"]["allocation"]["devices"]["config"]
        assert (entry["source"], entry["opaque"]["driver"]) == ("FromClass", f"decision.{DRIVER}")
        assert entry["opaque"]["parameters"]["node"] == "a"
        age = datetime.now(UTC) - datetime.fromisoformat(allocation.body["status"]["allocation"]["allocationTimestamp"])
        assert -2 < age.total_seconds() < CUT_S
    made_up.check()


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_controller_killed_between_two_writes_is_followed_by_one_that_completes_them(
    made_up: MadeUpCluster, writes: int
) -> None:
    """On the node that the first one chose, although another one fits by now. What stands is not written anew."""
    made_up.add_node("a", FOUR)

    def kill(_write: Write) -> None:
        if len(claim_writes(made_up)) == writes:
            made_up.controller.kill()
            raise Cut

    made_up.proxy.after = kill
    pod = two_claims(made_up, "cut")
    eventually(lambda: not made_up.controller.is_running, "the controller is killed", within_s=CUT_S)
    made_up.add_node("b", FOUR)
    before = {claim["metadata"]["name"]: devices_of(claim) for claim in made_up.api.items(CLAIMS)}
    assert sum(bool(devices) for devices in before.values()) == max(0, writes - 2)
    made_up.proxy.forget()
    made_up.start_controller()
    node = made_up.wait_bound(pod)
    after = made_up.wait_allocated(pod)
    if before["cut-x"]:
        assert (node, devices_of(after["x"])) == ("a", before["cut-x"])
        assert {write.name for write in claim_writes(made_up)} == {"cut-y"}
    assert [len(devices_of(claim)) for claim in after.values()] == [2, 1]
    made_up.check()


def test_what_can_no_longer_be_completed_is_taken_back_and_planned_elsewhere(made_up: MadeUpCluster) -> None:
    """Somebody takes the rest of the node after the first allocation and before the second."""
    made_up.add_node("a", FOUR)
    made_up.add_node("b", FOUR)
    create_claim(made_up.api, "thief", claim_spec(2))
    with made_up.proxy.held(lambda write: is_allocation(write) and write.name == "lost-y") as gate:
        pod = two_claims(made_up, "lost")
        assert gate.reached.wait(CUT_S)
        gate.cut = True
        made_up.controller.kill()
    (first,) = [write for write in claim_writes(made_up) if is_allocation(write) and write.status == 200]
    node = node_of(first.answer)
    held = {device for _, device in devices_of(first.answer)}
    made_up.allocate_by_hand("thief", node, *(name for name in made_up.devices(node) if name not in held))
    made_up.start_controller()
    assert {node, made_up.wait_bound(pod)} == {"a", "b"}
    made_up.check()


def test_a_write_that_meets_a_conflict_is_completed_on_the_same_node(made_up: MadeUpCluster) -> None:
    """Somebody labels the second claim between its two writes; the decision stands."""
    made_up.add_node("a", FOUR)
    made_up.add_node("b", FOUR)

    def labels() -> object:
        return made_up.api.get(f"{CLAIMS}/met-y")["metadata"].get("labels")

    def label(write: Write) -> None:
        if is_allocation(write) and write.name == "met-y" and not labels():
            made_up.api.patch(f"{CLAIMS}/met-y", {"metadata": {"labels": {"touched": "yes"}}})

    made_up.proxy.before = label
    made_up.wait_bound(two_claims(made_up, "met"))
    allocations = [write for write in claim_writes(made_up) if is_allocation(write)]
    assert [(write.name, write.status) for write in allocations] == [("met-x", 200), ("met-y", 409), ("met-y", 200)]
    assert labels() == {"touched": "yes"}
    made_up.check()


@pytest.mark.parametrize("held", ["gone-x", "gone-y"])
def test_devices_of_a_pod_that_is_deleted_between_the_writes_are_free_again(made_up: MadeUpCluster, held: str) -> None:
    """The allocation still lands, reserved for a pod that is gone; the claims are named, so they stay."""
    made_up.add_node("a", FOUR)
    with made_up.proxy.held(lambda write: is_allocation(write) and write.name == held) as gate:
        pod = two_claims(made_up, "gone")
        assert gate.reached.wait(CUT_S)
        made_up.api.delete(pod.path, grace_s=0)

    def has_landed() -> bool:
        return any(is_allocation(write) and write.name == held and write.status for write in claim_writes(made_up))

    def freed() -> bool:
        return not any(devices_of(claim) for claim in made_up.api.items(CLAIMS))

    eventually(has_landed, "the write lands", within_s=CUT_S)
    eventually(freed, "the claims are free", within_s=FREED_S)
    check_all_four_are_free(made_up)


@pytest.mark.parametrize("held", ["part-x", "part-y"])
def test_a_claim_that_is_deleted_between_the_writes_keeps_no_device(made_up: MadeUpCluster, held: str) -> None:
    """It carries the finalizer already, so it lingers; the pod gets nothing until the claim is made again."""
    made_up.add_node("a", FOUR)
    with made_up.proxy.held(lambda write: is_allocation(write) and write.name == held) as gate:
        pod = two_claims(made_up, "part")
        assert gate.reached.wait(CUT_S)
        made_up.api.delete(f"{CLAIMS}/part-y")
    eventually(lambda: made_up.api.find(f"{CLAIMS}/part-y") is None, "the claim goes", within_s=FREED_S)
    create_claim(made_up.api, "part-y", claim_spec(1))
    assert made_up.wait_bound(pod) == "a"
    made_up.check()
    made_up.api.delete(pod.path, grace_s=0)
    eventually(lambda: not any(map(devices_of, made_up.api.items(CLAIMS))), "the claims are free", within_s=FREED_S)
    check_all_four_are_free(made_up)


def test_a_namespace_that_is_deleted_gives_all_devices_back(made_up: MadeUpCluster) -> None:
    """One of its pods is allocated and not bound, one waits for devices, one is between its writes."""
    made_up.add_node("a", FOUR)
    core, claims = "/api/v1/namespaces", "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"
    made_up.api.create(core, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    account = f"{core}/team/serviceaccounts/default"
    eventually(lambda: made_up.api.find(account), "the namespace can hold pods", within_s=CUT_S)
    made_up.control_plane.scheduler.kill()  # started again when the test ends
    with made_up.proxy.held(lambda write: is_allocation(write) and write.name == "half") as gate:
        for name, count in (("whole", 2), ("large", 3), ("half", 1)):
            made_up.api.create(claims, {**kind, "metadata": {"name": name}, "spec": claim_spec(count)})
            pod = Pod(name, claims={"gpus": name})
            made_up.api.create(f"{core}/team/pods", pod.document())
            if name == "whole":
                eventually(lambda: devices_of(made_up.api.get(f"{claims}/whole")), "it is allocated", within_s=CUT_S)
        assert gate.reached.wait(CUT_S)
        made_up.api.delete(f"{core}/team")
    eventually(lambda: made_up.api.find(f"{core}/team") is None, "the namespace goes", within_s=60.0)
    made_up.control_plane.scheduler.start()
    check_all_four_are_free(made_up)
