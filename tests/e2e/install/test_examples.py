"""The examples below deploy/examples, applied as a user applies them; each says in its README what to expect."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from e2e.decisions import decision_in
from e2e.gpus import GPU_COUNT
from e2e.install.chart_cluster import CONTROLLER_S, NAMESPACE, NODE_NAME, ChartCluster
from e2e.install.pages import commands
from e2e.install.seen import ALL_CLAIMS, allocated, gpus_in, gpus_shown, wait_pods
from e2e.installation import DRIVER, REPOSITORY
from e2e.waiting import eventually

EXAMPLES = REPOSITORY / "deploy" / "examples"
OPTED_OUT = "left-to-kube-scheduler"
NOT_APPLIED = (OPTED_OUT, "shared-gpu", "mig-slices", "mig-pair", "kata-confidential")
"""They need nodes that are set up for them, and the last one Kata."""

BEST = {
    1: [{number} for number in range(GPU_COUNT)],
    2: [{0, 3}, {0, 4}, {1, 2}, {1, 5}, {2, 3}, {4, 7}, {5, 6}, {6, 7}],
    4: [{0, 1, 2, 3}, {4, 5, 6, 7}],
}
"""Of the stand-in machine, a DGX-1V: the pairs with two NVLinks, its fully linked halves."""

FREED_S = 60.0

METRICS_PORT = 8080
NO_GPUS = 'dracaena_controller_gpus{state="free"} 0.0'


@dataclass(frozen=True, slots=True)
class Expected:
    """One row of a README's table."""

    pod: str
    container: str
    gpus: int
    which: str


def expected(readme: Path) -> list[Expected]:
    table = readme.read_text(encoding="utf-8").partition("## Expected")[2]
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (\d+) \| (.+) \|$", table, re.MULTILINE)
    return [Expected(pod, container, int(gpus), which) for pod, container, gpus, which in rows]


def command(readme: Path) -> str:
    (line,) = re.findall(r"^kubectl apply -f (\S+)$", readme.read_text(encoding="utf-8"), re.MULTILINE)
    return str(REPOSITORY / line)


def check(chart: ChartCluster, example: str) -> None:
    """Apply an example, compare what its containers have with what it promises, and remove it."""
    decided = example != OPTED_OUT  # by our controller, which leaves its reasons on the claim
    readme = EXAMPLES / example / "README.md"
    rows = expected(readme)
    assert rows
    namespace = rows[0].pod.partition("/")[0] if "/" in rows[0].pod else "default"
    if namespace != "default":
        chart.make_namespace(namespace)  # a user whose pod comes too soon for a new one applies the file again
    chart.kubectl("apply", "--filename", command(readme))
    pods = wait_pods(chart, namespace, "Running", "Succeeded")
    for claim in (claim for claim in chart.api.items(ALL_CLAIMS) if "allocation" in claim.get("status", {})):
        assert (decision_in(claim) is not None) == decided
    if example == "job":
        chart.kubectl("wait", "--for=condition=complete", "job/job", "--timeout=90s")
        pods = wait_pods(chart, namespace, "Succeeded", count=3)
    found: dict[str, frozenset[int]] = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        for row in (row for row in rows if fnmatchcase(name, row.pod.rpartition("/")[2])):
            if pod["status"]["phase"] == "Succeeded":
                gpus = gpus_shown(chart.kubectl("--namespace", namespace, "logs", name, "--container", row.container))
            else:
                gpus = gpus_in(chart, namespace, name, row.container)
            found[f"{name}/{row.container}"] = gpus
            assert len(gpus) == row.gpus, f"{name}/{row.container} has {sorted(gpus)}"
            if row.which == "linked best":
                assert set(gpus) in BEST[row.gpus]
            elif row.which.startswith("those of "):
                assert gpus == found[row.which.removeprefix("those of ")]
            elif row.which == "all of its node":
                assert gpus == frozenset(range(GPU_COUNT))
            else:
                assert row.which == "any"
    for row in rows:
        assert any(fnmatchcase(name, f"{row.pod.rpartition('/')[2]}/{row.container}") for name in found)
    chart.kubectl("delete", "--filename", command(readme), "--wait", "--grace-period=1", "--timeout=90s")
    eventually(lambda: not allocated(chart.api), f"the claims of {example} are gone", within_s=FREED_S)
    eventually(lambda: not chart.cdi_specs() and not chart.podlist(), "the node forgets them", within_s=FREED_S)


NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.mark.parametrize("example", [name for name in NAMES if name not in NOT_APPLIED])
def test_example_gives_what_its_readme_says(chart: ChartCluster, example: str) -> None:
    check(chart, example)


def test_every_example_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[([a-z-]+)\]", table, re.MULTILINE)) == NAMES


@pytest.fixture
def opted_out(chart: ChartCluster) -> Iterator[ChartCluster]:
    readme = EXAMPLES / OPTED_OUT / "README.md"
    prepare, label, _ = commands(readme)
    for line in (prepare, label.replace(" NODE ", f" {NODE_NAME} ")):
        subprocess.run(["sh", "-c", line], cwd=REPOSITORY, env=chart.shell(), check=True, timeout=120)
    # While two instances run, each mends what the other one published.
    eventually(
        lambda: len(plugins(chart)) == 1 and devices(chart) and not tainted(chart),
        "the new plugin alone publishes, without the taint",
        within_s=90,
    )
    # Or it would allocate for a pod that it sees before it sees that the devices are no longer its own.
    eventually(lambda: no_gpus_to_give(chart), "the controller has no GPU to give", within_s=CONTROLLER_S)
    yield chart
    chart.kubectl("label", "node", NODE_NAME, f"{DRIVER}/settings-")
    eventually(lambda: tainted(chart), "the devices carry the taint again", within_s=90)
    chart.upgrade()


def plugins(chart: ChartCluster) -> list[Any]:
    pods = chart.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    return [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "kubelet-plugin"]


def devices(chart: ChartCluster) -> list[Any]:
    return [device for one in chart.slices() for device in one["spec"].get("devices", ())]


def no_gpus_to_give(chart: ChartCluster) -> bool:
    """Whether each controller has seen that."""
    selector = "labelSelector=app.kubernetes.io/component=controller"
    found = chart.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")
    return bool(found) and all(NO_GPUS in metrics(pod["status"]["podIP"]) for pod in found)


def metrics(address: str) -> str:
    """Return what one of our pods serves to Prometheus, nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}/metrics", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def tainted(chart: ChartCluster) -> bool:
    return any(device.get("taints") for device in devices(chart))


def test_node_that_opted_out_is_left_to_kube_scheduler(opted_out: ChartCluster) -> None:
    check(opted_out, OPTED_OUT)
