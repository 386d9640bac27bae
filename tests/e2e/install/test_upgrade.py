"""helm upgrade while pods come and go."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from e2e.install.chart_cluster import NAMESPACE, ChartCluster
from e2e.install.seen import given_twice, gpus_in, gpus_shown, wait_pods
from e2e.pods import PODS, Pod, claim_spec, create_template, wait_phase
from e2e.waiting import eventually

PAUSE_S = 1.0
"""Between two new pods: each holds one of eight GPUs for some seconds."""

REPLACED_S = 120.0


def short_pod(name: str) -> dict[str, Any]:
    """Return a pod that shows what it has, and ends."""
    document = Pod(name, templates={"gpu": "short"}).document()
    document["spec"]["containers"][0]["args"] = ["show"]
    return document


def containers(chart: ChartCluster, name: str) -> list[str]:
    return [status["containerID"] for status in chart.api.get(f"{PODS}/{name}")["status"]["containerStatuses"]]


def test_upgrade_under_load_loses_nothing(chart: ChartCluster) -> None:
    api = chart.api
    template = create_template(api, "short", claim_spec(1))
    long = [Pod(f"long-{number}", templates={"gpu": "short"}) for number in range(2)]
    for pod in long:
        api.create(PODS, pod.document())
    wait_pods(chart, "default", "Running", count=2)
    held = {pod.name: gpus_in(chart, "default", pod.name, "main") for pod in long}
    running = {pod.name: containers(chart, pod.name) for pod in long}
    # One that fits nowhere: each new leader says so anew, in the same words.
    too_large = create_template(api, "too-large", claim_spec(20))
    api.create(PODS, Pod("waiting", templates={"gpu": "too-large"}).document())
    before = {pod["metadata"]["uid"] for pod in api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")}
    twice: set[str] = set()
    names: list[str] = []
    with ThreadPoolExecutor(1) as aside:
        # Both parts roll: the log level stands in the settings of each.
        upgrade = aside.submit(chart.upgrade, logLevel="info")
        while not upgrade.done() or len(names) < 5:
            name = f"short-{len(names)}"
            api.create(PODS, short_pod(name))
            names.append(name)
            twice |= given_twice(api)
            time.sleep(PAUSE_S)
        upgrade.result()

    def all_new() -> bool:
        pods = api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
        return len(pods) == 3 and not before & {pod["metadata"]["uid"] for pod in pods}

    eventually(all_new, "all pods of both parts are new", within_s=REPLACED_S)
    assert twice == set()
    waits = api.get(f"{PODS}/waiting")
    assert waits["status"]["phase"] == "Pending"
    api.delete(f"{PODS}/waiting", grace_s=0)
    api.delete(too_large)
    for name in names:
        wait_phase(api, Pod(name), "Succeeded")
        assert len(gpus_shown(chart.kubectl("logs", name))) == 1
    for pod in long:
        wait_phase(api, pod, "Running")
        assert containers(chart, pod.name) == running[pod.name]
        assert gpus_in(chart, "default", pod.name, "main") == held[pod.name]
    chart.kubectl("delete", "pods", "--all", "--namespace", "default", "--grace-period=1", "--timeout=90s")
    eventually(lambda: not chart.cdi_specs() and not chart.podlist(), "the node forgets them", within_s=60)
    api.delete(template)
    chart.upgrade()
