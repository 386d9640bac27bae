"""The command in the controller's own pod, as docs/command.md says: with the rights of its ServiceAccount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import NAMESPACE, ChartCluster
from e2e.install.seen import devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, wait_event
from e2e.waiting import eventually

FREED_S = 60.0
CLAIM = (
    "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\n"
    "spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.dracaena.dev, count: COUNT}}]}}\n"
)


@pytest.fixture
def pods(chart: ChartCluster) -> Iterator[ChartCluster]:
    """Give the cluster with a pod that has its GPUs and one that waits for more than there are."""
    for name, count in (("served", 2), ("huge", GPU_COUNT + 1)):
        create_claim(chart.api, name, claim_spec(count))
        chart.api.create(PODS, Pod(name, claims={"gpus": name}).document())
    wait_event(chart.api, Pod("huge"), "WaitingForGPUs", "0/1 nodes fit")
    eventually(lambda: devices_of(chart.api.get(f"{CLAIMS}/served")), "served has its GPUs", within_s=FREED_S)
    yield chart
    chart.kubectl("delete", "pods", "served", "huge", "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaims", "served", "huge", "--timeout=60s")
    eventually(lambda: not chart.podlist(), "the node forgets them", within_s=FREED_S)


def typed(chart: ChartCluster, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in the controller's pod; both streams are in stdout, as on a terminal."""
    kubectl = ("kubectl", "--namespace", NAMESPACE, "exec", "--stdin", "deployment/dracaena-controller", "--")
    return subprocess.run(
        [*kubectl, "dracaena", *command],
        env=chart.shell(),
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def test_status_shows_who_holds_which_gpu(pods: ChartCluster) -> None:
    done = typed(pods, "status")
    assert done.returncode == 0, done.stdout
    assert f" {GPU_COUNT} GPUs: {GPU_COUNT - 2} free, 2 used" in done.stdout
    assert done.stdout.count("default/served") == 2


@pytest.mark.parametrize("kind", ["pod", "claim"])
def test_explain_says_what_was_given_and_why(pods: ChartCluster, kind: str) -> None:
    done = typed(pods, "explain", kind, "served", "--namespace", "default")
    assert done.returncode == 0, done.stdout
    assert "2 of the GPUs of" in done.stdout
    assert "next best:" in done.stdout


def test_explain_of_a_pod_that_waits_names_its_claims_and_where_the_reasons_are(pods: ChartCluster) -> None:
    done = typed(pods, "explain", "pod", "huge", "--namespace", "default")
    assert done.returncode == 0, done.stdout
    assert "pod default/huge waits" in done.stdout
    assert "kubectl describe pod huge --namespace default" in " ".join(done.stdout.split())
    assert "claim default/huge has no devices yet" in done.stdout
    assert "nodes fit" in pods.kubectl("describe", "pod", "huge", "--namespace", "default")


def test_without_a_namespace_the_controllers_own_is_meant(pods: ChartCluster) -> None:
    done = typed(pods, "explain", "pod", "served")
    assert done.returncode != 0
    assert f"pod {NAMESPACE}/served does not exist" in done.stdout


def test_a_manifest_is_checked_and_simulated_from_standard_input(chart: ChartCluster) -> None:
    good, bad = CLAIM.replace("COUNT", "2"), CLAIM.replace("COUNT", "-1")
    done = typed(chart, "validate", "-", given=good)
    assert (done.returncode, "0 errors" in done.stdout) == (0, True), done.stdout
    assert "count" in typed(chart, "validate", "-", given=bad).stdout
    cluster = chart.kubectl("get", "nodes,resourceslices,deviceclasses", "--output=yaml")
    done = typed(chart, "simulate", "-f", "-", given=f"{cluster}\n---\n{good}")
    assert "1 of 1 claims get their devices" in done.stdout


def test_the_demo_says_what_keeps_it_from_running(chart: ChartCluster) -> None:
    done = typed(chart, "demo")
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
