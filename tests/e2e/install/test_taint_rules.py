"""GPUs that an admin takes out of use with a DeviceTaintRule, on a server that has that API switched on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, RELEASE, ChartCluster
from e2e.install.seen import devices_of, wait_pods
from e2e.installation import REPOSITORY
from e2e.kubernetes import TAINT_RULES, TAINT_RULES_API, TAINT_RULES_GATE
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim, wait_event
from e2e.waiting import eventually

PAGE = REPOSITORY / "docs" / "take-out-of-use.md"

SEEN_S = 20.0
"""Rules come by a watch of their own: until it has shown a new one, a pod may still get its GPU. One pod takes 3 s."""

RESTARTED_S = 120.0
RUN_S = 90.0


@pytest.fixture
def with_rules(chart: ChartCluster) -> Iterator[ChartCluster]:
    with ExitStack() as switched:
        if TAINT_RULES_API:
            switched.callback(chart.control_plane.restart_clients)
            switched.enter_context(chart.control_plane.apiserver.restarted_with(*TAINT_RULES_GATE, *TAINT_RULES_API))
            chart.control_plane.wait_ready()
            switched.enter_context(chart.control_plane.controller_manager.restarted_with(*TAINT_RULES_GATE))
            # They look for an API that was not served every five minutes; nobody has to wait for that.
            restart_controllers(chart)
        yield chart
        chart.api.send("DELETE", f"{TAINT_RULES}/out-of-use")


def restart_controllers(chart: ChartCluster) -> None:
    deployment = ("--namespace", NAMESPACE, f"deployment/{RELEASE}-controller")
    chart.kubectl("rollout", "restart", *deployment)
    chart.kubectl("rollout", "status", *deployment, f"--timeout={RESTARTED_S:.0f}s")


def out_of_use(device: str) -> dict[str, Any]:
    """Return the rule of the page for admins, for this device."""
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    rule: dict[str, Any] = yaml.safe_load(manifest)
    rule["apiVersion"] = "/".join(TAINT_RULES.split("/")[2:4])
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
    chart.api.create(TAINT_RULES, out_of_use(first))
    eventually(lambda: given(chart, "after") - {first}, "another one is given from now on", within_s=SEEN_S)
    create_claim(chart.api, "all", claim_spec(GPU_COUNT))
    pod = Pod("all", claims={"gpu": "all"})
    chart.api.create(PODS, pod.document())
    wait_event(chart.api, pod, "WaitingForGPUs", f"fewer than {GPU_COUNT} of them without taints")
    chart.api.delete(f"{TAINT_RULES}/out-of-use")
    wait_pods(chart, "default", "Running")
    assert len(devices_of(chart.api.get(f"{CLAIMS}/all"))) == GPU_COUNT
    remove(chart, "all")
    eventually(lambda: not chart.podlist(), "the node forgets it", within_s=RUN_S)


def test_a_rule_with_no_execute_ends_the_pods_that_do_not_tolerate_it(with_rules: ChartCluster) -> None:
    """kube-controller-manager evicts; what was the pod's is free when the rule is gone."""
    chart = with_rules
    create_claim(chart.api, "ends", claim_spec(1))
    stays = claim_spec(1)
    stays["devices"]["requests"][0]["exactly"]["tolerations"] = [
        {"key": "example.com/to-be-replaced", "operator": "Exists", "effect": "NoExecute"}
    ]
    create_claim(chart.api, "stays", stays)
    for name in ("ends", "stays"):
        chart.api.create(PODS, Pod(name, claims={"gpu": name}).document())
    wait_pods(chart, "default", "Running")
    rule = out_of_use("every")
    del rule["spec"]["deviceSelector"]["device"]
    rule["spec"]["taint"]["effect"] = "NoExecute"
    chart.api.create(TAINT_RULES, rule)
    eventually(lambda: chart.api.find(f"{PODS}/ends") is None, "the pod is evicted", within_s=RUN_S)
    assert chart.api.get(f"{PODS}/stays")["status"]["phase"] == "Running"
    eventually(
        lambda: not devices_of(chart.api.get(f"{CLAIMS}/ends")), "the claim holds nothing any more", within_s=RUN_S
    )
    chart.api.delete(f"{TAINT_RULES}/out-of-use")
    assert len(given(chart, "next")) == 1
    remove(chart, "stays")
    chart.kubectl("delete", "resourceclaim", "ends", "--timeout=60s")
