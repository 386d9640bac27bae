"""`dracaena doctor` on a real kube-apiserver with the whole chart, and nobody who runs its programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api import Api
from e2e.api_server import BareApiServer
from e2e.install.chart_cluster import NAMESPACE, RELEASE
from e2e.installation import DRIVER
from e2e.run import BINARIES, LOGS
from support.chart import CHART, KUBERNETES, helm


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("doctor")
    with BareApiServer(root, Path(os.environ[BINARIES]), Path(os.environ[LOGS]), "--allow-privileged=true") as server:
        path = root / "kubeconfig"
        cluster = {"server": server.url, "certificate-authority": str(server.authority)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": server.token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
        api = Api(server.url, server.authority, server.token)
        labels = {"pod-security.kubernetes.io/enforce": "baseline"}
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        api.create("/api/v1/nodes", {"metadata": {"name": "worker-1", "labels": {"nvidia.com/gpu.present": "true"}}})
        done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--no-hooks", KUBERNETES, home=root)
        assert done.returncode == 0, done.stderr
        (root / "chart.yaml").write_text(done.stdout, encoding="utf-8")
        kubectl(path, "apply", "--filename", root / "chart.yaml")
        yield path


def kubectl(kubeconfig: Path, *arguments: str | Path) -> None:
    program = Path(os.environ[BINARIES]) / "kubectl"
    done = subprocess.run(
        [program, "--kubeconfig", kubeconfig, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def doctor(kubeconfig: Path, *arguments: str) -> tuple[int, dict[str, list[Any]]]:
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "doctor", "-o", "json", "--kubeconfig", str(kubeconfig)]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True)
    assert done.stderr == ""
    found: dict[str, list[Any]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["check"], []).append((one["state"], one["text"]))
    return done.returncode, found


def test_what_a_chart_without_programs_shows_and_what_is_right_of_it(kubeconfig: Path) -> None:
    code, found = doctor(kubeconfig)
    assert code == 1
    right = {check for check, said in found.items() if {state for state, _ in said} == {"ok"}}
    assert right == {
        *("server", "api", "taint-rules", "classes", "policies", "program-rights", "pools", "taints", "other-drivers"),
        *("reports", "namespaces", "quotas", "levels", "your-rights"),
    }
    ((_, level),) = found["pod-security"]
    assert level.startswith(f"namespace {NAMESPACE} has pod-security.kubernetes.io/enforce=baseline, which refuses")
    ((_, node),) = found["gpu-nodes"]
    assert node.startswith(
        "node worker-1 has GPUs (nvidia.com/gpu.present) and no plugin: its DaemonSet leaves it out (not"
    )
    assert found["leader"][0][1].startswith("no controller has ever led")


def test_what_somebody_removed_or_edited_is_found(kubeconfig: Path) -> None:
    kubectl(kubeconfig, "delete", "mutatingadmissionpolicybinding", f"gate.{DRIVER}")
    patch = '[{"op": "add", "path": "/spec/selectors/0/cel/expression", "value": "true"}]'
    kubectl(kubeconfig, "patch", "deviceclass", f"nvlink.{DRIVER}", "--type=json", "--patch", patch)
    _, found = doctor(kubeconfig)
    ((_, text),) = found["policies"]
    assert text == f"policy gate.{DRIVER} has no binding, so it is not in force: an admin has to run helm upgrade"
    said = [text for _, text in found["classes"]]
    assert any(text.startswith(f"no selector of DeviceClass nvlink.{DRIVER} names {DRIVER}") for text in said)
    assert any(f"the spec of DeviceClass nvlink.{DRIVER} was written by kubectl-" in text for text in said)


def test_a_bundle_of_it_has_no_environment_and_no_settings(kubeconfig: Path, tmp_path: Path) -> None:
    doctor(kubeconfig, "--bundle", str(tmp_path / "bundle.tar.gz"))
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        text = "".join(file.read().decode() for file in files.values() if file is not None)
    assert "dracaena/daemonsets.json" in files
    assert not {"DRACAENA_POD_UID", "settings.yaml", "fieldPath", "token"} & set(text.replace('"', " ").split())
