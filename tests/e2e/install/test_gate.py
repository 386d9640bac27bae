"""Pods that wait at the controller's scheduling gate, in a namespace that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.install.chart_cluster import CONTROLLER_S, ChartCluster
from e2e.install.seen import gpus_in, tried_in_vain, wait_pods
from e2e.installation import DRIVER
from e2e.pods import Pod, claim_spec
from e2e.waiting import eventually, never

TEAM = "gated"
NAMESPACES = "/api/v1/namespaces"
PODS = f"{NAMESPACES}/{TEAM}/pods"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaimtemplates"
GATE = f"{DRIVER}/allocation"
KUEUE = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")

QUIET_S = 5.0
"""The controller decides within 0.1 s."""

PASSED_S = 60.0
"""A pod that fits nowhere stays at the gate for 20 s."""


@pytest.fixture
def team(chart: ChartCluster) -> Iterator[ChartCluster]:
    """Give a namespace with the label, and templates for 2 and for 20 GPUs in it."""
    api = chart.api
    chart.make_namespace(TEAM, {f"{DRIVER}/gate": "true"})
    for name, count in (("two", 2), ("too-many", 20)):
        api.create(TEMPLATES, {"metadata": {"name": name}, "spec": {"spec": claim_spec(count)}})
    eventually(lambda: is_gated_by_policy(chart), "the API server puts the gate", within_s=CONTROLLER_S)
    yield chart
    chart.kubectl("delete", "namespace", TEAM, "--timeout=90s")


def is_gated_by_policy(chart: ChartCluster) -> bool:
    """Policies and labels of namespaces take a moment to reach the API server's admission."""
    pod = Pod("asks", templates={"gpus": "two"}).document()
    return bool(gates(chart.api.create(f"{PODS}?dryRun=All", pod)))


def gates(pod: Any) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]


def told(chart: ChartCluster, pod: str, reason: str) -> list[Any]:
    events = chart.api.items(f"{NAMESPACES}/{TEAM}/events")
    return [one for one in events if one["involvedObject"]["name"] == pod and one["reason"] == reason]


def unscheduled(pod: Any) -> str:
    conditions = pod["status"].get("conditions", ())
    return next((one.get("reason", "") for one in conditions if one["type"] == "PodScheduled"), "")


def create(chart: ChartCluster, name: str, template: str, **more: Any) -> str:
    made = chart.api.create(PODS, Pod(name, templates={"gpus": template}, more=more).document())
    assert GATE in gates(made)
    return f"{PODS}/{name}"


def test_a_pod_runs_with_its_gpus_and_was_never_tried_in_vain(team: ChartCluster) -> None:
    create(team, "alone", "two")
    wait_pods(team, TEAM, "Running")
    assert len(gpus_in(team, TEAM, "alone", "main")) == 2
    eventually(lambda: told(team, "alone", "GPUsAllocated"), "it is told of its GPUs", within_s=PASSED_S)
    assert tried_in_vain(team, TEAM, "alone") == []


def test_pods_without_claims_or_with_a_node_get_no_gate_and_other_namespaces_neither(team: ChartCluster) -> None:
    dry = "?dryRun=All"
    plain = Pod("plain").document()
    named = Pod("named", templates={"gpus": "two"}, more={"nodeName": "elsewhere"}).document()
    elsewhere = Pod("other", templates={"gpus": "two"}).document()
    assert gates(team.api.create(f"{PODS}{dry}", plain)) == []
    assert gates(team.api.create(f"{PODS}{dry}", named)) == []
    assert gates(team.api.create(f"{NAMESPACES}/default/pods{dry}", elsewhere)) == []


def test_a_pod_that_fits_nowhere_is_shown_as_unschedulable_in_the_end(team: ChartCluster) -> None:
    path = create(team, "huge", "too-many")
    eventually(lambda: told(team, "huge", "WaitingForGPUs"), "it is told why it waits", within_s=PASSED_S)
    assert unscheduled(team.api.get(path)) == "SchedulingGated"
    eventually(lambda: unscheduled(team.api.get(path)) == "Unschedulable", "autoscalers see it", within_s=PASSED_S)


def test_gates_of_kueue_come_first(team: ChartCluster) -> None:
    """A pod as Kueue's webhook leaves it: labels, a finalizer, a gate until there is quota, and one until it is known
    where in the topology it runs. It takes them off one by one, and sets a node selector before the last."""
    document = Pod("quota", templates={"gpus": "two"}, more={"schedulingGates": [{"name": one} for one in KUEUE]})
    whole = document.document()
    whole["metadata"] |= {
        "labels": {"kueue.x-k8s.io/queue-name": "team-queue", "kueue.x-k8s.io/managed": "true"},
        "finalizers": ["kueue.x-k8s.io/managed"],
    }
    assert set(gates(team.api.create(PODS, whole))) == {*KUEUE, GATE}
    path = f"{PODS}/quota"
    try:
        never(lambda: told(team, "quota", "GPUsAllocated"), "GPUs are given to it", for_s=QUIET_S)
        team.api.patch(path, {"spec": {"schedulingGates": [{"name": KUEUE[1]}, {"name": GATE}]}})
        never(lambda: told(team, "quota", "GPUsAllocated"), "GPUs are given to it", for_s=QUIET_S)
        placed = {"schedulingGates": [{"name": GATE}], "nodeSelector": {"kubernetes.io/os": "linux"}}
        team.api.patch(path, {"spec": placed})
        (pod,) = wait_pods(team, TEAM, "Running")
        assert pod["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
        assert pod["metadata"]["labels"] == whole["metadata"]["labels"]
    finally:
        team.api.patch(path, {"metadata": {"finalizers": None}})


def test_pods_stay_at_the_gate_while_no_controller_runs_and_pass_when_one_is_back(team: ChartCluster) -> None:
    with team.without_controller():
        path = create(team, "patient", "two")
        never(lambda: gates(team.api.get(path)) != [GATE], "the gate goes", for_s=QUIET_S)
    wait_pods(team, TEAM, "Running")


def test_the_charts_value_says_in_which_namespaces_pods_come_to_the_gate(team: ChartCluster) -> None:
    """All but kube-system and those that opt out; with Off none, and pods that are at the gate pass as before."""
    pod = Pod("asks", templates={"gpus": "two"}).document()

    def gated_in(namespace: str) -> bool:
        return GATE in gates(team.api.create(f"{NAMESPACES}/{namespace}/pods?dryRun=All", pod))

    team.make_namespace("ungated", {f"{DRIVER}/gate": "false"})
    try:
        team.upgrade(schedulingGate="All")
        eventually(lambda: gated_in("default"), "pods of a namespace without a label are gated", within_s=CONTROLLER_S)
        assert [gated_in(namespace) for namespace in (TEAM, "ungated", "kube-system")] == [True, False, False]
        create(team, "early", "too-many")
        team.upgrade(schedulingGate="Off")
        eventually(lambda: not gated_in(TEAM), "new pods get no gate", within_s=CONTROLLER_S)
        eventually(lambda: not gates(team.api.get(f"{PODS}/early")), "the old one passes", within_s=PASSED_S)
    finally:
        team.upgrade()
        team.kubectl("delete", "namespace", "ungated", "--timeout=90s")
