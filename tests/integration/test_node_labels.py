"""`dracaena node-labels --patch-node` on an API server, over sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dracaena.api.objects import Node
from dracaena.cli.main import build_parser, main
from dracaena.cli.node_labels import run as run_node_labels
from dracaena.demo.apiserver import Faults, InjectedFault
from dracaena.kube.client import KubeClient
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.discovery.publish.node_labels import LabelFacts, node_labels
from dracaena.kubelet_plugin.node.label_writing import write_node_labels
from support.allocation import DRIVER
from support.api_ground import ApiGround
from support.controller import transport

RECORD = f"{DRIVER}/node-labels"
THEIRS = {"kubernetes.io/hostname": "n1", "nvidia.com/gpu.present": "true", f"{DRIVER}/settings": "shared"}

Run = Callable[..., SimpleNamespace]

pytestmark = pytest.mark.usefixtures("logs_as_before")


@pytest.fixture
def client(server: ApiGround, tmp_path: Path) -> KubeClient:
    made = KubeClient(transport(server, tmp_path))
    made.create(Node, {"metadata": {"name": "n1", "labels": THEIRS, "annotations": {"example.com/note": "1"}}})
    return made


@pytest.fixture
def run(tmp_path: Path, client: KubeClient, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*arguments: str) -> SimpleNamespace:
        code = main(["node-labels", *arguments, "--no-timestamp", "--kubeconfig", str(tmp_path / "kubeconfig")])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return _run


def said(machine: str) -> Mapping[str, str]:
    return node_labels(read_machine(machine), LabelFacts(), DRIVER)


def labels(client: KubeClient) -> dict[str, str]:
    """Return all but those that the server itself gives a Node."""
    found = client.get(Node, "n1").metadata.labels
    return {name: value for name, value in found.items() if not name.startswith("beta.kubernetes.io/")}


def test_labels_come_follow_the_machine_and_go_and_those_of_others_stay(run: Run, client: KubeClient) -> None:
    done = run("--machine", "hgx-h100", "--patch-node", "n1")
    assert done.code == 0, done.err
    assert "nvidia.com/gpu.count" in done.out
    assert labels(client) == {**THEIRS, **said("hgx-h100")}
    version = client.get(Node, "n1").metadata.resource_version

    assert run("--machine", "hgx-h100", "--patch-node", "n1").out == "Node n1: has its labels\n"
    assert client.get(Node, "n1").metadata.resource_version == version

    assert run("--machine", "rtx4090-all-sys", "--patch-node", "n1").code == 0
    assert labels(client) == {**THEIRS, **said("rtx4090-all-sys")}

    assert run("--remove", "--patch-node", "n1").code == 0
    assert labels(client) == THEIRS
    assert client.get(Node, "n1").metadata.annotations == {"example.com/note": "1"}


def test_a_wrong_value_is_put_right_and_a_label_of_others_is_not_touched(run: Run, client: KubeClient) -> None:
    planted = {"nvidia.com/gpu.count": "99", "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/mig.strategy": "mixed"}
    client.merge_patch(Node, "n1", {"metadata": {"labels": planted}})
    assert run("--machine", "hgx-h100", "--patch-node", "n1").code == 0
    assert labels(client) == {**THEIRS, **planted, **said("hgx-h100")}
    assert "nvidia.com/mig.strategy" not in client.get(Node, "n1").metadata.annotations[RECORD].split(",")


def test_with_an_interval_a_label_that_somebody_changed_comes_back_and_labels_stay_at_the_end(
    client: KubeClient, tmp_path: Path
) -> None:
    kubeconfig = str(tmp_path / "kubeconfig")
    given = ["--machine", "hgx-h100", "--no-timestamp", "--interval", "60", "--patch-node", "n1"]
    arguments = build_parser().parse_args(["node-labels", *given, "--kubeconfig", kubeconfig])
    seen = []

    def wait(_seconds: float) -> bool:
        seen.append(labels(client))
        client.merge_patch(Node, "n1", {"metadata": {"labels": {"nvidia.com/gpu.count": "99"}}})
        return len(seen) == 3

    assert run_node_labels(arguments, wait=wait) == 0
    assert seen == [{**THEIRS, **said("hgx-h100")}] * 3
    assert labels(client)["nvidia.com/gpu.count"] == "99"


def test_a_node_that_is_not_there_is_an_answer_with_its_name(run: Run) -> None:
    done = run("--machine", "hgx-h100", "--patch-node", "nowhere")
    assert done.code != 0
    assert "there is no Node nowhere" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("more", [(), ("--patch-node", "n1", "--interval", "5")])
def test_removal_needs_a_node_and_happens_once(run: Run, more: tuple[str, ...]) -> None:
    done = run("--remove", *more)
    assert done.code != 0
    assert "--remove removes labels from a Node once" in done.err


class Overtaken(KubeClient):
    """Each of the first reads is followed by a write of somebody else."""

    writes = 0

    def get(self, kind: type[Any], name: str, *, namespace: str = "") -> Any:
        found = super().get(kind, name, namespace=namespace)
        if self.writes < 2:
            self.writes += 1
            self.merge_patch(Node, name, {"metadata": {"labels": {"nvidia.com/mig.strategy": f"theirs{self.writes}"}}})
        return found


def test_what_somebody_writes_between_our_reading_and_our_writing_stays(
    server: ApiGround, client: KubeClient, tmp_path: Path
) -> None:
    client.merge_patch(Node, "n1", {"metadata": {"labels": {"nvidia.com/mig.strategy": "old"}}})
    other = Overtaken(transport(server, tmp_path))
    write_node_labels(other, "n1", said("hgx-h100"), DRIVER)
    assert other.writes == 2
    assert labels(client) == {**THEIRS, "nvidia.com/mig.strategy": "theirs2", **said("hgx-h100")}


@pytest.mark.embedded_only
@pytest.mark.parametrize(
    ("status", "told"),
    [(409, "changed by somebody else 5 times"), (403, "an admin must grant get and patch on nodes")],
)
def test_what_is_refused_is_told_and_leaves_the_node_as_it_was(
    run: Run, client: KubeClient, faults: Faults, status: int, told: str
) -> None:
    faults.add(InjectedFault(method="PATCH", path="/nodes/n1", times=9, status=status))
    done = run("--machine", "hgx-h100", "--patch-node", "n1")
    faults.clear()
    assert done.code != 0
    assert told in done.err
    assert labels(client) == THEIRS
