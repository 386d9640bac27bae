"""Claims that kube-controller-manager makes for a PodGroup: from 1.37 on, with the gates that are off by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from e2e.made_up import FOUR, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, NAMESPACE, Pod, claim_spec, create_pod, create_template
from e2e.waiting import eventually, never

GATES = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true"
API = "--runtime-config=scheduling.k8s.io/v1beta1=true"
GROUPS = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{NAMESPACE}/podgroups"

QUIET_S = 5.0
"""Longer than anybody who frees claims of pods that went takes."""
FREED_S = 30.0
COMPETING_S = 120.0
"""The later gang gives back after 5 s, and kube-scheduler tries pods again after at most 10."""


@pytest.fixture
def grouped(made_up: MadeUpCluster) -> Iterator[MadeUpCluster]:
    """Give the control plane with PodGroups."""
    plane = made_up.control_plane
    with ExitStack() as switched:
        switched.callback(start_clients_again, made_up)
        switched.enter_context(plane.apiserver.restarted_with(GATES, API))
        plane.wait_ready()
        switched.enter_context(plane.controller_manager.restarted_with(GATES))
        switched.enter_context(plane.scheduler.restarted_with(GATES))
        made_up.restart_controller()  # its watches would come back after a back-off
        yield made_up
        for group in made_up.api.items(GROUPS):
            made_up.api.delete(f"{GROUPS}/{group['metadata']['name']}")


def start_clients_again(cluster: MadeUpCluster) -> None:
    """Let everybody see the server that was started again: the next test would meet what was there before."""
    cluster.control_plane.restart_clients()
    cluster.restart_controller()


def create_group(cluster: MadeUpCluster, name: str, count: int, template: str) -> None:
    """Create a gang of so many pods with one claim for all."""
    spec = {
        "schedulingPolicy": {"gang": {"minCount": count}},
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
    }
    document = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
    cluster.api.create(GROUPS, document)


def member(name: str, group: str, template: str) -> Pod:
    return Pod(name, templates={"gpus": template}, more={"schedulingGroup": {"podGroupName": group}})


def users(claim: Any) -> list[tuple[str, str]]:
    return [(user["resource"], user["name"]) for user in claim["status"].get("reservedFor", ())]


def test_a_gang_shares_the_claim_that_was_made_for_its_group_until_the_group_goes(grouped: MadeUpCluster) -> None:
    grouped.add_node("a", FOUR)
    grouped.add_node("b", FOUR)
    create_template(grouped.api, "of-group", claim_spec(2))
    create_group(grouped, "g", 2, "of-group")
    pods = [member(f"m-{number}", "g", "of-group") for number in range(2)]
    for pod in pods:
        create_pod(grouped.api, pod)
    assert len({grouped.wait_bound(pod) for pod in pods}) == 1
    (claim,) = grouped.api.items(CLAIMS)
    assert users(claim) == [("podgroups", "g")]
    given = devices_of(claim)
    assert len(given) == 2
    path = f"{CLAIMS}/{claim['metadata']['name']}"
    for pod in pods:
        grouped.api.delete(pod.path, grace_s=0)
    never(lambda: devices_of(grouped.api.get(path)) != given, "the claim changes with its pods", for_s=QUIET_S)
    grouped.api.delete(f"{GROUPS}/g")
    eventually(lambda: grouped.api.find(path) is None, "the claim goes with its group", within_s=FREED_S)


def test_gangs_get_nothing_by_halves_and_of_two_on_one_node_one_is_bound_and_then_the_other(
    grouped: MadeUpCluster,
) -> None:
    grouped.add_node("a", FOUR)
    create_template(grouped.api, "two", claim_spec(2))
    for group in ("first", "second"):
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        version = "scheduling.k8s.io/v1beta1"
        grouped.api.create(
            GROUPS, {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": group}, "spec": spec}
        )
    gangs = {group: [member(f"{group}-{number}", group, "two") for number in range(2)] for group in ("first", "second")}
    halves, rest = zip(*gangs.values(), strict=True)
    for pod in halves:
        create_pod(grouped.api, pod)
    eventually(lambda: len(grouped.api.items(CLAIMS)) == 2, "the claims of the first pods", within_s=FREED_S)
    never(lambda: any(map(devices_of, grouped.api.items(CLAIMS))), "half of a gang gets devices", for_s=QUIET_S)
    for pod in rest:
        create_pod(grouped.api, pod)
    for group in ("first", "second"):
        for pod in gangs[group]:
            assert grouped.wait_bound(pod, within_s=COMPETING_S) == "a"
        for pod in gangs[group]:
            grouped.api.delete(pod.path, grace_s=0)
