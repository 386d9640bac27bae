"""GPUs that an admin takes out of use with a DeviceTaintRule, on a server that has that API switched on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, RELEASE, ChartCluster
from e2e.install.seen import devices_of, wait_pods
from e2e.installation import REPOSITORY
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, wait_event
from e2e.waiting import eventually

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
SWITCHED_ON = ("--feature-gates=DRADeviceTaintRules=true", "--runtime-config=resource.k8s.io/v1beta2=true")
"""In Kubernetes 1.36 the version and the gate are off by default."""

RESTARTED_S = 120.0
RUN_S = 90.0


@pytest.fixture
def with_rules(chart: ChartCluster) -> Iterator[ChartCluster]:
    with chart.control_plane.apiserver.restarted_with(*SWITCHED_ON):
        chart.control_plane.wait_ready()
        # They look for an API that was not served every five minutes; nobody has to wait for that.
        restart_controllers(chart)
        yield chart
        chart.api.send("DELETE", f"{RULES}/out-of-use")
    chart.control_plane.wait_ready()


def restart_controllers(chart: ChartCluster) -> None:
    deployment = ("--namespace", NAMESPACE, f"deployment/{RELEASE}-controller")
    chart.kubectl("rollout", "restart", *deployment)
    chart.kubectl("rollout", "status", *deployment, f"--timeout={RESTARTED_S:.0f}s")


def out_of_use(device: str) -> dict[str, Any]:
    """Return the rule of the page for admins, for this device."""
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    rule: dict[str, Any] = yaml.safe_load(manifest)
    rule["spec"]["deviceSelector"] |= {"pool": NODE_NAME, "device": device}
    return rule


def given(chart: ChartCluster, name: str) -> frozenset[str]:
    """Run a pod with one GPU and return what it got."""
    path = create_claim(chart.api, name, claim_spec(1))
    chart.api.create(PODS, Pod(name, claims={"gpu": name}).document())
    wait_pods(chart, "default", "Running")
    devices = devices_of(chart.api.get(path))
    remove(chart, name)
    return devices


def remove(chart: ChartCluster, name: str) -> None:
    chart.kubectl("delete", "pod", name, "--grace-period=1", "--timeout=60s")
    chart.kubectl("delete", "resourceclaim", name, "--timeout=60s")


def test_a_gpu_that_a_rule_taints_is_given_to_nobody_until_the_rule_goes(with_rules: ChartCluster) -> None:
    chart = with_rules
    (first,) = given(chart, "before")
    assert given(chart, "again") == {first}, "the choice is the same each time, so the rule is what changes it"
    chart.api.create(RULES, out_of_use(first))
    (second,) = given(chart, "after")
    assert second != first
    create_claim(chart.api, "all", claim_spec(GPU_COUNT))
    pod = Pod("all", claims={"gpu": "all"})
    chart.api.create(PODS, pod.document())
    wait_event(chart.api, pod, "WaitingForGPUs", f"1 with fewer than {GPU_COUNT} free GPUs")
    chart.api.delete(f"{RULES}/out-of-use")
    wait_pods(chart, "default", "Running")
    assert len(devices_of(chart.api.get(f"{CLAIMS}/all"))) == GPU_COUNT
    remove(chart, "all")
    eventually(lambda: not chart.podlist(), "the node forgets it", within_s=RUN_S)
