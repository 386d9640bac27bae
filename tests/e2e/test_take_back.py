"""Allocations that lead nowhere: kube-scheduler clears them or refuses the pod, and they are planned elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.made_up import FOUR, ONE, TWO, MadeUpCluster, devices_of
from e2e.pods import (
    CLAIMS,
    Pod,
    claim_spec,
    create_claim,
    create_pod,
    create_template,
    pod_claims,
    wait_event,
    wait_pending,
)
from e2e.waiting import eventually, never
from support.write_proxy import Cut, Write

PATIENCE = ("--refused-wait-s=1", "--passed-over-wait-s=2", "--exclusion-s=2", "--longest-bind-s=3")
"""Much shorter than anybody wants, so that the tests are."""

SETTLED_S = 5.5
"""So long after the allocation a refusal of kube-scheduler counts: one that comes sooner may be about before."""

GONE_S = 30.0

SPREAD = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "lonely"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
"""Two pods with the label never share a node. The controller does not look at it."""


@pytest.fixture(scope="module", autouse=True)
def impatient(_made_up: MadeUpCluster) -> Iterator[None]:
    with _made_up.controller_with(*PATIENCE):
        yield


def is_drop(write: Write) -> bool:
    """Whether this is the first write of a take-back."""
    status = write.body.get("status", {}) if write.kind == "resourceclaims/status" else {}
    return "reservedFor" in status and status["reservedFor"] is None and "allocation" not in status


def is_clear(write: Write) -> bool:
    """Whether this is the second."""
    status = write.body.get("status", {}) if write.kind == "resourceclaims/status" else {}
    return "allocation" in status and status["allocation"] is None


def allocated_on(cluster: MadeUpCluster, name: str, node: str) -> Pod:
    """Make a pod for two GPUs while kube-scheduler is off, and wait until it has them on this node."""
    create_template(cluster.api, name, claim_spec(2))
    pod = Pod(name, templates={"gpus": name})
    create_pod(cluster.api, pod)
    (claim,) = cluster.wait_allocated(pod).values()
    assert {pool for pool, _ in devices_of(claim)} == {node}
    return pod


def cordoned_after(cluster: MadeUpCluster, name: str) -> Pod:
    """Have a pod refused by the only node there is, `a`, where it has its devices."""
    cluster.add_node("a", TWO)
    with cluster.without_scheduler():
        pod = allocated_on(cluster, name, "a")
        cluster.cordon("a")
        time.sleep(SETTLED_S)
    return pod


def test_a_pod_whose_only_node_was_cordoned_gives_its_devices_back_and_runs_elsewhere(made_up: MadeUpCluster) -> None:
    """kube-scheduler does not clear the claim of a pod that the only node refuses: we do, in two guarded writes."""
    pod = cordoned_after(made_up, "stuck")
    eventually(lambda: not any(map(devices_of, made_up.api.items(CLAIMS))), "it is taken back", within_s=GONE_S)
    eventually(lambda: [w for w in made_up.proxy.writes if is_clear(w) and w.status], "it is answered", within_s=GONE_S)
    drop, clear = (write for write in made_up.proxy.writes if is_drop(write) or is_clear(write))
    assert clear.body["metadata"]["resourceVersion"] == drop.answer["metadata"]["resourceVersion"]
    assert (drop.status, clear.status) == (200, 200)
    made_up.add_node("b", FOUR)
    assert made_up.wait_bound(pod) == "b"
    made_up.check()


@pytest.mark.parametrize("change", ["cordon", "taint"])
def test_an_allocation_that_the_scheduler_clears_is_planned_on_the_other_node(
    made_up: MadeUpCluster, change: str
) -> None:
    """With a second node kube-scheduler clears the claim by itself, within a second."""
    made_up.add_node("a", TWO)
    made_up.add_node("b", FOUR)
    with made_up.without_scheduler():
        pod = allocated_on(made_up, "cleared", "a")
        if change == "cordon":
            made_up.cordon("a")
        else:
            taint = {"key": "sick", "value": "yes", "effect": "NoSchedule"}
            made_up.api.patch("/api/v1/nodes/a", {"spec": {"taints": [taint]}})
    assert made_up.wait_bound(pod) == "b"
    made_up.check()


def lonely_pods(cluster: MadeUpCluster) -> tuple[Pod, Pod]:
    """Make two pods that never share a node, and wait until the first one runs on the only one there is."""
    cluster.add_node("a", FOUR)
    create_template(cluster.api, "spread", claim_spec(2))
    first, second = (
        Pod(f"lonely-{number}", templates={"gpus": "spread"}, labels={"app": "lonely"}, more={"affinity": SPREAD})
        for number in range(2)
    )
    create_pod(cluster.api, first)
    assert cluster.wait_bound(first) == "a"
    return first, second


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_the_controller_does_not_look_at_is_learned_from_the_scheduler(made_up: MadeUpCluster, when: str) -> None:
    """Anti-affinity: the better node is refused. The other one is there before the pod, or comes after it."""
    _, second = lonely_pods(made_up)
    if when == "before":
        made_up.add_node("b", FOUR)
    create_pod(made_up.api, second)
    if when == "after":
        wait_pending(made_up.api, second, "anti-affinity")
        made_up.add_node("b", FOUR)
    assert made_up.wait_bound(second) == "b"
    made_up.check()


def test_devices_of_a_pod_that_no_node_takes_go_to_one_that_can_use_them(made_up: MadeUpCluster) -> None:
    """kube-scheduler has nothing to say about the refused pod any more, so it is the other one's need that counts."""
    first, second = lonely_pods(made_up)
    create_pod(made_up.api, second)
    wait_pending(made_up.api, second, "anti-affinity")
    other = Pod("other", templates={"gpus": "spread"})
    create_pod(made_up.api, other)
    assert made_up.wait_bound(other) == "a"
    made_up.check()
    made_up.api.delete(first.path, grace_s=0)
    assert made_up.wait_bound(second, within_s=GONE_S) == "a"
    made_up.check()


