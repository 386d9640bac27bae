"""Workloads that ask for nvidia.com/gpu, as they are, in a namespace with one label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from e2e.images import PROBE_IMAGE
from e2e.install.chart_cluster import NODE_NAME, ChartCluster
from e2e.install.seen import gpus_in, tried_in_vain, wait_pods
from e2e.installation import DRIVER
from e2e.waiting import eventually, never

TEAM = "unchanged"
NAMESPACES = "/api/v1/namespaces"
PODS = f"{NAMESPACES}/{TEAM}/pods"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaimtemplates"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
JOBS = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
REWRITE = f"{DRIVER}/rewrite"
GPU = "nvidia.com/gpu"

LABEL_S = 60.0
"""Policies and labels of namespaces take a moment to reach the API server's admission."""

DONE_S = 90.0

QUIET_S = 5.0
"""The controller makes a template within the second."""


@pytest.fixture
def team(chart: ChartCluster) -> Iterator[ChartCluster]:
    chart.make_namespace(TEAM, {REWRITE: "true", f"{DRIVER}/gate": "true"})
    eventually(lambda: templates_of(dry(chart, container("main", 1))), "pods are rewritten", within_s=LABEL_S)
    yield chart
    chart.kubectl("delete", "namespace", TEAM, "--timeout=90s")


def container(name: str, gpus: int | str, *, says: str = "show-and-wait", **more: Any) -> dict[str, Any]:
    limits = {"limits": {GPU: gpus}} if gpus else {}
    base = {"name": name, "image": PROBE_IMAGE, "imagePullPolicy": "Never", "args": [says]}
    return {**base, "resources": limits, **more}


def pod_spec(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "containers": list(containers),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        **more,
    }


