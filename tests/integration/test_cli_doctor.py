"""`dracaena doctor` on a cluster: what is found of an installation that is not there, or only in part."""

from __future__ import annotations

import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.cli.main import main
from dracaena.kube.client import KubeClient
from dracaena.kube.lease import Lease, microtime
from support.allocation import DRIVER, blocks, machine
from support.api_ground import ApiGround
from support.controller import publish, transport

TWO = machine("two", blocks(2, inside="NV2", outside="SYS"), product_name="NVIDIA L40S")

pytestmark = pytest.mark.usefixtures("logs_as_before")


def ask(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["doctor", *arguments, "--kubeconfig", str(folder / "kubeconfig")])
    out, err = capsys.readouterr()
    return code, out, err


def by_check(out: str) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for one in json.loads(out):
        found.setdefault(one["check"], []).append((one["state"], one["text"]))
    return found


def test_what_is_missing_is_told_from_what_cannot_be_seen(
    server: ApiGround, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"a": TWO})
    code, out, err = ask(tmp_path, capsys, "-o", "json")
    assert (code, err) == (1, "")
    found = by_check(out)
    assert found["server"][0][0] == "ok"
    # This server has no DaemonSets and no policies, and says so: that is no verdict on them.
    assert found["gpu-nodes"][0][1].startswith("daemonsets could not be read (GET /apis/apps/v1/daemonsets: 501 ")
    assert {found[name][0][0] for name in ("gpu-nodes", "policies", "your-rights")} == {"not checked"}
    assert found["versions"][0][1].startswith("no pod of the chart runs")
    assert found["leader"][0][1].startswith("no controller has ever led: there is no Lease")
    assert found["pools"][0][1].startswith("GPUs of nodes a are published and no plugin runs there")
    assert ("ok", f"devices with the taint {DRIVER}/controller-allocated: 2") in found["taints"]
    renewed = {"holderIdentity": "replica-1", "renewTime": microtime(datetime.now(UTC)), "leaseDurationSeconds": 30}
    client.create(Lease, {"metadata": {"name": f"controller.{DRIVER}"}, "spec": renewed}, namespace="default")
    _, out, _ = ask(tmp_path, capsys, "-o", "json")
    assert by_check(out)["leader"] == [("ok", "replica-1 leads")]


def test_the_text_ends_with_counts_and_the_bundle_is_written(
    server: ApiGround, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(KubeClient(transport(server, tmp_path)), {"a": TWO})
    path = tmp_path / "bundle.tar.gz"
    code, out, err = ask(tmp_path, capsys, "--bundle", str(path))
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith("ok           server          the API server answers as Kubernetes ")
    assert lines[-1].split()[1::2][0] == "not"
    with tarfile.open(path) as archive:
        content = archive.extractfile("dracaena/pools.json")
        assert content is not None
        (pool,) = json.loads(content.read())
    assert (pool["node"], pool["devices"]) == ("a", 2)


def test_findings_are_shown_even_if_there_is_such_a_file_already(
    server: ApiGround, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transport(server, tmp_path)
    path = tmp_path / "bundle.tar.gz"
    path.write_text("mine")
    code, out, err = ask(tmp_path, capsys, "--bundle", str(path))
    assert (code, path.read_text()) == (2, "mine")
    assert "the API server answers as Kubernetes" in out
    assert err == f"dracaena: {path} cannot be written: File exists, expected the name of a new file\n"


def test_a_server_that_does_not_answer_is_an_error_and_no_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster: dict[str, Any] = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "c", **document})
    (tmp_path / "kubeconfig").write_text(text, encoding="utf-8")
    code, out, err = ask(tmp_path, capsys)
    assert (code, out) == (1, "")
    assert err.startswith("dracaena: GET /version: ")