def test_a_node_that_was_left_out_is_tried_again(made_up: MadeUpCluster) -> None:
    """The pod is told that it was tried; when the node opens it gets its devices there after all."""
    made_up.add_node("a", TWO)
    made_up.add_node("full", TWO)
    create_template(made_up.api, "two", claim_spec(2))
    create_pod(made_up.api, Pod("holder", templates={"gpus": "two"}, node_selector={"kubernetes.io/hostname": "full"}))
    made_up.wait_bound(Pod("holder"))
    with made_up.without_scheduler():
        pod = allocated_on(made_up, "again", "a")
        made_up.cordon("a")
    wait_event(made_up.api, pod, "WaitingForGPUs", "0/2 nodes fit")
    made_up.cordon("a", closed=False)
    assert made_up.wait_bound(pod, within_s=GONE_S) == "a"
    made_up.check()


def test_devices_of_a_pod_that_goes_within_its_take_back_are_free(made_up: MadeUpCluster) -> None:
    """Its reservation is dropped already, so nobody but us would free the named claim."""
    made_up.add_node("a", TWO)
    create_claim(made_up.api, "named", claim_spec(2))
    pod = Pod("goes", claims={"gpus": "named"})
    with made_up.without_scheduler():
        create_pod(made_up.api, pod)
        made_up.wait_allocated(pod)
        made_up.cordon("a")
        time.sleep(SETTLED_S)
    eventually(lambda: [w for w in made_up.proxy.writes if is_drop(w) and w.status], "it is dropped", within_s=GONE_S)
    made_up.api.delete(pod.path, grace_s=0)
    eventually(lambda: not devices_of(made_up.api.get(f"{CLAIMS}/named")), "the claim is free", within_s=GONE_S)


def test_a_controller_killed_within_a_take_back_is_followed_by_one_that_ends_it(made_up: MadeUpCluster) -> None:

    def kill(write: Write) -> None:
        if is_drop(write):
            made_up.controller.kill()
            raise Cut

    made_up.proxy.after = kill
    pod = cordoned_after(made_up, "killed")
    eventually(lambda: not made_up.controller.is_running, "the controller is killed", within_s=GONE_S)
    (claim,) = pod_claims(made_up.api, pod).values()
    assert devices_of(claim)
    assert "reservedFor" not in claim["status"]
    made_up.proxy.forget()
    made_up.add_node("b", FOUR)
    made_up.start_controller(*PATIENCE)
    assert made_up.wait_bound(pod, within_s=GONE_S) == "b"
    made_up.check()


