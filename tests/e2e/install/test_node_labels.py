"""The switch that has Nodes labelled: labels come, are put right and go, and its account writes nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.control_plane import ADMIN
from e2e.gpus import DRIVER_VERSION
from e2e.install.chart_cluster import NAMESPACE, NODE_NAME, RELEASE, ChartCluster
from e2e.install.impersonation import As
from e2e.installation import DRIVER
from e2e.waiting import eventually

NODES = "/api/v1/nodes"
OTHER_NODE = "other-node"
POLICY = f"node-labels.{DRIVER}"
RECORD = f"{DRIVER}/node-labels"

SAID = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB",
    "nvidia.com/gpu.memory": "16384",
    "nvidia.com/gpu.family": "volta",
    "nvidia.com/cuda.driver-version.full": DRIVER_VERSION,
    f"{DRIVER}/topology": "nvlink-partial",
    f"{DRIVER}/nvlink-group-size": "8",
}
"""Of the machine that the node plays (e2e.gpus): by GPU feature discovery's table, and how its GPUs are linked."""

THEIRS = {
    "example.com/rack": "7",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/gpu.workload.config": "container",
}

LABELS_S = 60.0
"""The command looks every 2 s; a pod comes, and a policy counts, within seconds on a free machine."""


def labels(chart: ChartCluster, node: str = NODE_NAME) -> dict[str, str]:
    return dict(chart.api.get(f"{NODES}/{node}")["metadata"].get("labels", {}))


def metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


@pytest.fixture
def labelled(chart: ChartCluster) -> Iterator[ChartCluster]:
    chart.upgrade(nodeLabels={"enabled": True, "intervalSeconds": 2})
    yield chart
    chart.upgrade()
    chart.api.patch(f"{NODES}/{NODE_NAME}", metadata(labels=dict.fromkeys(THEIRS)))
    chart.api.delete(f"{NODES}/{OTHER_NODE}")


def wait_right(chart: ChartCluster) -> None:
    eventually(
        lambda: labels(chart).items() >= SAID.items(), "the Node has its labels", within_s=LABELS_S,
        programs=chart.programs,
    )  # fmt: skip


def remove_by_command(chart: ChartCluster) -> None:
    command = (sys.executable, "-P", "-m", "dracaena.cli.main", "node-labels", "--remove", "--patch-node", NODE_NAME)
    kubeconfig = f"--kubeconfig={chart.control_plane.kubeconfig(ADMIN)}"
    done = subprocess.run([*command, kubeconfig], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def policy_has_no_type_errors(chart: ChartCluster) -> None:
    """The API server checks each expression against its types, and writes what it finds into the status."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{POLICY}"
    status = eventually(lambda: chart.api.get(path).get("status"), "the policy is checked", within_s=LABELS_S)
    assert status["observedGeneration"] == 1
    assert status.get("typeChecking", {}).get("expressionWarnings", []) == []


def account_is_held(chart: ChartCluster) -> None:
    """Send what the account of the pods may do, and what it may not, as a pod on this node."""
    chart.api.create(NODES, {"metadata": {"name": OTHER_NODE}})
    user = f"system:serviceaccount:{NAMESPACE}:{RELEASE}-node-labels"
    here, nowhere = As(chart.control_plane, user, NODE_NAME), As(chart.control_plane, user)
    own, other = f"{NODES}/{NODE_NAME}?dryRun=All", f"{NODES}/{OTHER_NODE}?dryRun=All"
    ours = metadata(labels={"nvidia.com/gpu.count": "7", f"{DRIVER}/topology": None}, annotations={RECORD: None})

    done = here.send("PATCH", own, ours)
    assert done.is_good, done.message
    for who, path in ((here, other), (nowhere, own)):
        done = who.send("PATCH", path, ours)
        assert done.status == 422, (path, done.text)
        assert POLICY in done.message
        assert "only be written to the token's own node" in done.message

    for name in (
        "example.com/rack", "nvidia.com/gpu.present", "nvidia.com/gpu.deploy.driver", "nvidia.com/mig.config",
        f"{DRIVER}/settings", f"{DRIVER}/release-driver", "kubernetes.io/hostname", "topology.kubernetes.io/zone",
    ):  # fmt: skip
        done = here.send("PATCH", own, metadata(labels={name: "x", "nvidia.com/gpu.count": "7"}))
        assert done.status == 422, (name, done.text)
        assert POLICY in done.message
        assert f"not all of {name}" in done.message or f", {name}" in done.message
    for value in ("true", "True", ""):
        done = here.send("PATCH", own, metadata(labels={"nvidia.com/mps.capable": value}))
        assert done.status == 422, (value, done.text)
        assert POLICY in done.message
        assert 'mps.capable may only be written as "false"' in done.message
    done = here.send("PATCH", own, metadata(labels={"nvidia.com/mps.capable": None}))
    assert done.is_good, done.message
    taken = here.send("PATCH", own, metadata(labels={"nvidia.com/gpu.present": None}))
    assert taken.status == 422, taken.text

    for change in (
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
        metadata(annotations={"example.com/note": "x"}),
        metadata(finalizers=["example.com/mine"]),
    ):
        done = here.send("PATCH", own, change)
        assert done.status == 422, (change, done.text)
        assert "of a Node only labels may be written" in done.message

    for method, path in (("GET", NODES), ("DELETE", own), ("PATCH", f"{NODES}/{NODE_NAME}/status?dryRun=All")):
        assert here.send(method, path, {} if method == "PATCH" else None).status == 403, (method, path)


def test_labels_of_a_node_come_are_put_right_and_go_and_nothing_else_is_written(
    labelled: ChartCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = labelled
    wait_right(chart)
    before = labels(chart)
    columns = chart.kubectl("get", "nodes", "-L", f"nvidia.com/gpu.product,nvidia.com/gpu.count,{DRIVER}/topology")
    with capsys.disabled():
        sys.stdout.write(f"\n{columns}")
    (row,) = [line.split() for line in columns.splitlines() if line.startswith(NODE_NAME)]
    assert row[-3:] == ["Tesla-V100-SXM2-16GB", "8", "nvlink-partial"]
    shown = chart.kubectl("get", "nodes", "-l", "nvidia.com/gpu.family=volta", "-o", "name")
    assert shown.split() == [f"node/{NODE_NAME}"]

    chart.api.patch(
        f"{NODES}/{NODE_NAME}", metadata(labels={**THEIRS, "nvidia.com/gpu.count": "99", f"{DRIVER}/topology": None})
    )
    wait_right(chart)
    assert labels(chart) == {**before, **THEIRS}

    policy_has_no_type_errors(chart)
    account_is_held(chart)
    chart.upgrade()
    remove_by_command(chart)
    left = labels(chart)
    assert left.items() >= THEIRS.items()
    assert not left.keys() & SAID.keys()
    assert left["nvidia.com/gpu.present"] == "true"
    assert RECORD not in chart.api.get(f"{NODES}/{NODE_NAME}")["metadata"].get("annotations", {})