def dry(chart: ChartCluster, *containers: dict[str, Any], metadata: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return what the API server would make of a pod."""
    document = {"metadata": {"name": "asks", **(metadata or {})}, "spec": pod_spec(*containers, **more)}
    return chart.api.create(f"{PODS}?dryRun=All", document)


def templates_of(pod: Any) -> dict[str, str]:
    return {entry["name"]: entry["resourceClaimTemplateName"] for entry in pod["spec"].get("resourceClaims", ())}


def claims_of(pod: Any, kind: str = "containers") -> dict[str, list[str]]:
    return {
        one["name"]: [entry["name"] for entry in one["resources"].get("claims", ())]
        for one in pod["spec"].get(kind, ())
    }


def resources_of(pod: Any) -> set[str]:
    every = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    return {name for one in every for part in ("limits", "requests") for name in one["resources"].get(part, ())}


def test_a_deployment_that_never_heard_of_dra_runs_with_gpus_that_it_shares_with_nobody(team: ChartCluster) -> None:
    spec = pod_spec(
        container("one", 1),
        container("two", 2),
        container("none", 0),
        initContainers=[
            container("ends", 1, says="show"),
            container("sidecar", 1, restartPolicy="Always"),
        ],
    )
    template = {"metadata": {"labels": {"app": "train"}}, "spec": spec}
    selector = {"matchLabels": {"app": "train"}}
    deployment = {"metadata": {"name": "train"}, "spec": {"replicas": 1, "selector": selector, "template": template}}
    team.api.create(DEPLOYMENTS, deployment)
    (pod,) = wait_pods(team, TEAM, "Running")
    assert templates_of(pod) == {
        "dracaena-0": f"gpus-1.{DRIVER}",
        "dracaena-1": f"gpus-2.{DRIVER}",
        "dracaena-init-1": f"gpus-1.{DRIVER}",
    }
    assert claims_of(pod) == {"one": ["dracaena-0"], "two": ["dracaena-1"], "none": []}
    assert claims_of(pod, "initContainers") == {"ends": ["dracaena-0"], "sidecar": ["dracaena-init-1"]}
    assert GPU not in resources_of(pod)
    name = pod["metadata"]["name"]
    shown = [gpus_in(team, TEAM, name, one) for one in ("one", "two", "sidecar")]
    assert [len(gpus) for gpus in shown] == [1, 2, 1]
    assert len(frozenset().union(*shown)) == 4
    assert tried_in_vain(team, TEAM, name) == []
    made = {one["metadata"]["name"] for one in team.api.items(TEMPLATES)}
    assert made == {f"gpus-1.{DRIVER}", f"gpus-2.{DRIVER}"}


def test_a_job_runs_to_its_end_and_gives_its_gpus_back(team: ChartCluster) -> None:
    template = {"spec": pod_spec(container("main", 2, says="show"), restartPolicy="Never")}
    spec = {"completions": 2, "parallelism": 2, "template": template}
    team.api.create(JOBS, {"metadata": {"name": "batch"}, "spec": spec})
    wait_pods(team, TEAM, "Succeeded", count=2)
    eventually(lambda: not team.api.items(CLAIMS), "the claims go", within_s=DONE_S)
    assert [one["metadata"]["name"] for one in team.api.items(TEMPLATES)] == [f"gpus-2.{DRIVER}"]
    team.kubectl("--namespace", TEAM, "delete", "job", "batch", "--timeout=60s")
    eventually(lambda: not team.api.items(TEMPLATES), "the template goes with the last pod", within_s=DONE_S)


def test_the_class_is_the_pods_the_namespaces_or_our_own(team: ChartCluster) -> None:
    asked = {"annotations": {f"{DRIVER}/class": "pcie-switch"}}
    whole = {"annotations": {f"{DRIVER}/class": "gold.example.com"}}
    assert templates_of(dry(team, container("main", "2e0"))) == {"dracaena-0": f"gpus-2.{DRIVER}"}
    assert templates_of(dry(team, container("main", 2), metadata=asked)) == {
        "dracaena-0": f"gpus-2.pcie-switch.{DRIVER}"
    }
    assert templates_of(dry(team, container("main", 2), metadata=whole)) == {"dracaena-0": "gpus-2.gold.example.com"}
    team.kubectl("label", "namespace", TEAM, f"{DRIVER}/class=nvlink")
    eventually(
        lambda: templates_of(dry(team, container("main", 2))) == {"dracaena-0": f"gpus-2.nvlink.{DRIVER}"},
        "the namespace's class counts",
        within_s=LABEL_S,
    )
    assert templates_of(dry(team, container("main", 2), metadata=asked)) == {
        "dracaena-0": f"gpus-2.pcie-switch.{DRIVER}"
    }


def test_pods_that_opt_out_ask_for_no_gpu_or_ask_wrongly_stay_as_they_are(team: ChartCluster) -> None:
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    static = dry(team, container("main", 1), metadata=mirror, nodeName=NODE_NAME)
    assert (templates_of(static), resources_of(static)) == ({}, {GPU})
    out = dry(team, container("main", 1), metadata={"labels": {REWRITE: "false"}})
    assert (templates_of(out), resources_of(out)) == ({}, {GPU})
    for gpus in (0, "0"):
        assert templates_of(dry(team, container("main", gpus))) == {}
    for wrong in ({"limits": {GPU: 2}, "requests": {GPU: 1}}, {"limits": {GPU: "1500m"}}, {"requests": {GPU: 1}}):
        document = {"metadata": {"name": "wrong"}, "spec": pod_spec(container("main", 0, resources=wrong))}
        answer = team.api.send("POST", f"{PODS}?dryRun=All", document)
        assert answer.status == 422, answer.message
        assert "spec.containers[0].resources" in answer.message


def test_claims_that_a_pod_has_already_stay_beside_those_that_it_gets(team: ChartCluster) -> None:
    own = [{"name": "mine", "resourceClaimName": "mine"}]
    first = container("main", 1)
    first["resources"]["claims"] = [{"name": "mine"}]
    pod = dry(team, first, resourceClaims=own)
    assert [entry["name"] for entry in pod["spec"]["resourceClaims"]] == ["mine", "dracaena-0"]
    assert claims_of(pod) == {"main": ["mine", "dracaena-0"]}


def test_each_name_that_the_chart_lists_becomes_claims(team: ChartCluster) -> None:
    """A policy for each, in any order; one pod may ask by both names."""
    other = "example.com/gpu"
    asked = (container("main", 1), container("second", 0, resources={"limits": {other: 2}}))
    wanted = {"dracaena-0": f"gpus-1.{DRIVER}", "dracaena-1-1": f"gpus-2.{DRIVER}"}
    team.upgrade(rewrite={"resourceNames": [GPU, other]})
    try:
        eventually(lambda: templates_of(dry(team, *asked)) == wanted, "both are rewritten", within_s=LABEL_S)
        pod = dry(team, *asked)
        assert claims_of(pod) == {"main": ["dracaena-0"], "second": ["dracaena-1-1"]}
        assert resources_of(pod) == set()
    finally:
        team.upgrade()
    eventually(lambda: other in resources_of(dry(team, *asked)), "the second name stays again", within_s=LABEL_S)


MIG = "nvidia.com/mig-1g.10gb.me"
PARTS = f"mig-1g.10gb.me-2.mig.{DRIVER}"


@pytest.fixture
def mig_listed(team: ChartCluster) -> Iterator[None]:
    """With the chart's value that makes claims of a MIG resource name too."""
    team.upgrade(rewrite={"resourceNames": [GPU, MIG]})
    asked = container("part", 0, resources={"limits": {MIG: 2}})
    try:
        eventually(lambda: templates_of(dry(team, asked)), "the name is rewritten", within_s=LABEL_S)
        yield
    finally:
        team.upgrade()
    eventually(lambda: MIG in resources_of(dry(team, asked)), "the name stays again", within_s=LABEL_S)


@pytest.mark.usefixtures("mig_listed")
def test_mig_resource_names_become_claims_for_their_profile_which_a_quota_counts(team: ChartCluster) -> None:
    """The node has no MIG devices, so a pod waits for them; the class that it names for whole GPUs is not theirs."""
    metadata = {"annotations": {f"{DRIVER}/class": "nvlink"}}
    asked = container("part", 0, resources={"limits": {MIG: 2}, "requests": {MIG: "2"}})
    ends = container("ends", 0, says="show", resources={"limits": {MIG: 1}})
    pod = dry(team, container("main", 1), asked, metadata=metadata, initContainers=[ends])
    assert templates_of(pod) == {"dracaena-0": f"gpus-1.nvlink.{DRIVER}", "dracaena-1-1": PARTS}
    assert claims_of(pod) == {"main": ["dracaena-0"], "part": ["dracaena-1-1"]}
    assert claims_of(pod, "initContainers") == {"ends": ["dracaena-1-1"]}
    assert resources_of(pod) == set()

    quota(team, f"mig.{DRIVER}.deviceclass.resource.k8s.io/devices", 2, f"mig.{DRIVER}")
    team.api.create(PODS, {"metadata": {"name": "first"}, "spec": pod_spec(asked)})
    eventually(lambda: team.api.items(CLAIMS), "kube-controller-manager makes its claim", within_s=DONE_S)
    eventually(lambda: told(team, "first", "WaitingForGPUs"), "the controller has looked at it", within_s=DONE_S)
    (template,), (claim,) = team.api.items(TEMPLATES), team.api.items(CLAIMS)
    assert template["metadata"]["name"] == PARTS
    (request,) = claim["spec"]["devices"]["requests"]
    assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == (f"mig.{DRIVER}", 2)
    expression = f'device.attributes["{DRIVER}"].profile == "1g.10gb+me"'
    assert request["exactly"]["selectors"] == [{"cel": {"expression": expression}}]
    team.api.create(PODS, {"metadata": {"name": "second"}, "spec": pod_spec(asked)})
    eventually(
        lambda: "exceeded quota" in str(told(team, "second", "FailedResourceClaimCreation")),
        "the second is told of the quota",
        within_s=DONE_S,
    )
    team.kubectl("--namespace", TEAM, "delete", "pod", "first", "second", "--timeout=60s")
    eventually(lambda: not team.api.items(TEMPLATES), "the template goes with the last pod", within_s=DONE_S)


def test_without_the_label_new_pods_stay_as_they_are_and_old_ones_go_on(team: ChartCluster) -> None:
    team.api.create(PODS, {"metadata": {"name": "old"}, "spec": pod_spec(container("main", 1))})
    wait_pods(team, TEAM, "Running")
    team.kubectl("label", "namespace", TEAM, f"{REWRITE}-")
    eventually(lambda: not templates_of(dry(team, container("main", 1))), "pods stay as they are", within_s=LABEL_S)
    assert resources_of(dry(team, container("main", 1))) == {GPU}
    assert len(gpus_in(team, TEAM, "old", "main")) == 1


def test_pods_wait_for_their_template_while_no_controller_runs_and_run_when_one_is_back(team: ChartCluster) -> None:
    with team.without_controller():
        pod = team.api.create(PODS, {"metadata": {"name": "patient"}, "spec": pod_spec(container("main", 2))})
        assert templates_of(pod) == {"dracaena-0": f"gpus-2.{DRIVER}"}
        never(lambda: team.api.items(TEMPLATES), "somebody else makes the template", for_s=QUIET_S)
    wait_pods(team, TEAM, "Running")
    assert len(gpus_in(team, TEAM, "patient", "main")) == 2


WHOLE = (DRIVER, f"nvlink.{DRIVER}", f"pcie-switch.{DRIVER}")
"""The chart's classes of whole GPUs."""


@pytest.fixture
def classes_stand_for_gpus(team: ChartCluster) -> Iterator[None]:
    """As with the chart's value deviceClasses.extendedResourceName."""

    def stand_for(resource: str | None) -> None:
        patch = json.dumps({"spec": {"extendedResourceName": resource}})
        for name in WHOLE:
            team.kubectl("patch", "deviceclass", name, "--type=merge", "--patch", patch)

    stand_for(GPU)
    yield
    stand_for(None)


def test_a_quota_on_the_class_holds_for_them(team: ChartCluster) -> None:
    """As docs/claims.md says: a pod above the quota is accepted, and waits until there is room in it."""
    quota(team, f"{DRIVER}.deviceclass.resource.k8s.io/devices", 2, DRIVER)
    the_second_of_two_waits_for_the_first(team)


@pytest.mark.usefixtures("classes_stand_for_gpus")
def test_a_quota_by_the_old_name_holds_for_them_where_the_classes_stand_for_it(team: ChartCluster) -> None:
    """And counts pods that keep the name beside them, which get none of our devices."""
    quota(team, f"requests.{GPU}", 2, *WHOLE)
    the_second_of_two_waits_for_the_first(team)
    document = {"metadata": {"name": "old", "labels": {REWRITE: "false"}}, "spec": pod_spec(container("main", 1))}
    answer = team.api.send("POST", PODS, document)
    assert (answer.status, "exceeded quota" in answer.message) == (403, True)
    team.kubectl("--namespace", TEAM, "delete", "pod", "second", "--timeout=60s")
    eventually(lambda: not team.api.items(CLAIMS), "the quota is free", within_s=DONE_S)
    eventually(lambda: team.api.send("POST", PODS, document).status == 201, "there is room for it", within_s=DONE_S)
    eventually(lambda: told(team, "old", "FailedScheduling"), "kube-scheduler finds nothing for it", within_s=DONE_S)
    assert "nodeName" not in team.api.get(f"{PODS}/old")["spec"]


def quota(chart: ChartCluster, resource: str, most: int, *classes: str) -> None:
    """Set a quota, and wait until the API server holds claims of these classes to it."""
    path = f"{NAMESPACES}/{TEAM}/resourcequotas"
    chart.api.create(path, {"metadata": {"name": "gpus"}, "spec": {"hard": {resource: str(most)}}})
    for name in classes:
        eventually(partial(exceeds, chart, name, most + 1), f"the quota counts {name}", within_s=LABEL_S)


def exceeds(chart: ChartCluster, device_class: str, count: int) -> bool:
    """Whether the API server takes no claim for so many GPUs. Before it knows what is used it has other words."""
    exactly = {"deviceClassName": device_class, "count": count}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    answer = chart.api.send("POST", f"{CLAIMS}?dryRun=All", {"metadata": {"name": "asks"}, "spec": spec})
    return "exceeded quota" in answer.message


def the_second_of_two_waits_for_the_first(chart: ChartCluster) -> None:
    """Both want all GPUs of the quota."""
    for name in ("first", "second"):
        chart.api.create(PODS, {"metadata": {"name": name}, "spec": pod_spec(container("main", 2))})
        eventually(lambda: chart.api.items(CLAIMS), "the first has its claim", within_s=DONE_S)
    eventually(lambda: runs(chart, "first"), "the first runs", within_s=DONE_S)
    eventually(
        lambda: "exceeded quota" in str(told(chart, "second", "FailedResourceClaimCreation")),
        "the second is told of the quota",
        within_s=DONE_S,
    )
    chart.kubectl("--namespace", TEAM, "delete", "pod", "first", "--timeout=60s")
    eventually(lambda: runs(chart, "second"), "the second runs", within_s=DONE_S)


def runs(chart: ChartCluster, pod: str) -> bool:
    return bool(chart.api.get(f"{PODS}/{pod}")["status"].get("phase") == "Running")


def told(chart: ChartCluster, pod: str, reason: str) -> list[Any]:
    events = chart.api.items(f"{NAMESPACES}/{TEAM}/events")
    return [one for one in events if one["involvedObject"]["name"] == pod and one["reason"] == reason]