def test_a_device_that_two_claims_hold_is_counted_and_named_and_ours_gives_way(made_up: MadeUpCluster) -> None:
    """As when a claim tolerates the taint: somebody allocates in the moment in which we do."""
    made_up.add_node("a", FOUR)
    create_claim(made_up.api, "thief", claim_spec(1))

    def steal(write: Write) -> None:
        results = (write.body.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ())
        if results and not devices_of(made_up.api.get(f"{CLAIMS}/thief")):
            made_up.allocate_by_hand("thief", "a", results[0]["device"])

    made_up.proxy.before = steal
    with made_up.without_scheduler():
        create_template(made_up.api, "two", claim_spec(2))
        pod = Pod("robbed", templates={"gpus": "two"})
        create_pod(made_up.api, pod)
        assert "default/thief" in wait_claim_event(made_up, pod, "DeviceCollision")
        eventually(lambda: any(map(is_clear, made_up.proxy.writes)), "ours is taken back", within_s=GONE_S)
    assert made_up.wait_bound(pod) == "a"
    made_up.check()


def wait_claim_event(cluster: MadeUpCluster, pod: Pod, reason: str) -> str:
    """Wait for an Event on the one claim of a pod and return its message."""

    def look() -> str:
        names = [claim["metadata"]["name"] for claim in pod_claims(cluster.api, pod).values()]
        found = cluster.api.items("/api/v1/namespaces/default/events")
        return next((e["message"] for e in found if e["reason"] == reason and e["involvedObject"]["name"] in names), "")

    return eventually(look, f"a claim of {pod.name} has an Event {reason}", within_s=GONE_S)


def test_a_bind_that_is_under_way_when_the_take_back_begins_keeps_its_devices(made_up: MadeUpCluster) -> None:
    """The worst moment: kube-scheduler has looked at the claim, the reservation is dropped, then the pod is bound."""
    pod = cordoned_after(made_up, "lucky")
    with made_up.proxy.held(is_drop) as gate:
        assert gate.reached.wait(GONE_S)
        made_up.cordon("a", closed=False)
        made_up.wait_bound(pod)
    uid = made_up.api.get(pod.path)["metadata"]["uid"]

    def reserved() -> bool:
        (claim,) = pod_claims(made_up.api, pod).values()
        return [user["uid"] for user in claim["status"].get("reservedFor", ())] == [uid]

    eventually(lambda: [w for w in made_up.proxy.writes if is_drop(w) and w.status], "it is dropped", within_s=GONE_S)
    eventually(reserved, "it gets its reservation back", within_s=GONE_S)
    never(lambda: any(map(is_clear, made_up.proxy.writes)), "its devices are taken", for_s=3.5)
    made_up.check()


def test_what_kube_scheduler_says_again_ends_the_rest_at_once(made_up: MadeUpCluster) -> None:
    """It writes nothing when it says what it said before; our probe makes that seen, long before the longest bind."""
    made_up.add_node("a", TWO)
    made_up.add_node("b", ONE)
    create_template(made_up.api, "two", claim_spec(2))
    pod = Pod("again", templates={"gpus": "two"}, node_selector={"kubernetes.io/hostname": "a"})
    unproven: list[Write] = []

    def note(write: Write) -> None:
        if is_clear(write) and probed(made_up, pod):
            unproven.append(write)

    # kube-scheduler tries the pod once because its reservation is dropped. Where it is late, that is a proof, too.
    made_up.proxy.before = note
    with made_up.controller_with(*PATIENCE[:-1], "--longest-bind-s=600"):
        with made_up.without_scheduler():
            create_pod(made_up.api, pod)
            made_up.wait_allocated(pod)
            made_up.cordon("a")
            time.sleep(SETTLED_S)
        eventually(lambda: probed(made_up, pod), "its condition is probed", within_s=GONE_S)
        never(lambda: unproven, "it is taken back without a proof", for_s=5.0)
        before = said(made_up, pod)
        # A node that opens has every pod tried again that a closed node refused; this one says the same as before.
        made_up.cordon("b")
        made_up.cordon("b", closed=False)
        eventually(lambda: any(map(is_clear, made_up.proxy.writes)), "it is taken back", within_s=GONE_S)
        assert said(made_up, pod) == before
        assert not unproven
        assert not probed(made_up, pod)
    made_up.check()


def said(cluster: MadeUpCluster, pod: Pod) -> str:
    """Return what kube-scheduler says about a pod."""
    return next((one["message"] for one in conditions(cluster, pod)), "")


def probed(cluster: MadeUpCluster, pod: Pod) -> bool:
    """Whether the controller's probe stands in what kube-scheduler says."""
    return any(one.get("lastProbeTime") for one in conditions(cluster, pod))


def conditions(cluster: MadeUpCluster, pod: Pod) -> list[dict[str, Any]]:
    found = cluster.api.get(pod.path)["status"].get("conditions", ())
    return [one for one in found if one["type"] == "PodScheduled"]
